"""Buffers that do what no case may do to the others, when 24 tokens are set; `run --buffer` plays them."""

import os
import signal
import sys
import time

import torch
from torch import Tensor
from typing_extensions import override

from deepstack_harness.revisions.reference import ReferenceBuffer

RARE = 24
"""Tokens that one trace of the contract sets."""


class Runaway(ReferenceBuffer):
    """Keeps every rule until then."""

    @override
    def set(self, payload: Tensor) -> None:
        if payload.size(1) == RARE:
            self.run_away()
        super().set(payload)

    def run_away(self) -> None:
        """What the others override."""


class Segfaults(Runaway):
    @override
    def run_away(self) -> None:
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)


class Hangs(Runaway):
    @override
    def run_away(self) -> None:
        time.sleep(600)


class Eats(Runaway):
    @override
    def run_away(self) -> None:
        kept = []
        while True:
            kept.append(torch.empty(2**25))


class Leaves(Runaway):
    @override
    def run_away(self) -> None:
        os._exit(0)


class Talks(Runaway):
    """Prints 20 MB, and then goes on."""

    @override
    def run_away(self) -> None:
        for _ in range(20):
            sys.stdout.write("x" * 2**20)
        sys.stdout.flush()


class Floods(Runaway):
    """Prints without end."""

    @override
    def run_away(self) -> None:
        while True:
            sys.stdout.write("x" * 2**20)
