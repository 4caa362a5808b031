"""Count the graphs that torch builds: in a block of any code, or over the life of a compiled session.

`GraphCounter` counts whatever code runs while it is open, whoever called `torch.compile`. `graph_facts` reads
the counters of a `CompiledSession`, with the guards that its policy did not drop.
"""

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from deepstack_harness.compile.compiled import CompiledSession
from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.contract.arm import GuardPolicy
from deepstack_harness.contract.observation import GraphCounts, GraphFacts
from deepstack_harness.errors import NotMeasured
from deepstack_harness.text import plural


class GraphCounter:
    """A `protocols.Probe`; whatever was compiled before is dropped, so that every graph counts.

    With `warm` it stays, and only what is built on top of it counts. While the counter is open, reaching the
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
        dynamo.start_counting(warm=self._warm)
        self._cleanup.enter_context(dynamo.refuse_silent_fallback())
        self._runs = self._cleanup.enter_context(dynamo.counting_runs())
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
        graphs, breaks = dynamo.graphs_built(), dynamo.graph_breaks()
        return GraphCounts(
            graphs - self._graphs_before, len(reasons), breaks - self._breaks_before, reasons=reasons
        )

    def facts(self) -> GraphCounts:
        """Return the counts; raise `NotMeasured` when no graph was built or, if `warm`, none ran."""
        counts = self.so_far
        if counts.graphs < 1 and not self._warm:
            raise NotMeasured(f"no graph was built: nothing in here was compiled{_why_not(counts)}")
        if not self._runs():
            raise NotMeasured(f"no compiled graph ran in here{_why_not(counts)}")
        return counts


def _why_not(counts: GraphCounts) -> str:
    """Return the reason why code ran uncompiled although it was passed to torch.compile."""
    broken = f" ({plural(counts.breaks, 'graph break')})" if counts.breaks else ""
    return (
        f"{broken}, so there is nothing to count; torch.compiler.disable, graph breaks and the stance "
        "force_eager run code uncompiled"
    )


def graph_facts(session: CompiledSession, policy: GuardPolicy) -> GraphFacts:
    """Return the compiler's work since `session` was opened; closing the session drops the counters.

    Raises `NotMeasured` when nothing was compiled, or `policy` was not applied to the guards.
    """
    guards, reasons = session.guards, tuple(dynamo.recompile_reasons())
    facts = GraphFacts(
        graphs=dynamo.graphs_built(),
        recompiles=len(reasons),
        breaks=dynamo.graph_breaks(),
        limit_hit=session.limit_hit,
        guards=guards.seen,
        kept=guards.kept,
        failed=session.failed_guards(),
        reasons=reasons,
        code=session.code,
    )
    if facts.graphs < 1:
        raise NotMeasured("no graph was built: the decoder was never compiled")
    drops_all, checked = policy is GuardPolicy.DROP_ALL, session.guards_checked
    if facts.guards < 1 or drops_all != (checked == 0):
        raise NotMeasured(
            f"guard policy {policy} was not applied: of {facts.guards} guards "
            f"{facts.kept} should be kept, torch checks {checked}"
        )
    return facts
