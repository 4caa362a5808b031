"""A hunt: hypothesis drives the machine over a target, and what it breaks comes back as shrunk traces."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import FlakyStrategyDefinition
from hypothesis.stateful import run_state_machine_as_test

from deepstack_harness.contract.case import Judgement
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.errors import OutOfMemory
from deepstack_harness.fuzzing.example import Example
from deepstack_harness.fuzzing.finding import Finding, FindingKind
from deepstack_harness.fuzzing.machine import ContractMachine
from deepstack_harness.fuzzing.pattern import contains, loosely, pattern_of
from deepstack_harness.fuzzing.running import Live
from deepstack_harness.fuzzing.session import Ground
from deepstack_harness.fuzzing.shrink import shrink
from deepstack_harness.fuzzing.target import Target

PER_RULE = 3
"""Findings of one rule with different patterns; further ones are not looked at."""
STEPS = 10
"""Choices of the machine in one example; some are several steps."""
CAPACITY = 16
"""Of compiled decoders: all traces share a session that was compiled for it."""
_AGAIN = 6
"""As often as traces of one rule were shrunk to a known finding, they are believed to be."""
_COLD_PLAYS = 12
"""Tries to shrink what only a session of its own shows; each compiles."""


class Enough(BaseException):
    """Raised by a watcher to end the hunt; what was found stays."""


@dataclass
class Progress:
    """How far a hunt is: counts of what it did, and the graphs of its last session against their budget."""

    examples: int = 0
    steps: int = 0
    states: int = 0
    findings: int = 0
    graphs: int = 0
    budget: int = 0
    sessions: int = 0
    unmeasured: int = 0
    seconds: float = 0.0

    @property
    def steps_per_second(self) -> float:
        """Steps, reads included, over the time of everything."""
        return self.steps / self.seconds if self.seconds else 0.0


class Watch:
    """What a caller wants to know while a hunt goes on; may raise `Enough` anywhere."""

    def step(self, capacity: int, step: Step) -> None:
        """`step` is played next, in a trace of this capacity."""

    def begins(self) -> None:
        """A new trace begins."""

    def example(self, progress: Progress) -> None:
        """An example is over."""

    def found(self, finding: Finding) -> None:
        """Something was found, or shown again by a smaller trace."""


@dataclass
class Result:
    """What came of a hunt."""

    findings: list[Finding] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)


def hunt(
    target: Target, *, examples: int, seed: int = 0, known: Sequence[Finding] = (), watch: Watch | None = None
) -> Result:
    """Play `examples` traces on a target and answer with what it broke, each by a shrunk trace.

    The same seed gives the same findings, where the same modules are loaded: hypothesis also
    draws constants that it reads in them.  A finding is told once for each rule and
    pattern of steps, and not at all where it is `known`; traces that would end the
    process as a known one of another kind does are not played.
    """
    going = Hunt(target, seed, known, watch or Watch(), examples)
    with torch.no_grad(), contextlib.closing(going):
        try:
            _drive(going)
        except (Enough, FlakyStrategyDefinition) as end:
            # hypothesis finds an example flaky that ended where it once had gone on.
            if not isinstance(end.__context__ or end, Enough):
                raise
        with contextlib.suppress(Enough):
            going.confirm()
    return going.result


def _drive(going: "Hunt") -> None:
    machine = seed(going.seed)(type("Machine", (ContractMachine,), {"hunt": going}))
    # Nothing ever fails here: there is nothing to reuse, to explain or to shrink.  Health checks are
    # clocks and sizes; a compiled decoder is slow the first time.
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=going.examples, stateful_step_count=STEPS, phases=[Phase.generate], deadline=None,
            database=None, derandomize=False, suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip


class Hunt:
    """What the examples of one hunt share."""

    def __init__(
        self, target: Target, seed: int, known: Sequence[Finding], watch: Watch, examples: int
    ) -> None:
        """Nothing is played yet."""
        self.target = target
        self.examples = examples
        self.seed = seed
        self.watch = watch
        self.result = Result()
        self.avoided = [loosely(finding.pattern) for finding in known if finding.kind is not FindingKind.RULE]
        self._ground = Ground(target)
        self._known = list(known)
        self._again: Counter[str] = Counter()
        self._states: set[tuple[object, ...]] = set()
        self._start = time.perf_counter()

    def begin(self, capacity: int) -> Example:
        """A fresh example; hypothesis also counts those that it makes nothing of, so it would play more."""
        if self.result.progress.examples == self.examples:
            raise Enough
        self.watch.begins()
        return Example(self, self._ground.begin(capacity if self.target.alone else CAPACITY))

    def beginning(self, capacity: int) -> Iterator[Step]:
        """A profile run where a decoder has to be compiled, graphs where they are captured; else a read."""
        if self.target.alone:
            yield Step(Op.GET, capacity)
            return
        yield Step(Op.PROFILE, capacity)
        if self.target.arm.captured:
            yield Step(Op.CAPTURE, capacity)

    @property
    def judges_at_once(self) -> bool:
        """Whether each step is judged before the next; with a compiled decoder it is when all are played."""
        return not self.target.arm.compiled

    def end(self, example: Example) -> None:
        """An example is over."""
        example.finish()
        self._ground.end(example.live)
        done = self.result.progress
        done.examples += 1
        done.steps += len(example.live.steps)
        done.unmeasured += example.live.unmeasured is not None
        done.states, done.findings = len(self._states), len(self.result.findings)
        done.graphs, done.budget, done.sessions = (
            self._ground.graphs,
            self._ground.budget,
            self._ground.sessions,
        )
        done.seconds = time.perf_counter() - self._start
        self.watch.example(done)

    def saw(self, live: Live) -> None:
        """Note the state."""
        self._states.add(live.state)

    def is_new(self, said: Judgement, live: Live) -> bool:
        """Whether no known finding explains this one."""
        return not self._explained(str(said.rule), live.trace)

    def found(self, live: Live, news: Sequence[Judgement], broken: frozenset[Rule]) -> None:
        """Shrink and tell what is new; `broken` is all that the trace breaks."""
        for said in news:
            self._tell(self._shrunk(live.trace, said, broken))

    def memory_eaten(self, live: Live, detail: str) -> None:
        """The trace used up the memory."""
        trace = live.trace
        if not self._explained(FindingKind.MEMORY, trace):
            trace = shrink(trace, self._eats, plays=40)
            self._tell(self._finding(FindingKind.MEMORY, trace, None, detail))

    def confirm(self) -> None:
        """Play what compiled decoders showed on sessions of their own, and shrink what needs one."""
        if self.target.arm.compiled:
            for finding in list(self.result.findings):
                self._confirm(finding)

    def close(self) -> None:
        """Drop what was compiled."""
        self.result.progress.seconds = time.perf_counter() - self._start
        self._ground.close()

    def _explained(self, name: str, trace: Trace) -> bool:
        same = [finding for finding in self._known if finding.name == name]
        pattern = pattern_of(trace)
        enough = len(same) >= PER_RULE or self._again[name] >= _AGAIN
        return enough or any(contains(pattern, finding.pattern) for finding in same)

    def _shrunk(self, trace: Trace, said: Judgement, broken: frozenset[Rule]) -> Finding:
        if said.rule is not Rule.R11:  # graphs that are there already hide it

            def shows(smaller: Trace) -> bool:
                return said.rule in (now := self._broken(smaller)) and now.keys() <= broken

            trace = shrink(trace, shows, keep=self._kept)
            said = self._broken(trace).get(said.rule, said)
        alone = None if self.target.arm.compiled else True
        return self._finding(FindingKind.RULE, trace, said, said.detail, alone=alone)

    def _confirm(self, finding: Finding) -> None:
        trace, rule = Trace.parse(finding.trace), finding.rule
        assert rule is not None  # memory is eaten by buffers alone too
        said = self._ground.broken_alone(trace).get(rule)
        if rule is Rule.R11 and said is not None:
            trace = shrink(
                trace, lambda one: rule in self._ground.broken_alone(one), keep=1, plays=_COLD_PLAYS
            )
            said = self._ground.broken_alone(trace).get(rule, said)
        detail = said.detail if said else finding.detail
        confirmed = finding.shrunk_to(str(trace), pattern_of(trace), detail, alone=said is not None)
        self.result.findings[self.result.findings.index(finding)] = confirmed
        self.watch.found(confirmed)

    @property
    def _kept(self) -> int:
        """A compiled decoder's first step is its profile run, also in a trace that was shrunk."""
        return 1 if self.target.arm.compiled else 0

    def _broken(self, trace: Trace) -> dict[Rule, Judgement]:
        self._announce(trace)
        try:
            return self._ground.broken(trace)
        except OutOfMemory:
            return {}

    def _eats(self, trace: Trace) -> bool:
        self._announce(trace)
        try:
            self._ground.broken(trace)
        except OutOfMemory:
            return True
        return False

    def _announce(self, trace: Trace) -> None:
        """Say what is played, for the case that the process does not live to tell."""
        self.watch.begins()
        for step in trace:
            self.watch.step(trace.capacity, step)

    def _tell(self, finding: Finding) -> None:
        if (finding.name, finding.pattern) in {(one.name, one.pattern) for one in self._known}:
            self._again[finding.name] += 1
            return
        self._known.append(finding)
        self.result.findings.append(finding)
        self.watch.found(finding)

    def _finding(
        self,
        kind: FindingKind,
        trace: Trace,
        said: Judgement | None,
        detail: str,
        *,
        alone: bool | None = True,
    ) -> Finding:
        target = self.target
        figures = replace(said, detail=detail) if said else None
        return Finding(
            kind=kind, rule=said.rule if said else None, trace=str(trace), pattern=pattern_of(trace),
            detail=detail, target=target.subject, arm=target.arm.name, family=target.family,
            examples=self.result.progress.examples + 1, seconds=time.perf_counter() - self._start,
            seed=self.seed, value=figures.value if figures else None,
            limit=figures.limit if figures else None, unit=figures.unit if figures else "", alone=alone,
            source=target.source, model_class=target.model_class,
        )  # fmt: skip


def one_each(findings: Iterable[Finding]) -> list[Finding]:
    """The shortest finding of every rule or kind, in the order of their names."""
    best: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda one: (one.name, len(one.pattern), len(one.trace))):
        best.setdefault(finding.name, finding)
    return list(best.values())
