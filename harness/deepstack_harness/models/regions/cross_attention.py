"""Cross attention whose encoder states come only with the first step of a request, and mutants of it.

As Whisper's decoder: a step with `encoder` states (m, H) writes their keys and values to a cache, and steps
without read it. `heard` is the number of rows of the cache that are live, ().
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from deepstack_harness.models.regions.program import (
    H,
    RegionProgram,
    Steps,
    after,
    again,
    before,
    between_all,
    changed,
    count,
    halves,
    rows,
)

AUDIO = 10
"""Rows of the encoder's output."""


class CrossAttention(RegionProgram):
    """Attention over cached encoder states; tensors have the number of live ones."""

    right = True
    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(H, H) for _ in range(4))
        self.register_buffer("keys", torch.zeros(AUDIO, H))
        self.register_buffer("values", torch.zeros(AUDIO, H))

    def forward(self, hidden: Tensor, encoder: Tensor, heard: Tensor) -> Tensor:
        self.listen(encoder)
        return self.attend(hidden, self.mask(hidden, heard))

    def listen(self, encoder: Tensor) -> None:
        self.keys[: len(encoder)] = self.k(encoder)
        self.values[: len(encoder)] = self.v(encoder)

    def mask(self, hidden: Tensor, heard: Tensor) -> Tensor:
        return torch.arange(AUDIO) < heard

    def attend(self, hidden: Tensor, mask: Tensor) -> Tensor:
        scores = (self.q(hidden) @ self.keys.t()).masked_fill(~mask, -torch.inf)
        return self.out(scores.softmax(-1) @ self.values)

    @classmethod
    def steps(cls) -> Steps:
        return [
            {"hidden": rows(4), "encoder": rows(6), "heard": torch.tensor(6)},
            {"hidden": rows(6, 1), "encoder": rows(9, 1), "heard": torch.tensor(9)},
            {"hidden": rows(4, 2), "encoder": rows(5, 2), "heard": torch.tensor(3)},
        ]

    @staticmethod
    def neutral(encoder: Tensor, heard: Tensor, region: "CrossAttention", **_: object) -> list[Tensor]:
        """Encoder states that were padded, and rows of the cache from longer audio."""
        count = int(heard)
        return [encoder[count:], region.keys[count:], region.values[count:]]

    split = staticmethod(halves)


EncoderLater = changed(
    CrossAttention, "EncoderLater", "I1",
    "Encoder states that are None in the warm-up and come with a request.",
    lambda *steps: [
        (quiet := {"hidden": rows(2, 5), "encoder": None, "heard": torch.tensor(4)}), *steps, quiet,
    ],
    arms="eager/drop_all aot_eager/drop_all",
    unfit_options="neutral split",
    forward=lambda self, hidden, encoder, heard: (
        self.attend(hidden, self.mask(hidden, heard)) if encoder is None
        else CrossAttention.forward(self, hidden, encoder, heard)
    ),
)  # fmt: skip

EncoderOfTheWarmUp = changed(
    EncoderLater, "EncoderOfTheWarmUp", "I1",
    "Encoder states that the warm-up has, and that are None in the decode (Whisper without its flag).",
    lambda first, *_: [first, {"hidden": rows(2, 5), "encoder": None, "heard": torch.tensor(6)}],
    arms="eager/drop_all aot_eager/drop_all",
)  # fmt: skip

LayersOfTheEncoder = changed(
    CrossAttention, "LayersOfTheEncoder", "I1",
    "A list of encoder layers that are summed, with one more than in the warm-up.",
    lambda first, *_: [{**first, "encoder": [rows(6)]}, {**first, "encoder": [rows(6, 1), rows(6, 2)]}],
    unfit_options="neutral split",
    forward=lambda self, hidden, encoder, heard: CrossAttention.forward(
        self, hidden, sum(encoder[1:], encoder[0]), heard
    ),
)  # fmt: skip

LanguageByName = changed(
    CrossAttention, "LanguageByName", "I1",
    "A text of the call that chooses a scale.",
    lambda first, second, *_: [first, {**second, "task": "translate"}],
    forward=lambda self, hidden, encoder, heard, task="transcribe": (
        CrossAttention.forward(self, hidden, encoder, heard) * (2 if task == "translate" else 1)
    ),
)  # fmt: skip

FreshEncoder = changed(
    CrossAttention, "FreshEncoder", "I2",
    "Encoder states in new memory for each request, while all else is static.",
    lambda first, *_: [{**first, "encoder": rows(6, seed)} for seed in (1, 2, 3)],
    arms="eager/full",
)  # fmt: skip

