"""Regions whose state is changed by a call, or that no copy can hold, each right or wrong by the promises.

Written from the text of the promises: what a region reads and a later call changes is a side input (I1), and
what it writes is an effect (I4). A region that follows its state is right, whatever holds that state.
"""

import array
import collections
import io
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from cases.selftest.play.state_programs import Counts, Holds, scale_of
from cases.specimens.programs import rows


class Stated(NamedTuple):
    """A region with its steps, and the promises that break: "" for none; `why` nothing can be judged."""

    make: Callable[[], tuple[Any, list[Any]]]
    breaks: str = ""
    names: str = ""
    why: str = ""


class Refuses:
    """An object that refuses copies, as a connection or a memory pool does."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def __deepcopy__(self, _memo: object) -> NoReturn:
        raise TypeError("a pool cannot be copied")


class Ignores(nn.Module):
    """Holds something that no call uses."""

    def __init__(self, held: object) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Registers(nn.Module):
    """Counts by the address of its own object, which a copy does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.key = Refuses()
        self.scales = {id(self.key): torch.ones(())}

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scales[id(self.key)]


class Itself(nn.Module):
    """Refuses to be called as another object than the one that was made."""

    def __init__(self) -> None:
        super().__init__()
        self.me = weakref.ref(self)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        me = self.me()
        assert me is self
        return x * me.scale


class Weak(nn.Module):
    """Reads a scale out of a dictionary that holds its values weakly."""

    def __init__(self) -> None:
        super().__init__()
        self.held = Refuses()
        self.known = weakref.WeakValueDictionary({"scale": self.held})

    def forward(self, x: Tensor) -> Tensor:
        return x * self.known["scale"].scale


@dataclass(frozen=True, slots=True)
class Frozen:
    scale: float = 1.0


@dataclass
class Out:
    """What a region returns, always the same object."""

    rows: Tensor
    count: int = 0


class ReturnsItsOwn(nn.Module):
    """Fills its own object, and returns it."""

    def __init__(self, *, wrong: bool) -> None:
        super().__init__()
        self.out = Out(torch.zeros(3, 8))
        self.wrong = wrong
        self.scale = 1.0

    def forward(self, x: Tensor) -> Out:
        self.out.rows = x * (self.scale if self.wrong else 1)
        return self.out


class WritesThenReads(nn.Module):
    """Adds each call's rows to a state tensor, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(8)

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x.sum(0))
        return x + self.total


class CountsInPython(nn.Module):
    """Counts its calls in a list, and multiplies by that count."""

    def __init__(self, held: Any) -> None:  # noqa: ANN401  # a sequence of one number
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        self.held[0] += 1
        return torch.mul(x, self.held[0])


class Expands(nn.Module):
    """Reads a bias that is one row, expanded: many places of one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.row = torch.ones(1, 8)
        self.bias = self.row.expand(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class ReadsALine(nn.Module):
    """Reads its scale from an open file, at each call the next line."""

    def __init__(self, lines: Any) -> None:  # noqa: ANN401  # a file
        super().__init__()
        self.lines = lines

    def forward(self, x: Tensor) -> Tensor:
        return x * float(self.lines.readline())


class Locks(nn.Module):
    """Takes a lock at its first call, and never gives it back."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        return x * (2 if self.lock.locked() else 3)


def numbers() -> Iterator[float]:
    yield from (1.0, 2.0, 3.0)


def takes_a_pool(x: Tensor, pool: Refuses | None = None) -> Tensor:
    return x if pool is None else x * pool.scale


def twice(region: object) -> tuple[Any, list[Any]]:
    return region, [(rows(3),), (rows(3),)]


def changed(region: object, change: Callable[[Any], object]) -> tuple[Any, list[Any]]:
    return region, [(rows(3),), change, (rows(3),)]


def scale_of_held(region: Any) -> None:  # noqa: ANN401
    region.held.scale = 3.0


def autograd_state() -> tuple[Any, list[Any]]:
    """A tensor that autograd made, which `copy.deepcopy` refuses."""
    region = Ignores(None)
    region.held = (torch.ones(3, requires_grad=True) * 2,)
    return twice(region)


RESTORED = {
    "object that refuses copies": Stated(lambda: twice(Holds(Refuses(), scale_of))),
    "object that refuses copies, changed": Stated(
        lambda: changed(Holds(Refuses(), scale_of), scale_of_held), "I1", "self.held.scale"
    ),
    "argument that refuses copies": Stated(
        lambda: (takes_a_pool, [(rows(3), Refuses()), (rows(3), Refuses())])
    ),
    "argument that refuses copies, another one": Stated(
        lambda: (takes_a_pool, [(rows(3), Refuses()), (rows(3), Refuses(3.0))]), "I1", "pool.scale"
    ),
    "argument that refuses copies, absent at first": Stated(
        lambda: (takes_a_pool, [(rows(3),), (rows(3), Refuses(3.0))]), "I1", "pool"
    ),
    "ids as keys": Stated(lambda: twice(Registers())),
    "ids as keys, written in place": Stated(
        lambda: changed(Registers(), lambda region: next(iter(region.scales.values())).add_(1))
    ),
    "weak reference to itself": Stated(lambda: twice(Itself())),
    "weak reference to itself, changed": Stated(
        lambda: changed(Itself(), lambda region: setattr(region, "scale", 3.0)), "I1", "self.scale"
    ),
    "dictionary of weak values, changed": Stated(
        lambda: changed(Weak(), scale_of_held), why="KeyedRef"
    ),
    "frozen slots, another object": Stated(
        lambda: changed(Holds(Frozen(), scale_of), lambda region: setattr(region, "held", Frozen(3.0))),
        "I1", "self.held.scale",
    ),
    "its own object returned": Stated(lambda: twice(ReturnsItsOwn(wrong=False))),
    "its own object returned, changed": Stated(
        lambda: changed(ReturnsItsOwn(wrong=True), lambda region: setattr(region, "scale", 3.0)),
        "I1", "self.scale",
    ),
    "tensor that accumulates": Stated(lambda: twice(WritesThenReads())),
    "number that accumulates": Stated(lambda: twice(CountsInPython([1.0])), "I1", "self.held[0]"),
    "array of Python": Stated(lambda: twice(Ignores(array.array("d", [1.0])))),
    "bytes that can change": Stated(
        lambda: changed(Holds(bytearray(b"\1"), lambda held: held[0]), lambda r: r.held.__setitem__(0, 3)),
        why="bytearray",
    ),
    "deque that accumulates": Stated(
        lambda: twice(CountsInPython(collections.deque([1.0]))), "I1", "self.held[0]"
    ),
    "expanded tensor, written in place": Stated(
        lambda: changed(Expands(), lambda region: region.row.add_(1))
    ),
    "tensor of autograd": Stated(autograd_state),
    "lock that is taken between two calls": Stated(
        lambda: changed(Locks(), lambda region: region.lock.acquire()), why="lock"
    ),
    "text in memory": Stated(lambda: twice(ReadsALine(io.StringIO("1\n2\n3\n"))), why="readline"),
    "stream of the process": Stated(lambda: twice(Ignores(sys.__stderr__))),
    "count of an iterator": Stated(lambda: twice(Counts(itertools.count(1.0))), "I1", "self.numbers"),
    "generator that no call uses": Stated(lambda: twice(Ignores(numbers())), why="self.held"),
    "generator that each call advances": Stated(lambda: twice(Counts(numbers())), why="self.numbers"),
}  # fmt: skip
