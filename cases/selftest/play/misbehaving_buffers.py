"""Buffers that keep every rule until a certain call, and then end, exhaust or excuse their process.

`misbehaving("Hangs", "get 9")` names the buffer that hangs in `get(9)` as MODULE:CLASS, to be imported in a
worker too.  The call is `get N`, `set N`, or `resize`, which is a resize below the capacity.
"""

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import NoReturn

import torch
from torch import Tensor
from typing_extensions import override

from cases.selftest.workers.misbehaving import crash, flood_always, hang
from deepstack_harness.errors import MachineError, NotMeasured, OutOfMemory, StepUnavailable
from deepstack_harness.models.reference import ReferenceBuffer


def segfault() -> None:
    print("last words", flush=True)
    crash()


def eat() -> None:
    blocks = []
    while True:  # in few pieces: while a case is played, torch.empty fills what it returns
        blocks.append(torch.empty(2**28))


def talk() -> None:
    """Print 20 MB, and go on."""
    for _ in range(20):
        sys.stdout.write("x" * 2**20)
    sys.stdout.flush()


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def misbehave() -> NoReturn:
        raise error

    return misbehave


BEHAVIOURS: Mapping[str, Callable[[], object]] = {
    "Behaves": lambda: None,
    "Segfaults": segfault,
    "Leaves": lambda: os._exit(0),
    "Hangs": hang,
    "Eats": eat,
    "Floods": flood_always,
    "Talks": talk,
    "TakesModulesAway": sys.modules.clear,
    "AsksToExit": lambda: sys.exit(0),
    "EndsTheGenerator": raising(GeneratorExit()),
    "RaisesItsOwn": raising(type("Own", (BaseException,), {})("mine")),
    "RaisesOurError": raising(MachineError("not my machine")),
    "SaysNotMeasured": raising(NotMeasured("nothing to see")),
    "SaysThatItHasNoStep": raising(StepUnavailable("skip me")),
    "SaysThatMemoryIsUsedUp": raising(OutOfMemory("not my memory")),
    "NamesItsErrorAsTorchDoes": raising(type("OutOfMemoryError", (Exception,), {})("not my memory")),
}


class Misbehaving(ReferenceBuffer):
    """Calls `misbehave` at the start of `call`."""

    call = ""

    def misbehave(self) -> None:
        """Do what the class is named for."""

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        self._enter(f"get_{tokens}")
        return super().get(tokens)

    @override
    def set(self, payload: Tensor) -> None:
        self._enter(f"set_{payload.size(1)}")
        super().set(payload)

    @override
    def resize(self, tokens: int) -> None:
        if 0 <= tokens < self.capacity:
            self._enter("resize")
        super().resize(tokens)

    def _enter(self, call: str) -> None:
        if call == self.call:
            self.misbehave()


def misbehaving(behaviour: str, call: str) -> str:
    """Return the name MODULE:CLASS of a buffer with this behaviour in a call such as "get 9" or "resize"."""
    assert behaviour in BEHAVIOURS
    return f"{__name__}:{behaviour}_in_{call.replace(' ', '_')}"


@cache
def __getattr__(name: str) -> type[Misbehaving]:
    """Return the class of a name that `misbehaving` made."""
    behaviour, _, call = name.partition("_in_")
    if behaviour not in BEHAVIOURS or not call:
        raise AttributeError(name)
    misbehave = BEHAVIOURS[behaviour]
    return type(name, (Misbehaving,), {"call": call, "misbehave": lambda _: misbehave()})


class WithoutResize(ReferenceBuffer):
    @override
    def resize(self, tokens: int) -> None:
        raise StepUnavailable("it has no resize")


class NotOfOneRow(ReferenceBuffer):
    """Its constructor refuses a capacity of 1."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        if capacity == 1:
            raise RuntimeError("no room today")
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)


class ExitsAtOnce(ReferenceBuffer):
    def __init__(self, *_: object, **__: object) -> None:
        sys.exit(0)


class Textless(Exception):
    """Exception whose text and representation end the code that reads them."""

    @override
    def __str__(self) -> str:
        raise SystemExit(3)

    @override
    def __repr__(self) -> str:
        raise RuntimeError("no representation either")


class RejectsWithoutText(ReferenceBuffer):
    """It breaks no rule: what it raises, `reference` raises too."""

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        try:
            return super().get(tokens)
        except ValueError:
            raise Textless from None

    @override
    def set(self, payload: Tensor) -> None:
        try:
            super().set(payload)
        except ValueError:
            raise Textless from None


class SharesMemory(ReferenceBuffer):
    """Its get returns tensors in shared memory."""

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        levels = super().get(tokens) or ()
        return tuple(level.clone().share_memory_() for level in levels)  # type: ignore[no-untyped-call]
