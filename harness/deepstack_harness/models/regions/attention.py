"""Attention of one sequence with a cache of keys and values, and mutants of it.

`slots` are the rows of the cache that the tokens of a step are written to, and their positions.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from deepstack_harness.models.regions.program import (
    H,
    RegionProgram,
    Steps,
    again,
    before,
    changed,
    count,
    halves,
    indices,
    rows,
    then,
)

SLOTS, HEADS, DIM = 12, 2, 4


def _cache(seed: int) -> Tensor:
    return rows(SLOTS, seed).view(SLOTS, HEADS, DIM)


class CachedAttention(RegionProgram):
    """Attention over a cache that each step writes in place, causal by slot."""

    right = True
    k_cache: Tensor
    v_cache: Tensor
    rotary: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(H, 3 * H), nn.Linear(H, H)
        self.register_buffer("k_cache", torch.zeros(SLOTS, HEADS, DIM))
        self.register_buffer("v_cache", torch.zeros(SLOTS, HEADS, DIM))
        self.register_buffer("rotary", rows(SLOTS, 9, DIM))

    def forward(self, hidden: Tensor, slots: Tensor) -> Tensor:
        return self.attend(hidden, slots, self.mask(slots))

    def attend(self, hidden: Tensor, slots: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(hidden).view(-1, 3, HEADS, DIM).unbind(1)
        rotation = self.rotation(slots)
        self.write(k * rotation, v, slots)
        return self.read(q * rotation, mask)

    def read(self, q: Tensor, mask: Tensor) -> Tensor:
        keys, values = self.k_cache.transpose(0, 1), self.v_cache.transpose(0, 1)
        answer = scaled_dot_product_attention(q.transpose(0, 1), keys, values, attn_mask=mask)
        return self.out(answer.transpose(0, 1).reshape(-1, H))

    def rotation(self, slots: Tensor) -> Tensor:
        return self.rotary[slots].unsqueeze(1)

    def mask(self, slots: Tensor) -> Tensor:
        return torch.arange(SLOTS) <= slots.unsqueeze(1)

    def write(self, k: Tensor, v: Tensor, slots: Tensor) -> None:
        self.k_cache.index_copy_(0, slots, k)
        self.v_cache.index_copy_(0, slots, v)

    @classmethod
    def steps(cls) -> Steps:
        return [
            {"hidden": rows(4), "slots": indices(0, 1, 2, 3)},
            {"hidden": rows(2, 1), "slots": indices(4, 5)},
            {"hidden": rows(6, 2), "slots": indices(0, 1, 2, 3, 4, 5)},
            {"hidden": rows(1, 3), "slots": indices(6)},
        ]

    @staticmethod
    def neutral(slots: Tensor, region: "CachedAttention", **_: object) -> list[Tensor]:
        """Rows of the cache after the last position: of a longer sequence before, or never written."""
        behind = int(slots.max()) + 1
        return [region.k_cache[behind:], region.v_cache[behind:]]

    split = staticmethod(halves)


LateBias = changed(
    CachedAttention, "LateBias", "I1",
    "A bias of the scores that no call of the warm-up has.",
    lambda *steps: [*steps, {"hidden": rows(2, 4), "slots": indices(7, 8), "bias": rows(2, 5)}],
    arms="eager/drop_all aot_eager/drop_all",
    forward=lambda self, hidden, slots, bias=None: (
        CachedAttention.forward(self, hidden, slots) + (0 if bias is None else bias)
    ),
)  # fmt: skip

ContextAsNumber = changed(
    CachedAttention, "ContextAsNumber", "I1",
    "The length of the context as a Python number of the caller, by which the cache is cut.",
    lambda *steps: [{**step, "context": int(step["slots"].max()) + 1} for step in steps],
    forward=lambda self, hidden, slots, context: self.attend(
        hidden, slots, self.mask(slots) & (torch.arange(SLOTS) >= context - 4)
    ),
)  # fmt: skip

WindowSetLater = changed(
    CachedAttention, "WindowSetLater", "I1",
    "A window that the caller sets on the module behind the warm-up.",
    then(window=2),
    arms="eager/drop_all aot_eager/drop_all",
    starts={"window": None},
    mask=lambda self, slots: CachedAttention.mask(self, slots) & (
        self.window is None or torch.arange(SLOTS) > slots[:, None] - self.window
    ),
)  # fmt: skip

SharedCacheLater = changed(
    CachedAttention, "SharedCacheLater", "I1",
    "Caches of another layer, as a tuple that is None in the warm-up.",
    lambda *steps: [*steps, {"hidden": rows(2, 4), "slots": indices(7, 8), "shared": (_cache(1), _cache(2))}],
    forward=lambda self, hidden, slots, shared=None: (
        CachedAttention.forward(self, hidden, slots)
        + (0 if shared is None else self.out((shared[0] + shared[1]).reshape(SLOTS, H)[slots]))
    ),
)  # fmt: skip


WordsOfSlots = changed(
    CachedAttention, "WordsOfSlots", "I2",
    "Slots read as 32-bit words, every other one of 64 bits, with the dtype of the warm-up (vLLM #37150).",
    lambda first, *_: [first, {"hidden": rows(4, 1), "slots": indices(4, 5, 6, 7).int()}],
    forward=lambda self, hidden, slots: CachedAttention.forward(
        self,
        hidden[: len(words := slots.view(torch.int32)[::2] if slots.dtype is torch.int64 else slots)],
        words.long(),
    ),
)  # fmt: skip


class ReplacedCache(CachedAttention):
    """A cache that is allocated anew between two replays, with what was in it."""

    promise = "I2"
    arms = "eager/full"

    @classmethod
    def steps(cls) -> Steps:
        call = {"hidden": rows(2), "slots": indices(0, 1)}

        def move_on(region: CachedAttention) -> None:
            call["slots"].add_(2)
            region.k_cache, region.v_cache = region.k_cache.clone(), region.v_cache * 2

        return [call, move_on, call]


FreshSlots = changed(
    CachedAttention, "FreshSlots", "I2",
    "Slots in a tensor of their own in each step, which a replay does not read (vLLM #37363).",
    lambda *_: [
        {"hidden": (hidden := rows(2)), "slots": indices(0, 1)}, {"hidden": hidden, "slots": indices(2, 3)}
    ],
    arms="eager/full",
)  # fmt: skip

AttendsToAll = changed(
    CachedAttention, "AttendsToAll", "I3",
    "Every row of the cache is read, whatever was written.",
    unfit_options="split",
    mask=lambda _, slots: torch.ones(len(slots), SLOTS, dtype=torch.bool),
)  # fmt: skip

WholeBlocks = changed(
    CachedAttention, "WholeBlocks", "I3",
    "The mask ends with a block of four, and not with the position.",
    unfit_options="split",
    mask=lambda _, slots: torch.arange(SLOTS) < (slots.unsqueeze(1) // 4 + 1) * 4,
)  # fmt: skip

SoftMask = changed(
    CachedAttention, "SoftMask", "I3",
    "The mask is a number that is added to the scores, and too small a one.",
    unfit_options="split",
    mask=lambda self, slots: torch.where(CachedAttention.mask(self, slots), 0.0, -20.0),
)  # fmt: skip

NextRowToo = changed(
    CachedAttention, "NextRowToo", "I3",
    "The mask ends one row late.",
    unfit_options="split",
    mask=lambda _, slots: torch.arange(SLOTS) <= slots.unsqueeze(1) + 1,
)  # fmt: skip

CountsTokens = changed(
    CachedAttention, "CountsTokens", "I4",
    "The number of calls in Python, which a graph writes as it was in the first call.",
    again(3),
    arms="eager/drop_all eager/full",
    starts={"calls": 0},
    attend=before(count("calls"), CachedAttention.attend),
)  # fmt: skip


class WritesWhenFirst(CachedAttention):
    """A cache that only steps with a flag write, and the graph has the flag of the warm-up."""

    promise = "I4"
    unfit_options = "split"  # a chunk reads before it writes
    starts: ClassVar = {"frozen": False}
    steps_from = then(frozen=True)

    def attend(self, hidden: Tensor, slots: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(hidden).view(-1, 3, HEADS, DIM).unbind(1)
        rotation = self.rotation(slots)
        answer = self.read(q * rotation, mask)
        if not self.frozen:
            self.write(k * rotation, v, slots)
        return answer


HistoryOfReplays = changed(
    CachedAttention, "HistoryOfReplays", "I4",
    "A list of lengths in Python, to which no replay adds.",
    again(2),
    arms="eager/full",
    starts={"lengths": []},
    attend=before(lambda self, _, slots, __: self.lengths.append(len(slots)), CachedAttention.attend),
)  # fmt: skip

RotaryFromZero = changed(
    CachedAttention, "RotaryFromZero", "I5",
    "Rows of the rotary table from the first on, whatever the positions of a chunk are.",
    unfit_options="neutral",
    rotation=lambda self, slots: self.rotary[: len(slots)].unsqueeze(1),
)  # fmt: skip

SlotsFromZero = changed(
    CachedAttention, "SlotsFromZero", "I5",
    "Each chunk is written to the first slots.",
    unfit_options="neutral",
    write=lambda self, k, v, slots: CachedAttention.write(self, k, v, torch.arange(len(slots))),
)  # fmt: skip

MaskOfTheFirstChunk = changed(
    CachedAttention, "MaskOfTheFirstChunk", "I5",
    "The causal mask counts from the first row of a chunk.",
    unfit_options="neutral",
    mask=lambda _, slots: torch.arange(SLOTS) <= torch.arange(len(slots)).unsqueeze(1),
)  # fmt: skip
