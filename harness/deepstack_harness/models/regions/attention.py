"""Attention of one sequence with a cache of keys and values, and mutants of it.

`slots` are the rows of the cache that the tokens of a step are written to, and their positions.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from deepstack_harness.models.regions.program import H, RegionProgram, Steps, at, halves, rows

SLOTS, HEADS, DIM = 12, 2, 4


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
            {"hidden": rows(4), "slots": at(0, 1, 2, 3)},
            {"hidden": rows(2, 1), "slots": at(4, 5)},
            {"hidden": rows(6, 2), "slots": at(0, 1, 2, 3, 4, 5)},
            {"hidden": rows(1, 3), "slots": at(6)},
        ]

    @staticmethod
    def neutral(slots: Tensor, region: "CachedAttention", **_: object) -> list[Tensor]:
        """Rows of the cache behind the last position: of a longer sequence before, or never written."""
        behind = int(slots.max()) + 1
        return [region.k_cache[behind:], region.v_cache[behind:]]

    @staticmethod
    def split(hidden: Tensor, **others: Tensor) -> list[dict[str, Any]]:
        """The chunks of a prefill."""
        return halves(count=len(hidden), hidden=hidden, **others)


class LateBias(CachedAttention):
    """A bias of the scores that no call of the warm-up has."""

    promise = "I1"
    arms = "eager/drop_all aot_eager/drop_all"

    def forward(self, hidden: Tensor, slots: Tensor, bias: Tensor | None = None) -> Tensor:
        answer = super().forward(hidden, slots)
        return answer if bias is None else answer + bias

    @classmethod
    def steps(cls) -> Steps:
        return [*super().steps(), {"hidden": rows(2, 4), "slots": at(7, 8), "bias": rows(2, 5)}]


class ContextAsNumber(CachedAttention):
    """The length of the context as a Python number of the caller, by which the cache is cut."""

    promise = "I1"

    def forward(self, hidden: Tensor, slots: Tensor, context: int) -> Tensor:  # type: ignore[override]
        mask = self.mask(slots) & (torch.arange(SLOTS) >= context - 4)
        return self.attend(hidden, slots, mask)

    @classmethod
    def steps(cls) -> Steps:
        return [{**step, "context": int(step["slots"].max()) + 1} for step in super().steps()]


class WindowSetLater(CachedAttention):
    """A window that the caller sets on the module behind the warm-up."""

    promise = "I1"
    arms = "eager/drop_all aot_eager/drop_all"

    def __init__(self) -> None:
        super().__init__()
        self.window: int | None = None

    def mask(self, slots: Tensor) -> Tensor:
        mask = super().mask(slots)
        return mask if self.window is None else mask & (torch.arange(SLOTS) > slots[:, None] - self.window)

    @classmethod
    def steps(cls) -> Steps:
        first, *rest = super().steps()
        return [first, lambda region: setattr(region, "window", 2), *rest]


class SharedCacheLater(CachedAttention):
    """Caches of another layer, as a tuple that is None in the warm-up."""

    promise = "I1"

    def forward(self, hidden: Tensor, slots: Tensor, shared: tuple[Tensor, Tensor] | None = None) -> Tensor:
        answer = super().forward(hidden, slots)
        if shared is not None:
            answer = answer + self.out((shared[0] + shared[1]).reshape(SLOTS, H)[slots])
        return answer

    @classmethod
    def steps(cls) -> Steps:
        caches = (rows(SLOTS, 1).view(SLOTS, HEADS, DIM), rows(SLOTS, 2).view(SLOTS, HEADS, DIM))
        return [*super().steps(), {"hidden": rows(2, 4), "slots": at(7, 8), "shared": caches}]


class WordsOfSlots(CachedAttention):
    """Slots read as 32-bit words, every other one of 64 bits, with the dtype of the warm-up (vLLM #37150)."""

    promise = "I2"

    def forward(self, hidden: Tensor, slots: Tensor) -> Tensor:
        words = slots.view(torch.int32)[::2] if slots.dtype is torch.int64 else slots
        return super().forward(hidden[: len(words)], words.long())

    @classmethod
    def steps(cls) -> Steps:
        return [
            {"hidden": rows(4), "slots": at(0, 1, 2, 3)},
            {"hidden": rows(4, 1), "slots": at(4, 5, 6, 7).int()},
        ]


class ReplacedCache(CachedAttention):
    """A cache that is allocated anew between two replays, with what was in it."""

    promise = "I2"
    arms = "eager/full"

    @classmethod
    def steps(cls) -> Steps:
        call = {"hidden": rows(2), "slots": at(0, 1)}

        def move_on(region: CachedAttention) -> None:
            call["slots"].add_(2)
            region.k_cache, region.v_cache = region.k_cache.clone(), region.v_cache * 2

        return [call, move_on, call]


class FreshSlots(CachedAttention):
    """Slots in a tensor of their own in each step, which a replay does not read (vLLM #37363)."""

    promise = "I2"
    arms = "eager/full"

    @classmethod
    def steps(cls) -> Steps:
        hidden = rows(2)
        return [{"hidden": hidden, "slots": at(0, 1)}, {"hidden": hidden, "slots": at(2, 3)}]


class AttendsToAll(CachedAttention):
    """Every row of the cache is read, whatever was written."""

    promise = "I3"

    def mask(self, slots: Tensor) -> Tensor:
        return torch.ones(len(slots), SLOTS, dtype=torch.bool)

    unasked = "split"


class WholeBlocks(CachedAttention):
    """The mask ends with a block of four, and not with the position."""

    promise = "I3"

    def mask(self, slots: Tensor) -> Tensor:
        return torch.arange(SLOTS) < (slots.unsqueeze(1) // 4 + 1) * 4

    unasked = "split"


class SoftMask(CachedAttention):
    """The mask is a number that is added to the scores, and too small a one."""

    promise = "I3"

    def mask(self, slots: Tensor) -> Tensor:
        return torch.where(super().mask(slots), 0.0, -20.0)

    unasked = "split"


class NextRowToo(CachedAttention):
    """The mask ends one row late."""

    promise = "I3"

    def mask(self, slots: Tensor) -> Tensor:
        return torch.arange(SLOTS) <= slots.unsqueeze(1) + 1

    unasked = "split"


class CountsTokens(CachedAttention):
    """The number of calls in Python, which a graph writes as it was in the first call."""

    promise = "I4"
    arms = "eager/drop_all eager/full"

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, hidden: Tensor, slots: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(hidden, slots)

    @classmethod
    def steps(cls) -> Steps:
        first, *_ = super().steps()
        return [first, first, first]


class WritesWhenFirst(CachedAttention):
    """A cache that only steps with a flag write, and the flag of the warm-up is kept."""

    promise = "I4"
    unasked = "split"  # a chunk reads before it writes

    def __init__(self) -> None:
        super().__init__()
        self.frozen = False

    def attend(self, hidden: Tensor, slots: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(hidden).view(-1, 3, HEADS, DIM).unbind(1)
        rotation = self.rotation(slots)
        answer = self.read(q * rotation, mask)
        if not self.frozen:
            self.write(k * rotation, v, slots)
        return answer

    @classmethod
    def steps(cls) -> Steps:
        first, *rest = super().steps()
        return [first, lambda region: setattr(region, "frozen", True), *rest]


class HistoryOfReplays(CachedAttention):
    """A list of lengths in Python, to which no replay adds."""

    promise = "I4"
    arms = "eager/full"

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def forward(self, hidden: Tensor, slots: Tensor) -> Tensor:
        self.lengths.append(len(slots))
        return super().forward(hidden, slots)

    @classmethod
    def steps(cls) -> Steps:
        first, *_ = super().steps()
        return [first, first]


class RotaryFromZero(CachedAttention):
    """Rows of the rotary table from the first on, whatever the positions of a chunk are."""

    promise = "I5"

    def rotation(self, slots: Tensor) -> Tensor:
        return self.rotary[: len(slots)].unsqueeze(1)

    unasked = "neutral"


class SlotsFromZero(CachedAttention):
    """Each chunk is written to the first slots."""

    promise = "I5"

    def write(self, k: Tensor, v: Tensor, slots: Tensor) -> None:
        super().write(k, v, torch.arange(len(slots)))

    unasked = "neutral"


class MaskOfTheFirstChunk(CachedAttention):
    """The causal mask counts from the first row of a chunk."""

    promise = "I5"

    def mask(self, slots: Tensor) -> Tensor:
        return torch.arange(SLOTS) <= torch.arange(len(slots)).unsqueeze(1)

    unasked = "neutral"
