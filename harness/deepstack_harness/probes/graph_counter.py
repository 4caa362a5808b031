"""Count the graphs that torch builds while any code runs, whoever called `torch.compile`."""

from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from deepstack_harness.errors import NotMeasured
from deepstack_harness.torch_compat import dynamo


@dataclass(frozen=True)
class GraphCounts:
    """Graphs handed to a backend, recompiles with Dynamo's reasons (64 at most), and graph breaks."""

    graphs: int
    recompiles: int
    breaks: int
    reasons: tuple[str, ...]


class GraphCounter:
    """A `protocols.Probe`; whatever was compiled before is dropped, so that every graph counts.

    With `warm` it stays, and only what is built on top of it counts.  While the counter is open, reaching the
    recompile limit raises, where torch's default is to go on eagerly.
    """

    def __init__(self, *, warm: bool = False) -> None:
        """Start without a count."""
        self._cleanup = ExitStack()
        self._counts: GraphCounts | None = None
        self._warm = warm
        self._graphs_before = 0
        self._breaks_before = 0

    def __enter__(self) -> Self:
        """Start cold, at zero, or from what is compiled; raise `NotMeasured` where `warm` finds nothing."""
        if self._warm:
            self._graphs_before, self._breaks_before = dynamo.graphs_built(), dynamo.graph_breaks()
            if self._graphs_before < 1:
                raise NotMeasured("nothing is compiled yet: call what is measured once before, to warm it up")
            dynamo.forget_metrics()
        else:
            dynamo.start_counting()
        self._cleanup.enter_context(dynamo.refuse_silent_fallback())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop counting."""
        self._counts = self.so_far
        self._cleanup.close()

    @property
    def so_far(self) -> GraphCounts:
        """The counts up to now, or up to the end."""
        if self._counts is not None:
            return self._counts
        reasons = tuple(dynamo.recompile_reasons())
        graphs = dynamo.graphs_built() - self._graphs_before
        return GraphCounts(graphs, len(reasons), dynamo.graph_breaks() - self._breaks_before, reasons)

    def facts(self) -> GraphCounts:
        """Return the counts; raise `NotMeasured` when no graph was built, unless `warm`."""
        found = self.so_far
        if found.graphs < 1 and not self._warm:
            raise NotMeasured(
                "no graph was built: nothing in here was compiled, so there is nothing to count"
            )
        return found
