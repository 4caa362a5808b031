"""Engines in which the buffer is made under another dtype or device than the hidden states have.

vLLM gives neither where it makes its buffers, so they follow the ambient ones:
float32 on the CPU before the model's own are in force (vllm 44384), meta inside the
context that keeps a skipped vision tower from being allocated (vllm 49384).
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
from deepstack_harness.contract.protocols import Buffer, BufferFactory, Inputs, Lane, Profile
from deepstack_harness.contract.trace import Step


class MadeElsewhere(Engine):
    """Makes the buffer in `dtype` and on `device`; None where that of the hidden states is meant.

    Before each get, a buffer with a `follow` is shown the hidden states, as
    `deepstack_harness.revisions.pr44384` asks for.
    """

    dtype: ClassVar[torch.dtype | None] = None
    device: ClassVar[str | None] = None

    @override
    def buffer(self, make: BufferFactory, sizes: Profile) -> Buffer:
        """Make it elsewhere."""
        device = sizes.device if self.device is None else torch.device(self.device)
        self._made = super().buffer(make, replace(sizes, dtype=self.dtype or sizes.dtype, device=device))
        return self._made

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        """As the engine; answers (P, h)."""
        follow = getattr(self._made, "follow", None)
        if follow is not None:
            follow(inputs.hidden)
        return super().forward(lane, inputs, step)


class MadeInFloat32OnCpu(MadeElsewhere):
    """Torch's defaults, as before the model's dtype and device are in force."""

    dtype = torch.float32
    device = "cpu"


class MadeInBfloat16(MadeElsewhere):
    """In half the width."""

    dtype = torch.bfloat16


class MadeInFloat64(MadeElsewhere):
    """In twice the width."""

    dtype = torch.float64


class MadeOnMeta(MadeElsewhere):
    """On the device whose tensors have no storage."""

    device = "meta"


class WithoutVisionTower(MadeOnMeta):
    """The vision tower is skipped; what puts it on meta lies around the buffer as well (vllm 49384).

    A factory with a `vision` argument is told instead (vLLM #49397), and makes no
    buffer that could be on meta.
    """

    @override
    def buffer(self, make: BufferFactory, sizes: Profile) -> Buffer:
        """On meta, or none at all."""
        if "vision" not in inspect.signature(make).parameters:
            return super().buffer(make, sizes)
        without = partial(cast(Callable[..., Buffer], make), vision=False)
        self._made = Engine.buffer(self, without, sizes)
        return self._made
