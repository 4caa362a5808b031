"""Tampering: code under test that changes, while a case is played, what the harness notes or how it measures.

`Records` compares the harness's records before and after each call of a method, in which nothing of ours
runs: whoever reaches them, through frames, the garbage collector or a patched class, changes them then.  It
also notes calls that hand out the objects of the whole process (`gc.get_objects`, `gc.get_referrers`), which
Python announces to audit hooks.  `Instruments` compares the functions that measure at the end of a case with
those at its beginning.

This finds accidents and plain attacks.  Code that knows this file can undo what it did before it is asked.
"""

import builtins
import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

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
    """The objects that hold the notes of one case, and what changed them while a method ran."""

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
        """Watch the records while a method runs, `call` is its name.

        Raises `NotMeasured` where they changed: whatever comes behind is measured with what the method left.
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
            changed = ", ".join(name for name in before if after.get(name) != before[name])
            if changed:
                self.tampering = f"{call} changed {changed} of the harness, where it notes what it sees"
            elif events:
                self.tampering = f"{call} called {events[0]}, which hands out the records of the harness"
            if changed or events:
                raise NotMeasured(self.tampering)


def _contents(holders: tuple[object, ...]) -> Mapping[str, tuple[int, int]]:
    """Return identity and size of what each record holds, and of what lies in it."""
    return {
        f"{type(holder).__name__}.{name}": (id(value), _size(value))
        for holder in holders
        for name, value in vars(holder).items()
    }


def _size(value: object) -> int:
    if not isinstance(value, _CONTAINERS):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return len(value) + sum(len(each) for each in inner if isinstance(each, _CONTAINERS))


class Instruments:
    """The functions of the modules that measure, as they are at one moment."""

    def __init__(self) -> None:
        """Take them."""
        self._before = _functions()

    def replaced(self) -> str:
        """Return a sentence that names functions which are others now, or empty."""
        now = _functions()
        names = [name for name, function in self._before.items() if now.get(name, function) is not function]
        gone = [name for name in self._before if name not in now]
        changed = ", ".join([*names, *gone][:5])
        return f"{changed} was replaced while the case was played" if changed else ""


def _functions() -> dict[str, object]:
    """Return the functions and classes of the modules that measure, with their methods, by name."""
    found: dict[str, object] = {}
    for module in [name for name in list(sys.modules) if name.startswith(_INSTRUMENTS)]:
        loaded = sys.modules.get(module)
        for name, value in list(vars(loaded).items()) if loaded is not None else ():
            if callable(value):
                found[f"{module}.{name}"] = value
                if isinstance(value, type) and value.__module__ == module:
                    found |= {
                        f"{module}.{name}.{key}": each for key, each in vars(value).items() if callable(each)
                    }
    for owner in (torch, torch.Tensor, builtins, json):
        label = getattr(owner, "__name__", "")
        found |= {f"{label}.{name}": vars(owner).get(name) for name in _USED if name in vars(owner)}
    return found


_USED = (
    "equal", "cat", "zeros", "empty", "clone", "hash", "len", "isinstance", "dumps", "loads", "copy_", "cpu",
    "view", "contiguous", "detach", "masked_fill", "isnan", "flatten", "numpy", "data_ptr",
)  # fmt: skip
"""Functions of torch, Python and json by which rows are told apart."""
