"""Buffers that end, excuse or disguise themselves instead of keeping the contract."""

import os
import sys
from typing import Any

from torch import Tensor

from deepstack_harness.errors import MachineError, NotMeasured
from deepstack_harness.revisions.reference import ReferenceBuffer


class Exits(ReferenceBuffer):
    def get(self, tokens: int) -> tuple[Tensor, ...]:
        sys.exit(0)


class ExitsAtOnce(ReferenceBuffer):
    def __init__(self, *_: Any, **__: Any) -> None:
        raise SystemExit(0)


class EndsTheGenerator(ReferenceBuffer):
    def get(self, tokens: int) -> tuple[Tensor, ...]:
        raise GeneratorExit


class RaisesItsOwn(ReferenceBuffer):
    def get(self, tokens: int) -> tuple[Tensor, ...]:
        class Own(BaseException):
            pass

        raise Own("mine")


class BlamesTheMachine(ReferenceBuffer):
    def get(self, tokens: int) -> tuple[Tensor, ...]:
        raise MachineError("no GPU")


class SaysNotMeasured(ReferenceBuffer):
    def get(self, tokens: int) -> tuple[Tensor, ...]:
        raise NotMeasured("nothing to see")


class Dies(ReferenceBuffer):
    def get(self, tokens: int) -> tuple[Tensor, ...]:
        os._exit(0)
