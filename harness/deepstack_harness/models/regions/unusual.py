"""Right regions that are written in rare ways: none of them may be called broken under its arms."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from deepstack_harness.models.regions.program import H, RegionProgram, Steps, again, indices, rows

SLOTS = 12
"""Rows of the cache."""


class _WithCache(RegionProgram):
    """A cache of rows, of which those up to the last slot are averaged."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(H, H)
        self.register_buffer("cache", torch.zeros(SLOTS, H))

    def forward(self, hidden: Tensor, slots: Tensor) -> Any:  # noqa: ANN401  # some return the cache too
        self.store(self.layer(hidden), slots)
        return hidden + self.average(self.cache, slots)

    def store(self, made: Tensor, slots: Tensor) -> None:
        self.cache.index_copy_(0, slots, made)

    def average(self, cache: Tensor, slots: Tensor) -> Tensor:
        live = (torch.arange(SLOTS) <= slots.max()).unsqueeze(1)
        return torch.where(live, cache, 0.0).sum(0) / live.sum()

    @classmethod
    def steps(cls) -> Steps:
        return [
            {"hidden": rows(4), "slots": indices(0, 1, 2, 3)},
            {"hidden": rows(2, 1), "slots": indices(4, 5)},
            {"hidden": rows(3, 2), "slots": indices(0, 1, 2)},
        ]

    @staticmethod
    def neutral(slots: Tensor, region: "_WithCache", **_: object) -> list[Tensor]:
        """Rows after the last slot."""
        return [region.cache[int(slots.max()) + 1 :]]


class StoresByScatter(_WithCache):
    """Writes the cache by `scatter_` with expanded indices."""

    right = True

    def store(self, made: Tensor, slots: Tensor) -> None:
        self.cache.scatter_(0, slots.unsqueeze(1).expand(-1, H), made)


class StoresBySlice(_WithCache):
    """Writes the cache by an assignment to a slice, from the first slot on."""

    right = True

    def forward(self, hidden: Tensor, slots: Tensor) -> Tensor:
        self.cache[: len(slots)] = self.layer(hidden)
        return hidden + self.average(self.cache, slots)

    @classmethod
    def steps(cls) -> Steps:
        return [{"hidden": rows(n, n), "slots": torch.arange(n)} for n in (6, 3, 5)]


