"""What all traces of a hunt share: the model, and one session that is compiled once."""

from dataclasses import dataclass, replace
from functools import cache
from typing import cast

import torch
from torch import nn

from deepstack_harness.arms.capture import capturing
from deepstack_harness.arms.compile import CompiledSession
from deepstack_harness.arms.eager import EagerSession
from deepstack_harness.callers.by_name import caller_of
from deepstack_harness.callers.engine import Engine
from deepstack_harness.catalogue.matrix import graph_budget
from deepstack_harness.contract.arm_spec import Capture
from deepstack_harness.contract.case import Case, Compare, GraphFacts, Judgement
from deepstack_harness.contract.protocols import Family, Session
from deepstack_harness.contract.rules import Rule, Verdict
from deepstack_harness.contract.trace import RUNS_DECODER, Step, Trace
from deepstack_harness.fuzzing.running import Live
from deepstack_harness.fuzzing.target import Target
from deepstack_harness.oracles.all_rules import judge_all
from deepstack_harness.play import Model, play
from deepstack_harness.play.player import Player
from deepstack_harness.probes.graphs import GraphProbe
from deepstack_harness.probes.numerics import NumericsProbe
from deepstack_harness.torch_compat import dynamo

LEVELS, HIDDEN = 3, 8
"""Of a buffer alone: as many levels as released models have, rows short enough to read them all often."""


@dataclass(frozen=True)
class _Sizes:
    """Stands for a family where no decoder runs."""

    name: str
    levels: int = LEVELS
    hidden: int = HIDDEN
    routed: bool = False


class Ground:
    """Traces are played on it one after the other, each with a fresh buffer; to be closed."""

    def __init__(self, target: Target, seed: int = 0) -> None:
        """Nothing is compiled before the first forward."""
        self.target = target
        self.model = buffer_alone(target.family) if target.alone else _model(target.family)
        self._seed = seed
        self._session: EagerSession | None = None
        self._ran: dict[Step, None] = {}
        self._surplus = 0
        self._facts: GraphFacts | None = None
        self.sessions = 0
        """Sessions opened so far."""

    def begin(self, capacity: int) -> Live:
        """A fresh buffer of `capacity` rows, and a fresh trace on it."""
        case = self._case(Trace(capacity, (Step.parse("get 0"),)))
        caller = caller_of(case)
        session = self._capturing(self._inner(caller, capacity), capacity)
        return Live(self, case, Player(case, self.model, self.target.make, session, caller))

    def broken(self, trace: Trace) -> dict[Rule, Judgement]:
        """The rules that a trace breaks, on the session that the others use; raises as `Live.do` does."""
        live = self.begin(trace.capacity)
        try:
            for step in trace:
                live.do(step)
            return live.broken()
        finally:
            self.end(live)

    def broken_alone(self, trace: Trace) -> dict[Rule, Judgement]:
        """The rules that a trace breaks on a session of its own, as every other command plays it."""
        self.close()
        case = self._case(trace)
        said = judge_all(case, play(case, self.model, self.target.make))
        return {one.rule: one for one in said if one.verdict is Verdict.FAIL}

    def end(self, live: Live) -> None:
        """The trace is over: later ones may use the graphs that it built."""
        self._ran |= dict.fromkeys(step for step in live.steps if step.op in RUNS_DECODER)
        session = self._session
        if isinstance(session, CompiledSession):
            if session.limit_hit:
                self.close()
            else:
                self._surplus = max(0, dynamo.graphs_built() - self.budget)

    @property
    def budget(self) -> int:
        """Graphs that a correct buffer needs for all that was run on the open session."""
        steps = tuple(self._ran)
        return graph_budget(Trace(1, steps), self.target.arm) if steps and self.target.arm.compiled else 0

    @property
    def graphs(self) -> int:
        """Graphs built on the open session."""
        return dynamo.graphs_built() if isinstance(self._session, CompiledSession) else 0

    def graph_facts(self) -> GraphFacts | None:
        """What the compiler did on the open session; None where nothing was compiled."""
        session = self._session
        if not isinstance(session, CompiledSession) or not session.calls:
            return None
        if self._facts is None or self._facts.graphs != self.graphs or session.limit_hit:
            probe = GraphProbe(session, self.target.arm.guards)
            with probe:
                pass
            self._facts = probe.facts()
        return self._facts

    def case_of(self, case: Case, steps: tuple[Step, ...]) -> Case:
        """The case of a trace in the middle of a hunt: it may also use the graphs of those before it."""
        trace = Trace(case.trace.capacity, steps)
        if not self.target.arm.compiled:
            return replace(case, trace=trace)
        ran = dict.fromkeys([*self._ran, *(step for step in steps if step.op in RUNS_DECODER)])
        budget = graph_budget(Trace(1, tuple(ran)), self.target.arm) if ran else 1
        return replace(case, trace=trace, graph_budget=budget + self._surplus)

    def close(self) -> None:
        """Drop what was compiled; the next trace compiles anew."""
        if self._session is not None:
            self._session.close()
        self._session, self._facts, self._surplus = None, None, 0
        self._ran.clear()

    def _case(self, trace: Trace) -> Case:
        target = self.target
        return Case(
            family=target.family, revision=target.label, trace=trace, arm=target.arm,
            seed=self._seed, graph_budget=graph_budget(trace, target.arm),
            compare=Compare.NOTHING if target.alone else Compare.EAGER, source=target.source,
            model_class=target.model_class, caller=target.caller,
        )  # fmt: skip

    def _inner(self, caller: Engine, capacity: int) -> EagerSession:
        if self._session is None:
            arm, profile = self.target.arm, self.model.profile(capacity)
            kind = CompiledSession if arm.compiled else EagerSession
            self._session = kind(arm, caller.decoder(self.model.decoder), profile)
            self.sessions += 1
        return self._session

    def _capturing(self, inner: EagerSession, capacity: int) -> Session:
        arm = self.target.arm
        if arm.capture is Capture.NONE:
            return inner
        return capturing(arm, inner, self.model.profile(capacity))


@cache
def buffer_alone(family: str) -> Model:
    """The sizes of a buffer alone, with a decoder that nobody calls."""
    nothing = nn.Linear(1, 1)
    probe = NumericsProbe(nothing, LEVELS, HIDDEN)
    sizes = cast(Family, _Sizes(family))
    return Model(sizes, nothing, probe, torch.float32, torch.device("cpu"))


@cache
def _model(family: str) -> Model:
    return Model.build(family)
