"""`granite_full` where all rows must exist: the graph writes back every row that it is handed.

A whole buffer that the graph only reads costs nothing, because Inductor fuses the
slice away and generates the very code of the sliced one.  Once the graph writes to
its levels no row can be left out, whatever the step asks for.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.revisions.granite_full import GraniteFullBuffer


class ClampsLevels(nn.Module):
    """A `protocols.Decoder` that first clamps its levels, in place, to finite values of their dtype.

    What models do whose features may overflow in fp16 (transformers, `T5Block.forward`).
    Finite values, and so the output, stay as they are.
    """

    def __init__(self, decoder: nn.Module) -> None:
        """`decoder` does everything else."""
        super().__init__()
        self.decoder = decoder

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Hidden (n, h), positions (3, n), one (rows, h) per level or None -> (n, h)."""
        for level in payload or ():
            level.clamp_(torch.finfo(level.dtype).min, torch.finfo(level.dtype).max)
        out: Tensor = self.decoder(hidden, positions, payload)
        return out


class GraniteRowsBuffer(GraniteFullBuffer):
    """Whole buffers, written back inside the graph; see `deepstack_harness.revisions.in_graph`."""

    in_graph = ClampsLevels
