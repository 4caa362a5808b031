"""Cross attention whose encoder states come with the first step of a request alone, and mutants of it.

As Whisper's decoder: a step with `encoder` states (m, H) writes their keys and values to a cache, and steps
without read it.  `heard` is the number of rows of the cache that are live, ().
"""

from typing import Any

import torch
from torch import Tensor, nn

from deepstack_harness.models.regions.program import H, RegionProgram, Steps, halves, rows

AUDIO = 10


class CrossAttention(RegionProgram):
    """Attention over cached encoder states, of which tensors say how many are live."""

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

    @staticmethod
    def split(hidden: Tensor, **others: Tensor) -> list[dict[str, Any]]:
        """Two chunks of the decoder's tokens beside the same audio."""
        return halves(count=len(hidden), hidden=hidden, **others)


class EncoderLater(CrossAttention):
    """Encoder states that are None in the warm-up and come with a request."""

    promise = "I1"
    arms = "eager/drop_all aot_eager/drop_all"
    unasked = "neutral split"

    def forward(self, hidden: Tensor, encoder: Tensor | None, heard: Tensor) -> Tensor:
        if encoder is not None:
            self.listen(encoder)
        return self.attend(hidden, self.mask(hidden, heard))

    @classmethod
    def steps(cls) -> Steps:
        quiet = {"hidden": rows(2, 5), "encoder": None, "heard": torch.tensor(4)}
        return [quiet, *super().steps(), quiet]


class EncoderOfTheWarmUp(EncoderLater):
    """Encoder states that the warm-up has, and that are None in the decode (Whisper without its flag)."""

    promise = "I1"
    arms = "eager/drop_all aot_eager/drop_all"

    @classmethod
    def steps(cls) -> Steps:
        first, *_ = CrossAttention.steps()
        return [first, {"hidden": rows(2, 5), "encoder": None, "heard": torch.tensor(6)}]


class LayersOfTheEncoder(CrossAttention):
    """A list of encoder layers that are summed, with one more than in the warm-up."""

    promise = "I1"
    unasked = "neutral split"

    def forward(self, hidden: Tensor, encoder: list[Tensor], heard: Tensor) -> Tensor:  # type: ignore[override]
        mixed = encoder[0]
        for layer in encoder[1:]:
            mixed = mixed + layer
        return super().forward(hidden, mixed, heard)

    @classmethod
    def steps(cls) -> Steps:
        first, *_ = super().steps()
        return [
            {**first, "encoder": [rows(6)]},
            {**first, "encoder": [rows(6, 1), rows(6, 2)]},
        ]


class LanguageByName(CrossAttention):
    """A text of the call that chooses a scale."""

    promise = "I1"

    def forward(self, hidden: Tensor, encoder: Tensor, heard: Tensor, task: str = "transcribe") -> Tensor:
        answer = super().forward(hidden, encoder, heard)
        return answer * 2 if task == "translate" else answer

    @classmethod
    def steps(cls) -> Steps:
        first, second, *_ = super().steps()
        return [first, {**second, "task": "translate"}]


class FreshEncoder(CrossAttention):
    """Encoder states in new memory for each request, while all else is static."""

    promise = "I2"
    arms = "eager/full"

    @classmethod
    def steps(cls) -> Steps:
        hidden, heard = rows(2), torch.tensor(6)
        return [
            {"hidden": hidden, "encoder": rows(6, seed), "heard": heard} for seed in (1, 2, 3)
        ]  # fmt: skip


class ChannelsFirst(CrossAttention):
    """Encoder states with channels first, read as they lie in memory with the strides of the warm-up."""

    promise = "I2"

    def listen(self, encoder: Tensor) -> None:
        lies = (H, 1) if encoder.is_contiguous() else (1, len(encoder))
        super().listen(encoder.as_strided(encoder.shape, lies))

    @classmethod
    def steps(cls) -> Steps:
        hidden, heard = rows(2), torch.tensor(6)
        return [
            {"hidden": hidden, "encoder": rows(6), "heard": heard},
            {"hidden": hidden, "encoder": rows(H, 1, 6).t(), "heard": heard},
        ]


