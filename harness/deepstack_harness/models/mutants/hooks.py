"""What mutants inherit from: `ReferenceBuffer` with a hook for a fault in each of its calls."""

import torch
from torch import Tensor

from deepstack_harness.models.reference import ReferenceBuffer

Levels = tuple[Tensor, ...]
"""A tensor (tokens, hidden) for each level, as `get` returns them."""


class FaultyBuffer(ReferenceBuffer):
    """`ReferenceBuffer` with hooks that change nothing; a mutant overrides the hook where its fault is.

    A fault that no hook can express overrides the call itself.

    >>> class NoneForNoTokens(FaultyBuffer):
    ...     def returned(self, levels, tokens):
    ...         return levels if tokens else None
    """

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        self.made()

    def get(self, tokens: int) -> Levels | None:
        applies = self.applies(tokens)
        levels = super().get(tokens) or ()
        return self.returned(levels, tokens) if applies else levels  # type: ignore[return-value]  # the fault

    def set(self, payload: Tensor) -> None:
        applies = self.applies(self._check(payload))
        super().set(self.stored(payload) if applies else payload)
        if applies:
            self.after_set(payload)

    def resize(self, tokens: int) -> None:
        super().resize(tokens)
        self.after_resize()

    def applies(self, tokens: int) -> bool:
        """Return whether a `get` or `set` of `tokens` rows, which has changed nothing yet, has the fault."""
        return True

    def made(self) -> None:
        """Finish the constructor."""

    def returned(self, levels: Levels, tokens: int) -> object:
        """Return what `get` of `tokens` rows returns, given the right levels."""
        return levels

    def stored(self, payload: Tensor) -> Tensor:
        """Return what `set` copies for a payload (levels, N, hidden) of the right sizes."""
        return payload

    def after_set(self, payload: Tensor) -> None:
        """Finish a `set` of a payload (levels, N, hidden)."""

    def after_resize(self) -> None:
        """Finish a move to other storage; `generation` is counted and the old storage retired."""

    def zero(self, first: int, end: int | None = None) -> None:
        """Zero the rows from `first` to `end` of all levels."""
        for level in self._levels:
            level[first:end].zero_()


class FaultyWithinCapacity(FaultyBuffer):
    """A fault that only calls within the capacity have: wrong rows after growth break R4 instead of R2."""

    def applies(self, tokens: int) -> bool:
        return tokens <= self.capacity
