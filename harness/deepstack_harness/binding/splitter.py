"""The interface of a splitter that was cut and defined."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class PayloadSplitter(Protocol):
    """A splitter that can be called for one rank after the other, without a process group.

    `filename` is the file that it was cut from, as tracebacks show it.
    """

    filename: str

    def rows(
        self, rank: int, ranks: int, marks: Tensor | None, levels: Sequence[Tensor], tokens: int
    ) -> tuple[Tensor, ...]:
        """Return the rows (P / ranks, hidden) that the text model of a rank adds at each level.

        `marks` (N,) says which tokens of the step are visual, and each level has a row (n, hidden) for
        each of these.  In a step of text `marks` is None, and each level is the row of a dummy image.
        `tokens` is P, the least multiple of `ranks` that holds the step.
        """
        ...
