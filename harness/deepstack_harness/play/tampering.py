"""Tampering: code under test that changes, while a case is played, what the harness notes or how it measures.

`Records` compares the harness's records before and after each call of a method. Nothing of the harness runs
during such a call, so a record that is different afterwards was changed by code that reached it: through
frames, the garbage collector or a patched class. It also notes calls that return the objects of the whole
process (`gc.get_objects`, `gc.get_referrers`), which Python announces to audit hooks. `Instruments` compares
the functions that measure at the end of a case with those at its beginning.

This finds accidents and simple attacks. Code that knows this file can restore what it changed before the call
returns.
"""

import builtins
import json
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from operator import is_
from types import MappingProxyType
from typing import Any

import torch

from deepstack_harness.errors import NotMeasured

_EVENTS = frozenset({"gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames"})
_CONTAINERS = (list, dict, set, deque, tuple)
_INSTRUMENTS = (
    "deepstack_harness.play.", "deepstack_harness.contract.observation", "deepstack_harness.workers.child",
)  # fmt: skip
_CALLS: list[Callable[[str], None]] = []
"""Takes the names of events while a method runs; at most one."""


@cache
def _listen() -> None:
    """Add an audit hook to this process, for good: Python has no way to take one out."""
    sys.addaudithook(lambda event, _: _CALLS[-1](event) if event in _EVENTS and _CALLS else None)


class Records:
    """The objects with the notes of one case, and a sentence about a method that changed them."""

    def __init__(self) -> None:
        """Begin without a record."""
        _listen()
        self._holders: tuple[object, ...] = ()
        self.tampering = ""
        """What a method did to the records, in words; the case ends there."""

    def add(self, *holders: object) -> None:
        """Watch the attributes of these objects."""
        self._holders = (*self._holders, *holders)

    @contextmanager
    def untouched(self, call: str) -> Iterator[None]:
        """Watch the records while a method runs; `call` is its name.

        Raises `NotMeasured` where they changed: later measurements would use what the method left.
        """
        if _CALLS:  # inside a call of the same kind
            yield
            return
        before, events = _contents(self._holders), list[str]()
        _CALLS.append(events.append)
        try:
            yield
        finally:
            _CALLS[:] = []
            after = _contents(self._holders)
            changed = ", ".join(
                f"{type(self._holders[number]).__name__}.{name}"
                for (number, name), value in before.items()
                if after.get((number, name)) != value
            )
            if changed:
                self.tampering = f"{call} changed {changed} of the harness, where it notes what it sees"
            elif events:
                self.tampering = f"{call} called {events[0]}, which hands out the records of the harness"
            if changed or events:
                raise NotMeasured(self.tampering)


def _contents(holders: tuple[object, ...]) -> Mapping[tuple[int, str], tuple[int, int]]:
    """Return identity and size of what each record holds, and of what lies in it, by holder and attribute."""
    return {
        (number, name): (id(value), _size(value) if isinstance(value, _CONTAINERS) else 0)
        for number, holder in enumerate(holders)
        for name, value in vars(holder).items()
    }


def _size(value: Collection[object]) -> int:
    inner = value.values() if isinstance(value, dict) else value
    if not any(issubclass(kind, _CONTAINERS) for kind in set(map(type, inner))):
        return len(value)  # the usual case: a long trace has a thousand records, none of them a container
    return len(value) + sum([len(member) for member in inner if isinstance(member, _CONTAINERS)])


class Instruments:
    """The functions of the modules that measure, as they are at one moment."""

    def __init__(self) -> None:
        """Take them."""
        self._before = {owner: names.copy() for owner, names in _namespaces()}

    def replaced(self) -> str:
        """Return a sentence that names the functions that were replaced since, or an empty string."""
        if getattr(sys.modules.get(__name__), "Instruments", None) is not type(self):
            # Code under test ran before the case too, where its interface was looked at.
            return f"{__name__} was taken out of sys.modules, or replaced"
        now = dict(_namespaces())
        changed = [
            f"{owner}.{name}"
            for owner, before in self._before.items()
            if not _same(before, after := now.get(owner, {}))
            for name, value in before.items()
            if callable(value) and after.get(name) is not value
        ]
        return f"{', '.join(changed[:5])} was replaced while the case was played" if changed else ""


def _same(before: Mapping[str, object], after: Mapping[str, object]) -> bool:
    """Return whether two namespaces hold the same objects in one order, without a call of their own `==`."""
    return [*before] == [*after] and all(map(is_, before.values(), after.values()))


def _namespaces() -> Iterator[tuple[str, dict[str, Any] | MappingProxyType[str, Any]]]:
    """Yield the names of the modules that measure, and of each of their classes, as they are at the moment.

    Twice for each case, which may take 10 ms: 0.2 ms to find them, and less to compare or copy them.
    """
    names_of_ours = [name for name in list(sys.modules) if "deepstack_" in name]  # of thousands
    for module in filter(lambda name: name.startswith(_INSTRUMENTS), names_of_ours):
        loaded = sys.modules.get(module)
        if loaded is None:
            continue
        yield module, vars(loaded)
        for name, value in list(vars(loaded).items()):
            if isinstance(value, type) and value.__module__ == module:
                yield f"{module}.{name}", vars(value)
    for owner in (torch, torch.Tensor, builtins, json):
        names = vars(owner)
        yield owner.__name__, {name: names[name] for name in _USED if name in names}


_USED = (
    "equal", "cat", "zeros", "empty", "clone", "hash", "len", "isinstance", "dumps", "loads", "copy_", "cpu",
    "view", "contiguous", "detach", "masked_fill", "isnan", "flatten", "numpy", "data_ptr",
)  # fmt: skip
"""Functions of torch, Python and json with which rows are compared."""
