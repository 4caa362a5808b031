"""Decoders that compile in no time, for tests in which another process has to import them."""

from torch import Tensor, nn
from typing_extensions import override


class Doubling(nn.Module):
    """Doubles the hidden states, whatever else it is given."""

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """(n, h) -> (n, h)."""
        return hidden * 2


class Factor:
    """Holds a number; no literal of Python."""

    def __init__(self, value: float) -> None:
        """Any value."""
        self.value = value


class Scaling(nn.Module):
    """Multiplies the hidden states by a number that is no plain attribute."""

    def __init__(self) -> None:
        """By two."""
        super().__init__()
        self.factor = Factor(2.0)

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """(n, h) -> (n, h)."""
        return hidden * self.factor.value
