"""The functions by which an engine splits a payload over ranks: where they lie, and what was cut."""

from dataclasses import dataclass

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
