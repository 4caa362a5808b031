"""Two measurements side by side, kernel by kernel.  No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from deepstack_harness.contract.facts.kernels import GraphCall, Kernel


@dataclass(frozen=True)
class Pair:
    """A kernel of one call and the one that stands for it in the other; None where there is none."""

    one: Kernel | None
    other: Kernel | None


@dataclass(frozen=True)
class Agreement:
    """Agreement of a prediction with a GPU: kernels that agree, of how many, and those that do not."""

    agreeing: int
    kernels: int
    differing: tuple[Pair, ...]

    @property
    def share(self) -> float:
        """Between 0 and 1."""
        return self.agreeing / self.kernels


def paired(one: GraphCall, other: GraphCall) -> list[Pair]:
    """Return all kernels of both in order; those of equal kind and symbolic size are pairs (`difflib`)."""
    left, right = one.kernels, other.kernels
    matcher = SequenceMatcher(a=[*map(_alike, left)], b=[*map(_alike, right)], autojunk=False)
    pairs: list[Pair] = []
    for _, begin, end, from_, to in matcher.get_opcodes():
        pairs += _side_by_side(left[begin:end], right[from_:to])
    return pairs


def agreement(predicted: GraphCall, real: GraphCall) -> Agreement:
    """Count the kernels of a prediction that a real GPU ran: kind, points, reduction, rows and bytes.

    Where grids are known to both (candidates there, a launch here), the launched one
    must be a candidate's.
    """
    pairs = paired(predicted, real)
    differing = tuple(pair for pair in pairs if not _agree(pair))
    return Agreement(len(pairs) - len(differing), len(pairs), differing)


def _side_by_side(left: Sequence[Kernel], right: Sequence[Kernel]) -> list[Pair]:
    if list(map(_alike, left)) == list(map(_alike, right)):
        return [Pair(one, other) for one, other in zip(left, right, strict=True)]
    return [*(Pair(one, None) for one in left), *(Pair(None, other) for other in right)]


def _alike(kernel: Kernel) -> tuple[str | None, ...]:
    """Return the key by which kernels are paired; generated names tell of every fused operation."""
    name = kernel.kernel if kernel.kind == "extern" else None
    return kernel.kind, name, kernel.symbolic_points, kernel.symbolic_reduction


def _agree(pair: Pair) -> bool:
    one, other = pair.one, pair.other
    if one is None or other is None:
        return False
    same = all(
        getattr(one, name) == getattr(other, name)
        for name in ("kind", "points", "reduction", "rows", "bytes")
    )
    possible = {candidate.grid for candidate in one.candidates}
    return same and (not possible or other.grid is None or other.grid in possible)