class HeardAsFloat(CrossAttention):
    """A length whose dtype says whether it is a share of the whole."""

    promise = "I2"
    unasked = "neutral"

    def mask(self, hidden: Tensor, heard: Tensor) -> Tensor:
        return super().mask(hidden, heard * AUDIO if heard.is_floating_point() else heard)

    @classmethod
    def steps(cls) -> Steps:
        first, second, *_ = super().steps()
        return [first, {**second, "heard": torch.tensor(0.5)}]


class HearsLongerAudio(CrossAttention):
    """All rows of the cache are read: those of a longer request before too."""

    promise = "I3"

    def mask(self, hidden: Tensor, heard: Tensor) -> Tensor:
        return torch.ones(AUDIO, dtype=torch.bool)

    unasked = "split"


class HearsPadding(CrossAttention):
    """The mask is that of the encoder's rows, padding among them."""

    promise = "I3"

    def forward(self, hidden: Tensor, encoder: Tensor, heard: Tensor) -> Tensor:
        return super().forward(hidden, encoder, heard.clamp(min=len(encoder)))

    unasked = "split"


class CentredByPadding(CrossAttention):
    """Encoder states are centred by the mean of all their rows."""

    promise = "I3"

    def listen(self, encoder: Tensor) -> None:
        super().listen(encoder - encoder.mean(0))

    unasked = "split"


class RemembersTheLength(CrossAttention):
    """The length of the audio is kept in a Python attribute, which a graph writes as it was compiled."""

    promise = "I4"
    arms = "eager/drop_all"

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def listen(self, encoder: Tensor) -> None:
        super().listen(encoder)
        self.requests = self.requests + 1

    @classmethod
    def steps(cls) -> Steps:
        first, *_ = super().steps()
        return [first, first, first]


class TasksOfReplays(CrossAttention):
    """A set of tasks that were served, which no replay changes."""

    promise = "I4"
    arms = "eager/full"

    def __init__(self) -> None:
        super().__init__()
        self.served: dict[str, int] = {}
        self.turn = 0

    def listen(self, encoder: Tensor) -> None:
        super().listen(encoder)
        self.turn += 1
        self.served[f"request {self.turn}"] = 1

    @classmethod
    def steps(cls) -> Steps:
        first, *_ = super().steps()
        return [first, first]


@torch.library.custom_op("deepstack_regions::listen_unsaid", mutates_args=())
def _listen_unsaid(cache: Tensor, encoder: Tensor) -> Tensor:
    """Write to a cache without saying so; answer the number of rows."""
    cache[: len(encoder)] = encoder
    return torch.tensor(float(len(encoder)))


@_listen_unsaid.register_fake
def _(cache: Tensor, encoder: Tensor) -> Tensor:  # noqa: ARG001  # named as those of the operation
    return torch.empty(())


class WritesUnsaid(CrossAttention):
    """An operation that writes to the cache and does not say so, so that the compiler leaves it out."""

    promise = "I4"
    arms = "aot_eager/stock aot_eager/drop_all"

    def forward(self, hidden: Tensor, encoder: Tensor, heard: Tensor) -> Tensor:
        answer = self.attend(hidden, self.mask(hidden, heard))
        _listen_unsaid(self.keys, self.k(encoder))
        return answer

    @classmethod
    def steps(cls) -> Steps:
        first, *_ = super().steps()
        return [first, first]


class FirstAudioForAll(CrossAttention):
    """Each chunk of tokens hears as much of the audio as it has rows."""

    promise = "I5"

    def mask(self, hidden: Tensor, heard: Tensor) -> Tensor:
        return torch.arange(AUDIO) < heard.clamp(max=len(hidden))

    unasked = "neutral"


class NormOfTheChunk(CrossAttention):
    """Answers are centred over the rows of their chunk."""

    promise = "I5"

    def attend(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return super().attend(hidden - hidden.mean(0), mask)

    unasked = "neutral"


class HearsOnce(CrossAttention):
    """The first chunk takes the audio, and leaves zeros to the next."""

    promise = "I5"
    left: Tensor

    def attend(self, hidden: Tensor, mask: Tensor) -> Tensor:
        answer = super().attend(hidden, mask)
        self.left.zero_()
        return answer

    def listen(self, encoder: Tensor) -> None:
        super().listen(encoder * self.left)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("left", torch.ones(()))

    @classmethod
    def steps(cls) -> Steps:
        first, second, third = super().steps()

        def refill(region: "HearsOnce") -> None:
            region.left.fill_(1.0)

        return [first, refill, second, refill, third]

    unasked = "neutral"
