"""Hunts: hypothesis draws and shrinks traces, a player plays them, and the oracles judge each.

A hunt is a series of searches. Each ends with the first fault that is not known yet, shrunk; the next one
does not stop at it. With several failures in one run hypothesis would go on drawing for ten seconds after the
first (`should_generate_more` in its engine), and find more on a faster machine.

hypothesis shrinks the numbers that a trace was written from; `_Search.simplest` then leaves out single steps,
settings of the buffer and options of payloads. Traces of a compiled decoder share one session, whose graphs
`SessionGraphs` counts against those that a correct buffer would need.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from hypothesis import find
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from deepstack_harness.catalogue.fitted_traces import fitted_trace
from deepstack_harness.catalogue.plans import graph_budget
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.observation import Observation, StepFacts
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import RUNS_DECODER, SECOND, Op, Step, Trace
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.fuzz.faults import (
    Fault,
    Finding,
    Progress,
    Target,
    Watch,
    fault_of_death,
    faults_by_step,
)
from deepstack_harness.fuzz.player import Death, FindingKind, Player
from deepstack_harness.fuzz.strategies import lifecycles, search_settings


@dataclass
class SessionGraphs:
    """Graphs of the open session: those that a correct buffer needs for all that ran on it, and others."""

    target: Target
    ran: dict[Step, None] = field(default_factory=dict)
    built: int = 0
    surplus: int = 0
    """Graphs above the budget, which a trace before built: they are not a fault of the next trace."""

    def budget(self, steps: Sequence[Step] = ()) -> int:
        """Return the number of graphs that may exist after these steps."""
        if not self.target.arm.compiled:
            return 1
        ran = dict.fromkeys([*self.ran, *(step for step in steps if step.op in RUNS_DECODER)])
        return (graph_budget(Trace(1, tuple(ran)), self.target.arm) if ran else 1) + self.surplus

    def add(self, trace: Trace, seen: Observation) -> None:
        """Take note of a trace that is over."""
        self.ran |= dict.fromkeys(step for step in trace if step.op in RUNS_DECODER)
        self.built, self.surplus = max((step.graphs for step in seen.steps), default=self.built), 0
        self.surplus = max(0, self.built - self.budget())


_SETTINGS = ("levels", "hidden", "dtype", "mode")
_OPTIONS: dict[str, Any] = {
    "spans": None, "layout": None, "dtype": None, "values": None, "grad": False, "fail": None,
    "shape": None, "calls": None, "after": None,
}  # fmt: skip


def simpler_traces(trace: Trace, needed: Collection[Op] = ()) -> Iterator[Trace]:
    """Iterate over the traces with one thing less: a step (from the end), a setting, a buffer, an option.

    The last step shows the fault, and stays as those of `needed` operations do.
    """
    steps = trace.steps
    for index in reversed(range(len(steps) - 1)):
        if steps[index].op not in needed:
            yield replace(trace, steps=(*steps[:index], *steps[index + 1 :]))
    for key in _SETTINGS:
        if getattr(trace, key) is not None:
            yield replace(trace, **{key: None})  # type: ignore[arg-type]
    if trace.buffers > 1 and (of_first := tuple(step for step in steps if step.on != SECOND)):
        yield replace(trace, steps=of_first, buffers=1)
    for index, step in enumerate(steps):
        for key, usual in _OPTIONS.items():
            if getattr(step, key) != usual:
                simpler = replace(step, **{key: usual})
                yield replace(trace, steps=(*steps[:index], simpler, *steps[index + 1 :]))


SEARCH = 250
"""Examples of one search; hypothesis shrinks the first fault of a search, and the next one begins anew."""
PER_NAME = 5
"""Findings of one rule or kind with different shapes; others are not reported: the rule is broken anyway."""
CAPACITY = 16
"""Rows of the buffer that a compiled decoder reads."""
MOST_DEATHS = 8
"""Workers that may die in examples before a hunt is given up: each new one takes seconds to start."""
_LEFT_OUT = 40
"""Traces that are played at least to leave out single steps of one that was shrunk."""
_SHRINKS, _SLOW_SHRINKS = 400, 12
"""Traces that are played to shrink one; few where each compiles, or starts a worker."""


class Hunt:
    """A hunt on one target, which can be continued."""

    def __init__(
        self, target: Target, player: Player, *, seed: int = 0, known: Sequence[Finding] = (),
        progress: Progress | None = None, watch: Watch | None = None, per_name: int = PER_NAME,
    ) -> None:  # fmt: skip
        """Play nothing yet; `known` faults are not reported again, and `progress` is that of an earlier part.

        Of one rule or kind at most `per_name` faults are reported.
        """
        self.target = target
        self.seed = seed
        self.progress = progress or Progress()
        self.findings: list[Finding] = []
        self._player = player
        self._watch = watch or Watch()
        self._per_name = per_name
        self._known = [finding.key for finding in known]
        self._states: set[tuple[object, ...]] = set()
        self._graphs: SessionGraphs | None = None
        self._begun = time.perf_counter() - self.progress.seconds

    def search(self, traces: SearchStrategy[Trace], examples: int) -> None:
        """Play drawn traces until there were so many examples in all.

        The same seed draws the same traces, whatever modules are loaded.
        """
        while self.progress.examples < examples and not self.is_over:
            self.progress.searches += 1
            search = _Search(self, min(examples, self.progress.examples + SEARCH))
            with suppress(NoSuchExample, _SearchIsOver):
                smallest = find(
                    traces, search.shows, settings=search_settings(search.until - self.progress.examples),
                    random=Random(f"{self.seed} {self.progress.searches}"),
                )  # fmt: skip
                fault = search.seen[smallest]
                assert fault is not None  # or it would not have been shown
                self.report(search.simplest(fault), search.example)

    @property
    def is_over(self) -> bool:
        """Return whether the watcher has enough, or too many workers died."""
        return self.progress.deaths >= MOST_DEATHS or self._watch.is_done()

    def play_example(self, trace: Trace) -> list[Fault]:
        """Play an example, count it, and return its faults."""
        self._warm_up()
        faults, seen = self._play(trace)
        progress = self.progress
        progress.examples += 1
        if isinstance(seen, Observation):
            progress.steps += len(trace.steps)
            why = f"tampered: {seen.tampering}" if seen.tampering else seen.error
            progress.unmeasured += why is not None
            progress.why_unmeasured = progress.why_unmeasured or why or ""
            self._states.update(map(_state, seen.steps))
            progress.states = max(progress.states, len(self._states))
        else:
            progress.deaths += 1
        if self._graphs and self.target.arm.compiled:
            progress.graphs, progress.budget = self._graphs.built, self._graphs.budget()
        progress.seconds = time.perf_counter() - self._begun
        self._watch.on_example(progress, trace)
        return faults

    def replay(self, trace: Trace, *, new_session: bool) -> tuple[list[Fault], bool]:
        """Play a trace again, on a new session or on that of the examples; return its faults.

        The second value is True if the worker died.
        """
        if new_session:
            self._graphs = None
        else:
            self._warm_up()
        faults, seen = self._play(trace)
        if new_session:
            self._graphs = None
        return faults, isinstance(seen, Death)

    def new_faults(self, faults: Sequence[Fault]) -> list[Fault]:
        """Return the faults of the first step that has one which is not known yet."""
        names = [key.name for key in self._known]
        new = [
            fault
            for fault in faults
            if fault.key not in self._known and names.count(fault.name) < self._per_name
        ]
        return [fault for fault in new if fault.trace == new[0].trace]

    def confirmed(self, faults: Sequence[Fault]) -> list[Fault]:
        """Return the faults whose rule is broken first as well where all rows are read after every step.

        A row that nobody read before a resize may be wrong since the set before it: that is another rule.
        """
        trace = faults[0].read_everywhere if faults else None
        if trace is None or faults[0].rule is Rule.GRAPHS:
            return list(faults)
        first, _ = self.replay(trace, new_session=False)
        rules = {fault.rule for fault in first}
        return [fault for fault in faults if not first or fault.rule in rules]

    def report(self, fault: Fault, example: int, *, alone: bool | None = None) -> None:
        """Make a finding of a fault, which is known from then on."""
        if alone is None and fault.rule:
            alone = not self.target.arm.compiled or any(
                other.rule is fault.rule for other in self.replay(fault.trace, new_session=True)[0]
            )
        target, judgement = self.target, fault.judgement
        judged = judgement.columns if judgement else {"rule": None, "verdict": Verdict.FAIL}
        judged |= {"detail": fault.detail, "call": fault.key.call or None}
        finding = Finding(
            kind=FindingKind.RULE if judgement else FindingKind(fault.name), examples=example,
            seconds=round(time.perf_counter() - self._begun, 3), seed=self.seed, alone=alone,
            engine=target.buffer.package, source=target.buffer.source, model_class=target.buffer.model_class,
            revision=target.subject, family=target.family, dtype="float32", trace=str(fault.trace),
            regime=Regime.CAPTURED if fault.trace.replays else Regime.LIVE, torch=self._player.torch,
            **target.arm.columns, **judged,
        )  # fmt: skip
        self._known.append(fault.key)
        self.findings.append(finding)
        self.progress.findings += 1
        self._watch.on_finding(finding)

    def _warm_up(self) -> None:
        """Compile for many rows first, as a profile run does: one row would be compiled for itself."""
        if self._graphs is None and self.target.arm.compiled:
            self._play(Trace(CAPACITY, (Step(Op.PROFILE, CAPACITY),)))
            self.progress.sessions += 1

    def _play(self, trace: Trace) -> tuple[list[Fault], Observation | Death]:
        if (adapter := self.target.buffer.adapter) is not None:
            trace = fitted_trace(trace, adapter) or replace(trace, steps=(Step(Op.GET, trace.capacity),))
        case, new_session = self.target.case(trace, 1), self._graphs is None
        graphs = self._graphs = self._graphs or SessionGraphs(self.target)
        seen = self._player.play(case, new_session=new_session)
        if isinstance(seen, Death):
            self._graphs = None
            return [fault_of_death(trace, seen)], seen
        faults = [fault for of_step in faults_by_step(case, seen, graphs.budget) for fault in of_step]
        graphs.add(trace, seen)
        if seen.graphs and seen.graphs.limit_hit:
            self._graphs = None
        return faults, seen


class _SearchIsOver(BaseException):
    """Signal that ends a search at once: hypothesis would draw the examples that are left, for nothing.

    hypothesis passes on what is no `Exception`, as it does with KeyboardInterrupt.
    """


class _Search:
    """The test function of one search: true for a trace with a new fault, and then only for that fault.

    Each trace is played once, so that the same trace always has the same result.
    """

    def __init__(self, hunt: Hunt, until: int) -> None:
        self.until = until
        self.seen: dict[Trace, Fault | None] = {}
        self.example = 0
        """Number of the example that showed the fault."""
        self._hunt = hunt
        self._wanted: Fault | None = None
        self._left = _SHRINKS

    def shows(self, trace: Trace) -> bool:
        if trace not in self.seen:
            self.seen[trace] = self._first_new(trace) if self._wanted is None else self._show_wanted(trace)
        return self.seen[trace] is not None

    def _first_new(self, trace: Trace) -> Fault | None:
        hunt = self._hunt
        if hunt.is_over or hunt.progress.examples >= self.until:
            raise _SearchIsOver
        new = hunt.confirmed(hunt.new_faults(hunt.play_example(trace)))
        if not new or not self._is_shown_again(new[0]):
            return None
        self._wanted, self.example = new[0], hunt.progress.examples
        return new[0]

    def _is_shown_again(self, fault: Fault) -> bool:
        """Return whether a new session shows a fault of R11 too; if not, report that it does not.

        On the session of the examples a graph is built once, so that a second play would not show it.
        """
        if fault.rule is not Rule.GRAPHS:
            return True
        faults, _ = self._hunt.replay(fault.trace, new_session=True)
        if any(other.rule is fault.rule for other in faults):
            return True
        self._hunt.report(fault, self._hunt.progress.examples, alone=False)
        return False

    def simplest(self, fault: Fault) -> Fault:
        """Return the fault with a trace of which nothing can be left out, as far as tries last.

        hypothesis shrinks the numbers that a trace was written from: one number may mean several steps, and
        the next smaller one a payload that shows nothing. Of 130 mutants 28 have a shorter history after
        this (296 steps in all instead of 328), and 24 others fewer options, for 292 plays after its 8,911.
        Runs of a compiled decoder stay: the session of the examples may do without, another cannot.
        """
        self._left = max(self._left, _LEFT_OUT)
        needed = RUNS_DECODER if self._hunt.target.arm.compiled else ()
        tried: set[Trace] = set()
        while simpler := next(
            (other for other in simpler_traces(fault.trace, needed) if other not in tried), None
        ):
            tried.add(simpler)
            fault = self._show_wanted(simpler) or fault
        return fault

    def _show_wanted(self, trace: Trace) -> Fault | None:
        wanted = self._wanted
        assert wanted is not None  # something was found
        if self._left <= 0:
            return None
        new_session = wanted.rule is Rule.GRAPHS
        faults, died = self._hunt.replay(trace, new_session=new_session)
        self._left -= _SHRINKS // _SLOW_SHRINKS if new_session or died else 1
        # Reasons of recompiles follow from the graphs of a session: in a new one, R11 has another shape.
        same = (
            fault
            for fault in faults
            if fault.key == wanted.key or (new_session and fault.rule is wanted.rule)
        )
        return next(same, None)


def _state(facts: StepFacts) -> tuple[object, ...]:
    """Return what is the same in two moments that look alike: rows, and the origin of the last get's rows."""
    runs = facts.answer.rows[0] if facts.answer and facts.answer.rows else ()
    return (facts.capacity, tuple((run.payload is None or bool(run.payload), run.rows) for run in runs))


def hunt(
    target: Target,
    player: Player,
    *,
    examples: int,
    seed: int = 0,
    watch: Watch | None = None,
    per_name: int = PER_NAME,
) -> Hunt:
    """Play `examples` lifecycles on a target, and return the hunt with its findings."""
    searched = Hunt(target, player, seed=seed, watch=watch, per_name=per_name)
    searched.search(lifecycles(target.arm, alone=target.alone), examples)
    return searched