class StoresByAnOperation(_WithCache):
    """Writes the cache in an operation of its own that declares it."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all"

    def store(self, made: Tensor, slots: Tensor) -> None:
        _store_said(self.cache, made, slots)


@torch.library.custom_op("deepstack_regions::store_said", mutates_args=("cache",))
def _store_said(cache: Tensor, made: Tensor, slots: Tensor) -> None:
    cache[slots] = made


class AnswersTheCache(_WithCache):
    """Takes the cache as an argument and returns a new one, which the caller uses from then on."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all"
    unfit_options = "neutral"

    def forward(self, hidden: Tensor, slots: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        cache = before.index_copy(0, slots, self.layer(hidden))
        return hidden + self.average(cache, slots), cache

    @classmethod
    def steps(cls) -> Steps:
        return [{**step, "before": rows(SLOTS, n)} for n, step in enumerate(super().steps())]


class RingOfRows(_WithCache):
    """A ring: the place to write is a tensor that the region moves on itself."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all eager/full"
    starts: ClassVar = {"head": torch.zeros((), dtype=torch.int64)}
    head: Tensor

    def forward(self, hidden: Tensor) -> Tensor:  # type: ignore[override]
        places = (self.head + torch.arange(len(hidden))) % SLOTS
        self.cache[places] = self.layer(hidden)
        self.head.add_(len(hidden)).remainder_(SLOTS)
        return hidden + self.cache.mean(0)

    unfit_options = "neutral"

    @classmethod
    def steps(cls) -> Steps:
        call = {"hidden": rows(5)}
        return [call, call, lambda _: call["hidden"].copy_(rows(5, 4)), call]


class StateOutsideBuffers(RegionProgram):
    """A state in a plain attribute, which no `state_dict` has, written in place."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all eager/full"

    def __init__(self) -> None:
        super().__init__()
        self.state = torch.zeros(H)

    def forward(self, hidden: Tensor) -> Tensor:
        self.state.mul_(0.5).add_(hidden.sum(0))
        return hidden * self.state

    @classmethod
    def steps(cls) -> Steps:
        call = {"hidden": rows(4)}
        return [call, lambda region: region.state.neg_(), call, call]


class StatesOfTheCaller(RegionProgram):
    """States in a list of the caller, each written in place."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all eager/full"

    def forward(self, hidden: Tensor, states: list[Tensor]) -> Tensor:
        for state in states:
            state.copy_(state * 0.9 + hidden.mean(0))
            hidden = hidden + state
        return hidden

    @classmethod
    def steps(cls) -> Steps:
        return [{"hidden": rows(3), "states": [torch.ones(H), torch.zeros(H)]}] * 3


class SameOutputBuffer(RegionProgram):
    """A view of one buffer as each result, whose rows after the step are those of longer steps."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all eager/full"
    starts: ClassVar = {"out": torch.zeros(SLOTS, H)}
    out: Tensor

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        self.out[: len(hidden)] = hidden * 2
        return self.out[: len(hidden)], self.out

    @classmethod
    def steps(cls) -> Steps:
        call = {"hidden": rows(4)}
        return [call, lambda _: call["hidden"].copy_(rows(4, 8)), call, {"hidden": rows(2, 1)}]


class MetadataWhenNeeded(RegionProgram):
    """Metadata that is made where there is none, and is the same however often it is made."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all eager/full"

    starts: ClassVar = {"metadata": None}
    metadata: Tensor | None

    def forward(self, hidden: Tensor) -> Tensor:
        if self.metadata is None:
            self.metadata = torch.arange(H).float()
        return hidden * self.metadata

    @classmethod
    def steps(cls) -> Steps:
        call = {"hidden": rows(4)}
        return [call, lambda _: call["hidden"].copy_(rows(4, 2)), call, call]


class PlanOutside(RegionProgram):
    """A plan that the caller makes anew in place when sizes change, as guarded metadata."""

    right = True

    starts: ClassVar = {"plan": {"order": torch.arange(SLOTS), "used": torch.tensor(4)}}
    plan: dict[str, Tensor]

    def forward(self, hidden: Tensor) -> Tensor:
        live = torch.arange(len(hidden)) < self.plan["used"]
        return torch.where(live.unsqueeze(1), hidden[self.plan["order"][: len(hidden)]], 0.0)

    @classmethod
    def steps(cls) -> Steps:
        def again(region: "PlanOutside") -> None:
            region.plan["order"][:4] = indices(3, 1, 0, 2)
            region.plan["used"].fill_(3)

        return [{"hidden": rows(4)}, again, {"hidden": rows(4, 1)}, {"hidden": rows(6, 1)}]


class AnswersViews(RegionProgram):
    """Views of the argument as results, which share memory with it."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all"
    counts = (4, 6, 4)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return hidden[:, : H // 2], hidden.t(), hidden.unsqueeze(0)


class ChangesItsArgument(RegionProgram):
    """Changes its argument in place and returns it."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all eager/full"
    counts = (4,)
    steps_from = again(3)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden[:, 0] = 0.0
        return hidden.mul_(1.5)


class ViewsOfOneTensor(RegionProgram):
    """Arguments that are always views of one tensor, one of which is written."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all"

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        first.add_(1)
        return first.sum(0) + second.sum(0)

    @classmethod
    def steps(cls) -> Steps:
        return [{"first": both[:4], "second": both[2:]} for both in (rows(6), rows(6, 1), rows(6, 2))]


class AlwaysTransposed(RegionProgram):
    """An argument that is never contiguous, read as it lies in memory."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all"

    def forward(self, weight: Tensor, hidden: Tensor) -> Tensor:
        return hidden @ weight.as_strided((H, H), (1, H))

    @classmethod
    def steps(cls) -> Steps:
        return [{"weight": rows(H, seed).t(), "hidden": rows(3 + seed)} for seed in range(3)]


class NoneAlways(RegionProgram):
    """Optional arguments that no call has."""

    right = True

    def forward(self, hidden: Tensor, mask: Tensor | None = None, levels: tuple[Tensor, ...] = ()) -> Tensor:
        hidden = hidden if mask is None else hidden + mask
        return sum(levels, hidden * 3)

    @classmethod
    def steps(cls) -> Steps:
        return [{"hidden": rows(3)}, {"hidden": rows(5), "mask": None}, {"hidden": rows(4), "levels": ()}]


class NumbersInTensors(RegionProgram):
    """Numbers that change, each in a tensor of no dimension."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all"

    def forward(self, hidden: Tensor, scale: Tensor, shift: Tensor, negative: Tensor) -> Tensor:
        return torch.where(negative, -1.0, 1.0) * (hidden * scale + shift)

    @classmethod
    def steps(cls) -> Steps:
        numbers = [(1.0, 0, False), (2.5, 3, True), (0.0, -1, False)]
        return [
            {
                "hidden": rows(4, 3), "scale": torch.tensor(scale), "shift": torch.tensor(shift),
                "negative": torch.tensor(negative),
            }
            for scale, shift, negative in numbers
        ]  # fmt: skip


class CountsInATensor(RegionProgram):
    """Counts its calls in a buffer, and returns a result that depends on the count."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all eager/full"
    counts = (4,)
    steps_from = again(4)
    starts: ClassVar = {"calls": torch.zeros((), dtype=torch.int64)}
    calls: Tensor

    def forward(self, hidden: Tensor) -> Tensor:
        self.calls.add_(1)
        return hidden / self.calls


class BreaksInTheMiddle(RegionProgram):
    """A part that is not compiled lies between two that are."""

    right = True
    arms = "eager/drop_all/breaks aot_eager/drop_all/breaks"
    counts = (4, 4, 6)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(H, H), nn.Linear(H, H)
        self.log: list[float] = []
        self.requires_grad_(False)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.first(hidden)
        self.note(hidden)
        return self.second(hidden)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def note(self, hidden: Tensor) -> None:
        self.log.append(round(float(hidden.abs().max()), 3))


class ModulesInModules(RegionProgram):
    """Modules in lists and dicts, one of them under two names, with tied weights."""

    right = True

    def __init__(self) -> None:
        super().__init__()
        first = nn.Linear(H, H)
        self.blocks = nn.ModuleDict({"a": nn.Sequential(first, nn.GELU()), "b": nn.Linear(H, H)})
        self.again, self.listed = self.blocks["a"], nn.ModuleList([self.blocks["b"]])
        self.tied = nn.Linear(H, H)
        self.tied.weight = first.weight

    def forward(self, hidden: Tensor) -> Tensor:
        for block in (*self.blocks.values(), *self.listed):
            hidden = block(hidden)
        return self.tied(self.again(hidden))

    @classmethod
    def steps(cls) -> Steps:
        def load(region: nn.Module) -> None:
            with torch.no_grad():
                for parameter in region.parameters():
                    parameter.mul_(0.5)

        return [{"hidden": rows(4)}, load, {"hidden": rows(5)}]


@dataclass
class NestedBatch:
    """A batch in an object of the caller's."""

    hidden: Tensor
    lengths: tuple[Tensor, ...]
    bias: Tensor | None = None


class Window(NamedTuple):
    """A pair of tensors with names."""

    above: Tensor
    below: Tensor


class ObjectsAsArguments(RegionProgram):
    """A dataclass, a named tuple and an ordered dict as arguments."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all"

    def forward(self, batch: NestedBatch, window: Window, named: dict[str, Tensor]) -> dict[str, object]:
        kept = (batch.hidden > window.above) & (batch.hidden < window.below)
        total = torch.where(kept, batch.hidden, 0.0) * named["scale"] + batch.lengths[0]
        return OrderedDict(total=total, window=Window(window.below, window.above), count=None)

    @classmethod
    def steps(cls) -> Steps:
        return [
            {
                "batch": NestedBatch(rows(3 + n), (torch.tensor(float(n)),)),
                "window": Window(torch.tensor(-1.0), torch.tensor(1.0 + n)),
                "named": OrderedDict(unused=torch.ones(1), scale=torch.tensor(2.0 + n)),
            }
            for n in range(3)
        ]


class RunningStatistics(RegionProgram):
    """Batch norm in training, which updates running statistics and counts batches."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all eager/full"
    counts = (6,)
    steps_from = again(3)

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(H)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden)


class InBfloat16(_WithCache):
    """Weights and cache in bfloat16, so that another order of rounding shows."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all"
    unfit_options = "neutral"

    def __init__(self) -> None:
        super().__init__()
        self.bfloat16()

    @classmethod
    def steps(cls) -> Steps:
        return [{**step, "hidden": step["hidden"].bfloat16()} for step in super().steps()]


class CallableWithSlots:
    """A callable that is no module, has its table in a slot, and makes a view of it once."""

    __slots__ = ("__dict__", "table")
    right = True
    arms = "eager/drop_all eager/full"
    promise, unfit_options, warm_up, neutral, live, split = "", "", 1, None, None, None

    def __init__(self) -> None:
        self.table = rows(SLOTS)

    @cached_property
    def head(self) -> Tensor:
        return self.table[:4]

    def __call__(self, hidden: Tensor) -> Tensor:
        return hidden + self.head

    @classmethod
    def make(cls) -> tuple[Callable[..., object], Steps]:
        hidden = rows(4, 1)
        region = cls()
        assert len(region.head) == 4
        return region, [{"hidden": hidden}, lambda each: each.table.mul_(2), {"hidden": hidden}]


class PartialOfAFunction(RegionProgram):
    """A partial of a function with a variable of the enclosing one that is written in place."""

    right = True
    arms = "eager/drop_all aot_eager/drop_all eager/full"

    @classmethod
    def make(cls) -> tuple[Callable[..., object], Steps]:
        total, hidden = torch.zeros(H), rows(4)

        def run(hidden: Tensor, scale: float) -> Tensor:
            total.add_(hidden.sum(0))
            return hidden * scale + total

        return partial(run, scale=0.5), [{"hidden": hidden}] * 3
