"""The buffer of Granite 4 Vision in vLLM: whole levels (#40282), sliced ones (#40917), and one of our own.

Upstream has no get, set or clear.  `Granite4VisionForConditionalGeneration` does their work inside
its `embed_input_ids` (set) and `forward` (get before the language model, clear after it).  Here a
buffer has per level a tensor (capacity, hidden), which never grows.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.errors import StepUnavailable


class GraniteSlicedBuffer:
    """Granite since vLLM #40917, in 0.21.0 .. 0.33.0: levels are sliced to the step.

    A counter holds the number of tokens of the last step with images.
    """

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate `levels` zeroed tensors (capacity, hidden)."""
        self._hidden = hidden
        self._levels = [torch.zeros(capacity, hidden, dtype=dtype, device=device) for _ in range(levels)]
        self._tokens_set = 0

    @property
    def capacity(self) -> int:
        """Token rows of a level."""
        return self._levels[0].size(0)

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return a slice (min(tokens, capacity), hidden) of every level.

        Raises `StepUnavailable` for a negative count.
        """
        _refuse_negative(tokens)
        return tuple(level[:tokens] for level in self._levels)

    def set(self, payload: Tensor) -> None:
        """Scatter a payload (levels, N, hidden) into rows [0, N); rows behind N keep what they held.

        N = 0 is a step of text: only the counter is reset.  Above the capacity `IndexError` is
        raised after level 0 was zeroed.  Surplus levels are dropped.  The hidden size is not
        checked level by level, because all levels of a token arrive in one row and are split again.
        """
        tokens = payload.size(1)
        if tokens:
            self._move_to(payload)
            packed = payload.permute(1, 0, 2).flatten(1)
            self._scatter(torch.split(packed, self._hidden, dim=-1), tokens)
        self._tokens_set = tokens

    def clear(self, tokens: int) -> None:
        """Zero as many rows as the counter says, whatever `tokens` is, and reset the counter.

        Raises `StepUnavailable` for a negative count.
        """
        _refuse_negative(tokens)
        for level in self._levels:
            level[: self._tokens_set].zero_()
        self._tokens_set = 0

    def resize(self, tokens: int) -> None:
        """Raise `StepUnavailable`: Granite has no such call."""
        raise StepUnavailable(f"{type(self).__name__} has no resize")

    def _move_to(self, payload: Tensor) -> None:
        """Move the levels, with all rows, to the dtype and device of the payload."""
        self._levels = [level.to(device=payload.device, dtype=payload.dtype) for level in self._levels]

    def _scatter(self, features: tuple[Tensor, ...], tokens: int) -> None:
        """Write one feature tensor (N, hidden) per level through a mask of visual tokens, as upstream."""
        visual = torch.ones(tokens, dtype=torch.bool, device=features[0].device)
        for index, level in enumerate(self._levels):
            rows = level[:tokens]
            rows.zero_()
            rows[visual] = features[index]


class GraniteFullBuffer(GraniteSlicedBuffer):
    """Granite as vLLM #40282 brought it, in 0.20.0 .. 0.20.2: whole levels reach the compiled model."""

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return (capacity, hidden) for every level, whatever `tokens` is (vLLM 40917).

        Raises `StepUnavailable` for a negative count.
        """
        super().get(tokens)
        return tuple(self._levels)


class ClampsLevels(nn.Module):
    """A decoder that first clamps its levels, in place, to the finite values of their dtype.

    Models whose features may overflow in float16 do so (transformers, `T5Block.forward`).  Finite
    values, and with them the output, stay as they are.
    """

    def __init__(self, decoder: nn.Module) -> None:
        """Wrap a `deepstack_harness.contract.protocols.Decoder`."""
        super().__init__()
        self.decoder = decoder

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Clamp the levels, then decode.

        Hidden (n, h), positions (3, n) int64, one (rows, h) per level or None -> (n, h).
        """
        for level in payload or ():
            level.clamp_(torch.finfo(level.dtype).min, torch.finfo(level.dtype).max)
        out: Tensor = self.decoder(hidden, positions, payload)
        return out


class GraniteRowsBuffer(GraniteFullBuffer):
    """Whole levels that the graph writes back, so that no row of them can be left out of a kernel.

    Of a whole level that is only read, Inductor fuses the slice away and generates the code of the
    sliced buffer.  This revision is ours: it has no release.
    """

    in_graph = ClampsLevels


def _refuse_negative(tokens: int) -> None:
    if tokens < 0:
        raise StepUnavailable(
            "Granite counts the hidden states it is given: there is no step of fewer than 0"
        )
