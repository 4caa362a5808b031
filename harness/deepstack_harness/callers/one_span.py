"""A caller that takes the visual tokens of a step for one contiguous span (mlx-vlm 2296)."""

import torch
from torch import Tensor

from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.protocols import Buffer


class TakesOneSpan(Engine):
    """Features of several requests in one step: those behind the first gap are taken from the wrong rows."""

    def set(self, buffer: Buffer, payload: Tensor) -> None:
        """Give the visual tokens the rows that follow the first of them without a gap."""
        visual = payload.abs().sum((0, 2)).nonzero().flatten()
        mixed = torch.zeros_like(payload)
        if len(visual):
            first = int(visual[0])
            mixed[:, visual] = payload[:, first : first + len(visual)]
        buffer.set(mixed)
