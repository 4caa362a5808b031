"""Hunts: hypothesis draws and shrinks traces, a player plays them, and the oracles judge what was seen.

A hunt is a series of searches.  Each ends with the first fault that is not known yet, shrunk; the next one
does not stop at it.  With several failures in one run hypothesis would go on drawing for ten seconds behind
the first (`should_generate_more` in its engine), and find more on a faster machine.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random

from hypothesis import HealthCheck, Phase, Verbosity, find, settings
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from deepstack_harness.contract.observation import Observation, StepFacts
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import RUNS_DECODER, Op, Step, Trace
from deepstack_harness.fuzzing.faults import Fault, fault_of_death, faults_by_step
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.lifecycles import lifecycles
from deepstack_harness.fuzzing.player import Death, FindingKind, Player
from deepstack_harness.fuzzing.session_graphs import SessionGraphs
from deepstack_harness.fuzzing.simpler import changes, without
from deepstack_harness.fuzzing.target import Target
from deepstack_harness.fuzzing.watch import Progress, Watch

SEARCH = 250
"""Examples of one search; hypothesis shrinks the first fault of a search, and the next one begins anew."""
PER_NAME = 5
"""Findings of one rule or kind with different shapes; further ones are not told."""
CAPACITY = 16
"""Rows of the buffer that a decoder is compiled beside."""
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
        """Play nothing yet; `known` faults are not told again, and `progress` is that of an earlier part.

        Of one rule or kind at most `per_name` faults are told.
        """
        self.target = target
        self.seed = seed
        self.progress = progress or Progress()
        self.findings: list[Finding] = []
        self._player = player
        self._watch = watch or Watch()
        self._per_name = per_name
        self._known = [(one.name, one.shape) for one in known]
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
                    traces, search.shows, settings=_settings(search.until - self.progress.examples),
                    random=Random(f"{self.seed} {self.progress.searches}"),
                )  # fmt: skip
                fault = search.seen[smallest]
                assert fault is not None  # or it would not have been shown
                self.tell(search.simplest(fault), search.example)

    def ask(self, trace: Trace) -> None:
        """Play one example that need not be shrunk."""
        for fault in self.new_faults(self.play_example(trace)):
            self.tell(fault, self.progress.examples)

    @property
    def is_over(self) -> bool:
        """True if the watcher has enough, or too many workers died."""
        return self.progress.deaths >= MOST_DEATHS or self._watch.enough()

    def play_example(self, trace: Trace) -> list[Fault]:
        """Play an example, count it, and return its faults."""
        self._warm_up()
        faults, seen = self._play(trace)
        progress = self.progress
        progress.examples += 1
        if isinstance(seen, Observation):
            progress.steps += len(trace.steps)
            progress.unmeasured += seen.error is not None
            self._states.update(map(_state, seen.steps))
            progress.states = max(progress.states, len(self._states))
        else:
            progress.deaths += 1
        if self._graphs and self.target.arm.compiled:
            progress.graphs, progress.budget = self._graphs.built, self._graphs.budget()
        progress.seconds = time.perf_counter() - self._begun
        self._watch.example(progress, trace)
        return faults

    def replay(self, trace: Trace, *, new_session: bool) -> tuple[list[Fault], bool]:
        """Play a trace again, on a new session or on that of the examples; return its faults.

        The second value is True if the worker died.
        """
        if not new_session:
            self._warm_up()
            faults, seen = self._play(trace)
        else:
            self._graphs = None
            faults, seen = self._play(trace)
            self._graphs = None
        return faults, isinstance(seen, Death)

    def new_faults(self, faults: Sequence[Fault]) -> list[Fault]:
        """Return the faults of the first step that has one which is not known yet."""
        names = [name for name, _ in self._known]
        new = [one for one in faults if one.key not in self._known and names.count(one.name) < self._per_name]
        return [one for one in new if one.trace == new[0].trace]

    def confirmed(self, faults: Sequence[Fault]) -> list[Fault]:
        """Return the faults whose rule is broken first as well where all rows are read after every step.

        A row that nobody read before a resize may be wrong since the set before it: that is another rule.
        """
        trace = faults[0].read_everywhere if faults else None
        if trace is None or faults[0].rule is Rule.R11:
            return list(faults)
        first, _ = self.replay(trace, new_session=False)
        return [one for one in faults if not first or one.rule in {other.rule for other in first}]

    def tell(self, fault: Fault, example: int, *, alone: bool | None = None) -> None:
        """Make a finding of a fault, which is known from then on."""
        if alone is None and fault.rule:
            alone = not self.target.arm.compiled or any(
                one.rule is fault.rule for one in self.replay(fault.trace, new_session=True)[0]
            )
        finding = self._finding(fault, example, alone)
        self._known.append(fault.key)
        self.findings.append(finding)
        self.progress.findings += 1
        self._watch.found(finding)

    def _warm_up(self) -> None:
        """Compile for many rows first, as a profile run does: one row would be compiled for itself."""
        if self._graphs is None and self.target.arm.compiled:
            self._play(Trace(CAPACITY, (Step(Op.PROFILE, CAPACITY),)))
            self.progress.sessions += 1

    def _play(self, trace: Trace) -> tuple[list[Fault], Observation | Death]:
        case, new_session = self.target.case(trace, 1), self._graphs is None
        graphs = self._graphs = self._graphs or SessionGraphs(self.target)
        seen = self._player.play(case, new_session=new_session)
        if isinstance(seen, Death):
            self._graphs = None
            return [fault_of_death(trace, seen)], seen
        faults = [fault for of_step in faults_by_step(case, seen, graphs.budget) for fault in of_step]
        graphs.played(trace, seen)
        if seen.graphs and seen.graphs.limit_hit:
            self._graphs = None
        return faults, seen

    def _finding(self, fault: Fault, example: int, alone: bool | None) -> Finding:
        target, said = self.target, fault.judgement
        return Finding(
            kind=FindingKind.RULE if said else FindingKind(fault.name), rule=fault.rule,
            trace=str(fault.trace), shape=fault.shape, detail=fault.detail, target=target.subject,
            arm=target.arm.name, family=target.family, examples=example,
            seconds=time.perf_counter() - self._begun, seed=self.seed, value=said.value if said else None,
            limit=said.limit if said else None, unit=said.unit if said else "", alone=alone,
            source=target.buffer.source, engine=target.buffer.package,
            model_class=target.buffer.model_class, effect=said.effect if said else None,
        )  # fmt: skip


class _SearchIsOver(BaseException):
    """Signal that ends a search at once: hypothesis would draw the examples that are left, for nothing.

    hypothesis passes on what is no `Exception`, as it does with KeyboardInterrupt.
    """


class _Search:
    """The test function of one search: true for a trace with a new fault, and then for that fault alone.

    Each trace is played once, so that the same trace always has the same answer.
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
            self.seen[trace] = self._first(trace) if self._wanted is None else self._again(trace)
        return self.seen[trace] is not None

    def _first(self, trace: Trace) -> Fault | None:
        hunt = self._hunt
        if hunt.is_over or hunt.progress.examples >= self.until:
            raise _SearchIsOver
        new = hunt.confirmed(hunt.new_faults(hunt.play_example(trace)))
        if not new or not self._is_shown_again(new[0]):
            return None
        self._wanted, self.example = new[0], hunt.progress.examples
        return new[0]

    def _is_shown_again(self, fault: Fault) -> bool:
        """Say whether a new session shows a fault of R11 too; tell it as it is where it does not.

        On the session of the examples a graph is built once, so that a second play would not show it.
        """
        if fault.rule is not Rule.R11:
            return True
        faults, _ = self._hunt.replay(fault.trace, new_session=True)
        if any(one.rule is fault.rule for one in faults):
            return True
        self._hunt.tell(fault, self._hunt.progress.examples, alone=False)
        return False

    def simplest(self, fault: Fault) -> Fault:
        """Return the fault with a trace that has no needless step, setting or option, as far as tries last.

        hypothesis shrinks the numbers that these were chosen by, where the next smaller number may stand for
        a payload that shows nothing.
        """
        fault = self._without_needless_steps(fault)
        for change in changes(fault.trace):
            simpler = without(fault.trace, change)
            fault = (simpler and self._again(simpler)) or fault
        return fault

    def _without_needless_steps(self, fault: Fault) -> Fault:
        """Return the fault with a trace from which no single step can be left out, as far as tries last.

        hypothesis shrinks the numbers that a trace was written from, where one number stands for several
        steps.  Runs of a compiled decoder stay: the session of the examples may do without, another cannot.
        """
        self._left = max(self._left, _LEFT_OUT)
        kept = RUNS_DECODER if self._hunt.target.arm.compiled else ()
        index = len(fault.trace.steps) - 1
        while index > 0:
            index -= 1
            steps = fault.trace.steps
            if steps[index].op in kept:
                continue
            shorter = replace(fault.trace, steps=(*steps[:index], *steps[index + 1 :]))
            fault = self._again(shorter) or fault
            index = min(index, len(fault.trace.steps) - 1)
        return fault

    def _again(self, trace: Trace) -> Fault | None:
        wanted = self._wanted
        assert wanted is not None  # something was found
        if self._left <= 0:
            return None
        new_session = wanted.rule is Rule.R11
        faults, died = self._hunt.replay(trace, new_session=new_session)
        self._left -= _SHRINKS // _SLOW_SHRINKS if new_session or died else 1
        # Reasons of recompiles follow from the graphs that are there: alone, R11 has another shape.
        same = (one for one in faults if one.key == wanted.key or (new_session and one.rule is wanted.rule))
        return next(same, None)


def _settings(examples: int) -> settings:
    # Health checks are clocks and sizes: a compiled decoder is slow the first time.
    return settings(
        max_examples=examples, phases=[Phase.generate, Phase.shrink], deadline=None, database=None,
        derandomize=False, verbosity=Verbosity.quiet, suppress_health_check=list(HealthCheck),
    )  # fmt: skip


def _state(facts: StepFacts) -> tuple[object, ...]:
    """Return what is the same in two moments that look alike: rows, and what the last answer was made of."""
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
    found = Hunt(target, player, seed=seed, watch=watch, per_name=per_name)
    found.search(lifecycles(target), examples)
    return found
