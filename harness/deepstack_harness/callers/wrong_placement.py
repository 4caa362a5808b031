"""Callers that make the buffer in another dtype or on another device than the hidden states.

vLLM states neither when it makes its buffers, so that the ambient ones are used: float32 on the CPU before
the model's own are in force (vllm 44384), and meta inside the context that keeps a skipped vision tower
from being allocated (vllm 49384).
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar, cast

import torch
from torch import Tensor
from typing_extensions import override

from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.optional_members import follow
from deepstack_harness.contract.protocols import Buffer, BufferFactory, Inputs, Lane, Profile
from deepstack_harness.contract.trace import Step


class MadeElsewhere(Engine):
    """An engine that makes the buffer in `dtype` and on `device`; None means that of the hidden states.

    Before each step it shows the hidden states to a `deepstack_harness.contract.protocols.FollowsTensors`,
    such as `deepstack_harness.revisions.qwen.Pr44384Buffer`.
    """

    dtype: ClassVar[torch.dtype | None] = None
    device: ClassVar[str | None] = None

    @override
    def buffer(self, make: BufferFactory, sizes: Profile) -> Buffer:
        """Make the buffer in the class's dtype and on its device."""
        device = sizes.device if self.device is None else torch.device(self.device)
        self._made = super().buffer(make, replace(sizes, dtype=self.dtype or sizes.dtype, device=device))
        return self._made

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """Show hidden (P, h) to the buffer, then run the outer forward -> (P, h)."""
        follow(self._made, inputs.hidden)
        return super().forward(lane, inputs, step)


class MadeInFloat32OnCpu(MadeElsewhere):
    """An engine that makes the buffer under torch's defaults, before the model's own are in force."""

    dtype = torch.float32
    device = "cpu"


class MadeInBfloat16(MadeElsewhere):
    """An engine that makes the buffer in bfloat16."""

    dtype = torch.bfloat16


class MadeInFloat64(MadeElsewhere):
    """An engine that makes the buffer in float64."""

    dtype = torch.float64


class MadeOnMeta(MadeElsewhere):
    """An engine that makes the buffer on meta, whose tensors have no storage."""

    device = "meta"


class WithoutVisionTower(MadeOnMeta):
    """An engine that skips the vision tower, and makes the buffer on meta with it (vllm 49384).

    A factory with a `vision` argument is told instead (vLLM #49397), and makes no buffer that could be
    on meta.
    """

    @override
    def buffer(self, make: BufferFactory, sizes: Profile) -> Buffer:
        """Make the buffer on meta, or let the factory make none."""
        if "vision" not in inspect.signature(make).parameters:
            return super().buffer(make, sizes)
        without = partial(cast(Callable[..., Buffer], make), vision=False)
        self._made = Engine.buffer(self, without, sizes)
        return self._made
