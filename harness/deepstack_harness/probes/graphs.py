"""Record the compiler's work over a trace: graphs, recompiles, breaks, guards that stayed."""

from types import TracebackType
from typing import Self

from deepstack_harness.arms.compile import CompiledSession
from deepstack_harness.contract.arm_spec import GuardPolicy
from deepstack_harness.contract.observation import GraphFacts
from deepstack_harness.errors import NotMeasured
from deepstack_harness.torch_compat import dynamo


class GraphProbe:
    """Probe that reads Dynamo's counters for one compiled session, before the session closes."""

    def __init__(self, session: CompiledSession, policy: GuardPolicy) -> None:
        """Watch `session`, which should apply `policy`."""
        self._session = session
        self._policy = policy
        self._facts: GraphFacts | None = None

    def __enter__(self) -> Self:
        """Do nothing: counting began when the session was opened."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Read the counters: closing the session drops them."""
        guards, reasons = self._session.guards, dynamo.recompile_reasons()
        self._checked = self._session.guards_checked
        self._facts = GraphFacts(
            graphs=dynamo.graphs_built(),
            recompiles=len(reasons),
            breaks=dynamo.graph_breaks(),
            limit_hit=self._session.limit_hit,
            guards=guards.seen,
            kept=guards.kept,
            payload_guards=guards.payload_seen,
            payload_kept=guards.payload_kept,
            reasons=tuple(reasons),
        )

    def facts(self) -> GraphFacts:
        """Return the counts; raise `NotMeasured` when nothing was compiled or the policy not applied."""
        if self._facts is None or self._facts.graphs < 1:
            raise NotMeasured("no graph was built: the decoder was never compiled")
        dropped = self._policy is GuardPolicy.DROP_ALL
        if self._facts.guards < 1 or dropped != (self._checked == 0):
            raise NotMeasured(
                f"guard policy {self._policy} was not applied: of {self._facts.guards} guards "
                f"{self._facts.kept} should be kept, torch checks {self._checked}"
            )
        return self._facts
