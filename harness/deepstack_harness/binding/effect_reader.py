"""Read a payload by its effect: what a text model adds between layers that answer zeros.

An engine whose payload is an argument has no get.  Its own forward runs over hidden states of zeros, with
layers that note what they are given and answer zeros: what was added after layer i is level i, whatever
its layout was.  Nothing is subtracted, so that rows are exactly those that were added.
"""

import torch
from torch import Tensor


class EffectReader:
    """Record of one forward: the hidden states (n, hidden) that each layer, and last the norm, was given."""

    def __init__(self) -> None:
        """Start with an empty record."""
        self._given: list[Tensor] = []

    def begin(self) -> None:
        """Forget the forward before."""
        self._given = []

    def layer(self, *parts: Tensor | None) -> Tensor:
        """Record the sum of `parts`, each (n, hidden); return zeros like it, as the layer's own output."""
        total = torch.stack([part for part in parts if part is not None]).sum(0)
        self._given.append(total)
        return torch.zeros_like(total)

    def take(self) -> tuple[Tensor, ...]:
        """Return what was recorded, one (n, hidden) per layer and one for the norm."""
        return tuple(self._given)


def levels_of(given: tuple[Tensor, ...], levels: int) -> tuple[Tensor, ...]:
    """Return a copy (n, hidden) of each level; `given` is what `EffectReader.take` returned.

    Raises `RuntimeError` for rows that were added before the first layer or after the last level.
    """
    first, *after = given
    _refuse_rows(first, "before the first layer")
    for number, rows in enumerate(after[levels:], levels):
        _refuse_rows(rows, f"after layer {number}, where no level belongs")
    return tuple(rows.clone() for rows in after[:levels])


def _refuse_rows(rows: Tensor, where: str) -> None:
    """Raise `RuntimeError` for rows (n, hidden) that are not zeros."""
    if count := int((rows != 0).any(dim=-1).sum()):
        raise RuntimeError(f"the text model adds {count} rows {where}")
