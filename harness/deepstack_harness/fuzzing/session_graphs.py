"""Graphs of one compiled session, in which a hunt plays many traces: how many a correct buffer would need."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from deepstack_harness.catalogue.matrix import graph_budget
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.trace import RUNS_DECODER, Step, Trace
from deepstack_harness.fuzzing.target import Target


@dataclass
class SessionGraphs:
    """Graphs of the open session: those that a correct buffer needs for all that ran on it, and others."""

    target: Target
    ran: dict[Step, None] = field(default_factory=dict)
    built: int = 0
    surplus: int = 0
    """Graphs above the budget, which a trace before built: they are not a fault of the next trace."""

    def budget(self, steps: Sequence[Step] = ()) -> int:
        """Return the graphs that may be there behind these steps."""
        if not self.target.arm.compiled:
            return 1
        ran = dict.fromkeys([*self.ran, *(step for step in steps if step.op in RUNS_DECODER)])
        return (graph_budget(Trace(1, tuple(ran)), self.target.arm) if ran else 1) + self.surplus

    def played(self, trace: Trace, seen: Observation) -> None:
        """Take note of a trace that is over."""
        self.ran |= dict.fromkeys(step for step in trace if step.op in RUNS_DECODER)
        self.built, self.surplus = max(step.graphs for step in seen.steps), 0
        self.surplus = max(0, self.built - self.budget())