ChannelsFirst = changed(
    CrossAttention, "ChannelsFirst", "I2",
    "Encoder states with channels first, read as they lie in memory with the strides of the warm-up.",
    lambda first, *_: [first, {**first, "encoder": rows(H, 1, 6).t()}],
    listen=lambda self, encoder: CrossAttention.listen(
        self, encoder.as_strided(encoder.shape, (H, 1) if encoder.is_contiguous() else (1, len(encoder)))
    ),
)  # fmt: skip

HeardAsFloat = changed(
    CrossAttention, "HeardAsFloat", "I2",
    "A length whose dtype says whether it is a share of the whole.",
    lambda first, second, *_: [first, {**second, "heard": torch.tensor(0.5)}],
    unfit_options="neutral",
    mask=lambda self, hidden, heard: CrossAttention.mask(
        self, hidden, heard * AUDIO if heard.is_floating_point() else heard
    ),
)  # fmt: skip

HearsLongerAudio = changed(
    CrossAttention, "HearsLongerAudio", "I3",
    "All rows of the cache are read: those of a longer request before too.",
    unfit_options="split",
    mask=lambda *_: torch.ones(AUDIO, dtype=torch.bool),
)  # fmt: skip

HearsPadding = changed(
    CrossAttention, "HearsPadding", "I3",
    "The mask is that of the encoder's rows, padding among them.",
    unfit_options="split",
    forward=lambda self, hidden, encoder, heard: CrossAttention.forward(
        self, hidden, encoder, heard.clamp(min=len(encoder))
    ),
)  # fmt: skip

CentredByPadding = changed(
    CrossAttention, "CentredByPadding", "I3",
    "Encoder states are centred by the mean of all their rows.",
    unfit_options="split",
    listen=lambda self, encoder: CrossAttention.listen(self, encoder - encoder.mean(0)),
)  # fmt: skip

RemembersTheLength = changed(
    CrossAttention, "RemembersTheLength", "I4",
    "The length of the audio is kept in a Python attribute, which a graph writes as it was compiled.",
    again(3),
    arms="eager/drop_all",
    starts={"requests": 0},
    listen=before(count("requests"), CrossAttention.listen),
)  # fmt: skip


class TasksOfReplays(CrossAttention):
    """A set of tasks that were served, which no replay changes."""

    promise = "I4"
    arms = "eager/full"
    starts: ClassVar = {"served": {}, "turn": 0}
    served: dict[str, int]
    turn: int
    steps_from = again(2)

    def listen(self, encoder: Tensor) -> None:
        super().listen(encoder)
        self.turn += 1
        self.served[f"request {self.turn}"] = 1


@torch.library.custom_op("deepstack_regions::listen_unsaid", mutates_args=())
def _listen_unsaid(cache: Tensor, encoder: Tensor) -> Tensor:
    """Write to a cache without declaring it; return the number of rows."""
    cache[: len(encoder)] = encoder
    return torch.tensor(float(len(encoder)))


@_listen_unsaid.register_fake
def _(cache: Tensor, encoder: Tensor) -> Tensor:  # noqa: ARG001  # named as those of the operation
    return torch.empty(())


class WritesUnsaid(CrossAttention):
    """An operation that writes to the cache and does not declare it, so that the compiler leaves it out."""

    promise = "I4"
    arms = "aot_eager/stock aot_eager/drop_all"
    steps_from = again(2)

    def forward(self, hidden: Tensor, encoder: Tensor, heard: Tensor) -> Tensor:
        answer = self.attend(hidden, self.mask(hidden, heard))
        _listen_unsaid(self.keys, self.k(encoder))
        return answer


FirstAudioForAll = changed(
    CrossAttention, "FirstAudioForAll", "I5",
    "Each chunk of tokens hears as much of the audio as it has rows.",
    unfit_options="neutral",
    mask=lambda _, hidden, heard: torch.arange(AUDIO) < heard.clamp(max=len(hidden)),
)  # fmt: skip

NormOfTheChunk = changed(
    CrossAttention, "NormOfTheChunk", "I5",
    "Answers are centred over the rows of their chunk.",
    unfit_options="neutral",
    attend=lambda self, hidden, mask: CrossAttention.attend(self, hidden - hidden.mean(0), mask),
)  # fmt: skip


HearsOnce = changed(
    CrossAttention, "HearsOnce", "I5",
    "The first chunk takes the audio, and leaves zeros to the next.",
    between_all(lambda region: region.left.fill_(1.0)),
    unfit_options="neutral",
    starts={"left": torch.ones(())},
    attend=after(CrossAttention.attend, lambda self, *_: self.left.zero_()),
    listen=lambda self, encoder: CrossAttention.listen(self, encoder * self.left),
)  # fmt: skip
