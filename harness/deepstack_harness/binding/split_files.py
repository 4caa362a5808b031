"""The functions by which an engine splits a payload over ranks: their places, cuts, and calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from deepstack_harness.binding.cut_helpers import HelperCut
    from deepstack_harness.binding.cut_model import ModelCut, Way


@dataclass(frozen=True)
class Parallel:
    """The class that a splitter asks for the part of a rank, in one of the files right in `folders`."""

    folders: tuple[str, ...]
    class_name: str
    way: Way


@dataclass(frozen=True)
class SplitFiles:
    """The place of a splitter: the function `function`, in the files right in `folders` that name it.

    Releases that lack one of the folders have another one.  `given` are names that the function finds
    instead of its own, and `parallel` is the class that it asks.
    """

    folders: tuple[str, ...]
    function: str
    given: frozenset[str] = frozenset()
    parallel: Parallel | None = None


@dataclass(frozen=True)
class SplitCut:
    """A splitter of a source, cut and compiled."""

    function: HelperCut
    parallel: ModelCut | None


class Splitter(Protocol):
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
