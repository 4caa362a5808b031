"""Buffers that a hunt has to survive: each goes wrong in a resize below its capacity, and nowhere else."""

import os
import signal
import time

import torch
from typing_extensions import override

from deepstack_harness.revisions.reference import ReferenceBuffer


class Misbehaving(ReferenceBuffer):
    """Keeps every rule until it is made smaller."""

    @override
    def resize(self, tokens: int) -> None:
        if 0 <= tokens < self.capacity:
            self.misbehave()
        super().resize(tokens)

    def misbehave(self) -> None:
        """What the others override."""


class Hangs(Misbehaving):
    @override
    def misbehave(self) -> None:
        time.sleep(600)


class Crashes(Misbehaving):
    @override
    def misbehave(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class EatsMemory(Misbehaving):
    @override
    def misbehave(self) -> None:
        self._eaten = [torch.empty(2**28) for _ in range(64)]


class Floods(Misbehaving):
    @override
    def misbehave(self) -> None:
        print("x" * 2**20)


class NotOfOneRow(Misbehaving):
    """Its constructor refuses a capacity of 1."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        if capacity == 1:
            raise RuntimeError("no room today")
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
