"""Buffers whose methods end the process that calls them, or raise what is none of their business."""

import os
import signal
import sys
import threading

import torch
from torch import Tensor

from deepstack_harness.errors import MachineError, OutOfMemory, StepUnavailable


class Buffer:
    """A buffer without a fault, as long as `get` is asked for other counts than 9."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = capacity
        self.rows = torch.zeros(levels, capacity, hidden, dtype=dtype, device=device)

    def get(self, tokens: int) -> tuple[Tensor, ...]:
        if tokens == 9:
            self.misbehave()
        return tuple(self.rows[:, :tokens])

    def set(self, payload: Tensor) -> None:
        self.rows.zero_()
        self.rows[:, : payload.shape[1]] = payload

    def clear(self, tokens: int) -> None:
        self.rows.zero_()

    def resize(self, tokens: int) -> None:
        raise StepUnavailable("it has no resize")

    def misbehave(self) -> None:
        """Do nothing wrong."""


class Segfaults(Buffer):
    def misbehave(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class Leaves(Buffer):
    def misbehave(self) -> None:
        os._exit(0)


class Hangs(Buffer):
    def misbehave(self) -> None:
        threading.Event().wait()


class TakesModulesAway(Buffer):
    def misbehave(self) -> None:
        sys.modules.clear()


class AsksToExit(Buffer):
    def misbehave(self) -> None:
        sys.exit(0)


class RaisesOurError(Buffer):
    def misbehave(self) -> None:
        raise MachineError("not my machine")


class SaysThatItHasNoStep(Buffer):
    def misbehave(self) -> None:
        raise StepUnavailable("skip me")


class SaysThatMemoryIsUsedUp(Buffer):
    def misbehave(self) -> None:
        raise OutOfMemory("not my memory")


class NamesItsErrorAsTorchDoes(Buffer):
    def misbehave(self) -> None:
        raise type("OutOfMemoryError", (Exception,), {})("not my memory")
