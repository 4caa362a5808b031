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
from types import ModuleType
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
        before = [(holder, vars(holder).copy(), _sizes(holder)) for holder in self._holders]
        events = list[str]()
        _CALLS.append(events.append)
        try:
            yield
        finally:
            _CALLS[:] = []
            changed = ", ".join(
                f"{type(holder).__name__}.{name}"
                for holder, names, sizes in before
                for name in _changed(names, vars(holder), sizes, _sizes(holder))
            )
            if changed:
                self.tampering = f"{call} changed {changed} of the harness, where it notes what it sees"
            elif events:
                self.tampering = f"{call} called {events[0]}, which hands out the records of the harness"
            if changed or events:
                raise NotMeasured(self.tampering)


def _sizes(holder: object) -> dict[str, int]:
    """Return the size of each record that is a container, with that of the containers in it."""
    return {name: _size(value) for name, value in vars(holder).items() if isinstance(value, _CONTAINERS)}


def _size(value: Collection[object]) -> int:
    inner = value.values() if isinstance(value, dict) else value
    if not any(issubclass(kind, _CONTAINERS) for kind in set(map(type, inner))):
        return len(value)  # the usual case: a long trace has a thousand records, none of them a container
    return len(value) + sum([len(member) for member in inner if isinstance(member, _CONTAINERS)])


def _changed(
    before: Mapping[str, object],
    after: Mapping[str, object],
    sizes: Mapping[str, int],
    sizes_after: Mapping[str, int],
) -> Iterator[str]:
    """Yield the names that are other objects than before, or have another size; not those that were added.

    Without a call of the objects' own `==`.
    """
    if [*before] == [*after] and all(map(is_, before.values(), after.values())) and sizes == sizes_after:
        return
    for name, value in before.items():
        if name not in after or after[name] is not value or sizes.get(name) != sizes_after.get(name):
            yield name


class Instruments:
    """The functions of the modules that measure, as they are at one moment."""

    def __init__(self) -> None:
        """Take them."""
        self._modules = {
            name: module
            for name in list(sys.modules)  # thousands
            if "deepstack_" in name and name.startswith(_INSTRUMENTS) and (module := sys.modules.get(name))
        }
        self._before = [
            (owner, names.copy(), names)
            for module in self._modules.values()
            for owner, names in _names(module)
        ]
        self._used = _used()

    def replaced(self) -> str:
        """Return a sentence that names the functions that were replaced since, or an empty string."""
        if getattr(sys.modules.get(__name__), "Instruments", None) is not type(self):
            # Code under test ran before the case too, where its interface was looked at.
            return f"{__name__} was taken out of sys.modules, or replaced"
        changed = [name for name, module in self._modules.items() if sys.modules.get(name) is not module]
        changed += [
            f"{owner}.{name}".lstrip(".")
            for owner, before, after in (*self._before, ("", self._used, _used()))
            for name in _changed(before, after, {}, {})
            if callable(before[name])
        ]
        return f"{', '.join(changed[:5])} was replaced while the case was played" if changed else ""


@cache
def _names(module: ModuleType) -> list[tuple[str, Any]]:
    """Return the live names of a module and of each of its classes.

    Cached: they are needed twice in a case, which may take 10 ms.  A class that is replaced by another one is
    a name of the module that was replaced.
    """
    owners = [value for value in vars(module).values() if isinstance(value, type)]
    ours = [owner for owner in owners if owner.__module__ == module.__name__]
    return [
        (module.__name__, vars(module)),
        *((f"{module.__name__}.{kind.__name__}", vars(kind)) for kind in ours),
    ]


def _used() -> dict[str, object]:
    """Return what is used of torch, Python and json, by its name."""
    return {
        f"{owner.__name__}.{name}": vars(owner)[name]
        for owner in (torch, torch.Tensor, builtins, json)
        for name in _USED
        if name in vars(owner)
    }


_USED = (
    "equal", "cat", "zeros", "empty", "clone", "hash", "len", "isinstance", "dumps", "loads", "copy_", "cpu",
    "view", "contiguous", "detach", "masked_fill", "isnan", "flatten", "numpy", "data_ptr",
)  # fmt: skip
"""Functions of torch, Python and json with which rows are compared."""
