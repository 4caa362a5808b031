"""What a hunt is about: its target, the faults of one trace, findings, and its progress.

A `Fault` is a rule that a trace breaks in its first wrong step, or the death of the worker that played it. A
`Finding` is a fault that a hunt reports, as a trace that plays again from its text. A `Watch`
observes a hunt, and may end it.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from deepstack_harness.catalogue.buffers import BUFFERS, REVISIONS
from deepstack_harness.contract.arm import EAGER, ArmSpec, Capture, PayloadPolicy
from deepstack_harness.contract.case import (
    ENGINE,
    BufferKind,
    BufferRef,
    Case,
    Compare,
    PlannedCase,
    parse_subject,
    registered,
    subject_of,
    user_buffer,
)
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.oracles.judge import judge_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import SECOND, Op, Step, Trace
from deepstack_harness.contract.verdicts import Judgement, Row, Verdict
from deepstack_harness.errors import UsageError, unknown_name
from deepstack_harness.fuzz.player import Death, FindingKind
from deepstack_harness.models.variants import check_family
from deepstack_harness.options import option

Budget = Callable[[Sequence[Step]], int]
"""Graphs that a correct buffer needs for these steps."""

_WITHOUT_WRONG_ROWS = frozenset({Rule.STRUCTURE, Rule.ADDRESS, Rule.PLACEMENT})
"""Rules that may be broken without a row being wrong: after such a step the trace can be judged further."""


class FaultKey(NamedTuple):
    """Identity of a fault in a hunt, also before it has a row: faults of the same key are taken for one.

    `name` is the rule or the kind of death, `shape` what is wrong (empty for a death), `call` the call of the
    step that shows it (empty where rows are wrong, whoever reads them), `exception` the type of what it
    raised.
    """

    name: str
    shape: str
    call: str
    exception: str = ""


@dataclass(frozen=True)
class Fault:
    """A broken rule, or the death of a worker, and the trace up to the step that shows it."""

    key: FaultKey
    trace: Trace
    detail: str
    judgement: Judgement | None = None
    read_everywhere: Trace | None = None
    """The trace with a read of all rows before the first step and after each; None for a death."""

    @property
    def name(self) -> str:
        """The rule or the kind of death."""
        return self.key.name

    @property
    def rule(self) -> Rule | None:
        """The broken rule; None for a death."""
        return self.judgement.rule if self.judgement else None


def fault_of_death(trace: Trace, death: Death) -> Fault:
    """Return the death as a fault of the step that was played."""
    until = replace(trace, steps=trace.steps[: death.step])
    return Fault(FaultKey(death.kind, "", call_of(until.steps[-1])), until, death.detail)


def fault_of_judgement(trace: Trace, judgement: Judgement, read_everywhere: Trace | None = None) -> Fault:
    """Return a broken rule as a fault of the last step of a trace."""
    call = "" if judgement.row is not None else call_of(trace.steps[-1])
    key = FaultKey(judgement.rule, judgement.shape or "", call, judgement.exception)
    return Fault(key, trace, judgement.detail, judgement, read_everywhere)


def call_of(step: Step) -> str:
    """Return a step without its numbers: the operation, and what makes the call one to be refused."""
    levels = "" if step.levels is None else " levels"
    hidden = "" if step.hidden is None else " hidden"
    return f"{step.op}{' negative' if step.tokens < 0 else ''}{levels}{hidden}"


def faults_by_step(case: Case, observation: Observation, budget: Budget) -> Iterator[list[Fault]]:
    """Iterate over the faults of the first wrong step, and of later ones as far as they can be judged.

    Rows after a wrong row are not judged: later faults would only follow from it. R0 is left out where
    another rule is broken in the same step, because a wrong payload makes a wrong output. Prefixes of the
    trace are judged without playing them again.
    """
    done: frozenset[Rule] = frozenset()
    steps = case.trace.steps
    broken = partial(_broken, case, observation, budget)
    while done <= _WITHOUT_WRONG_ROWS:
        rules = frozenset(judgement.rule for judgement in broken(frozenset(Rule) - done, len(steps)))
        if not rules:
            return
        shortest = 1 + bisect_left(
            range(1, len(steps)),
            True,
            key=lambda count: bool(broken(rules, count)),  # called at once
        )
        trace = replace(case.trace, steps=steps[:shortest])
        # The first read of new storage must not follow a rejected call, which would be blamed for the rows.
        reads = [Step(Op.GET, trace.capacity, on=name) for name in (None, SECOND)[: trace.buffers]]
        for step, facts in zip(trace, observation.steps, strict=False):
            reads.append(step)
            if step.op is not Op.GET and facts.capacity <= _MOST_READ * trace.capacity:
                reads.append(Step(Op.GET, facts.capacity, on=step.on))
        read = replace(trace, steps=tuple(reads))
        faults = [fault_of_judgement(trace, judgement, read) for judgement in broken(rules, shortest)]
        done |= {fault.rule for fault in faults if fault.rule}
        yield [fault for fault in faults if fault.rule is not Rule.OUTPUT] or faults


def _broken(
    case: Case, seen: Observation, budget: Budget, rules: frozenset[Rule], count: int
) -> list[Judgement]:
    """Return what the first `count` steps break of these rules."""
    steps = case.trace.steps[:count]
    if count < len(case.trace.steps):
        # As many graphs as there were then.
        graphs = seen.graphs and replace(seen.graphs, graphs=seen.steps[count - 1].graphs)
        seen = replace(seen, steps=seen.steps[:count], graphs=graphs)
        case = replace(case, trace=replace(case.trace, steps=steps))
    case = replace(case, graph_budget=budget(steps))
    judgements = judge_case(PlannedCase(case, None), seen, rules).judgements
    return [judgement for judgement in judgements if judgement.verdict is Verdict.FAIL]


_MOST_READ = 8
"""Times the capacity at the beginning, up to which all rows are read."""


@dataclass(frozen=True, kw_only=True)
class Finding(Row[Rule | None]):
    """The row of one fault, and how it was found.

    `rule` is there for kind `rule` only. Findings of one rule or kind differ in `shape`, `call` or
    `exception`, see `FaultKey`. `examples` is the number of the example that showed it, `seconds` the time
    until then. A trace that is `alone` True showed it on a session of its own too;
    None where that was not tried.
    """

    kind: FindingKind
    examples: int
    seconds: float
    seed: int
    alone: bool | None = None

    @property
    def name(self) -> str:
        """The rule, or the kind."""
        return str(self.rule or self.kind)

    @property
    def key(self) -> FaultKey:
        """The key of the fault that was found."""
        return FaultKey(self.name, self.shape or "", self.call or "", self.exception or "")

    @property
    def line(self) -> str:
        """One line of text with what broke and the trace that shows it again."""
        return f"{self.revision} [{self.arm}] {self.name}: {self.trace}  # {self.detail}"


@dataclass(frozen=True)
class Target:
    """A buffer, and the arm, family and caller that call it.

    With arm `eager` no decoder runs, only the buffer. Raises `UsageError` for an arm that nothing can be
    hunted under.
    """

    buffer: BufferRef
    arm: ArmSpec = EAGER
    family: str = "qwen3_vl"
    caller: str = ENGINE

    def __post_init__(self) -> None:
        """Refuse controls, ranks, and graphs that only torch itself captures."""
        if self.arm.payload is not PayloadPolicy.BUFFER:
            raise UsageError(
                f"arm '{self.arm.name}' is a control: it reads no buffer, so it can show no fault"
            )
        if self.arm.ranks > 1 or self.arm.capture is Capture.REDUCE_OVERHEAD:
            raise UsageError(
                f"arm '{self.arm.name}' cannot be fuzzed: ranks keep no session between "
                "traces, and torch captures reduce_overhead by itself"
            )

    @property
    def alone(self) -> bool:
        """Return whether no decoder runs, only the buffer."""
        return self.arm == EAGER and self.caller == ENGINE

    @property
    def subject(self) -> str:
        """The buffer's name, with the caller where that is not a correct engine."""
        return subject_of(self.buffer.name, self.caller)

    def case(self, trace: Trace, graph_budget: int) -> Case:
        """Return the case in which a trace is played on this target."""
        return Case(
            self.family, self.buffer, trace, self.arm, graph_budget=graph_budget, caller=self.caller,
            compare=Compare.NOTHING if self.alone else Compare.EAGER,
        )  # fmt: skip


@dataclass(frozen=True)
class FuzzRequest:
    """Request of a user: a source, a MODULE:CLASS, or a revision or mutant (with its caller after an @)."""

    source: str | None = None
    buffer: str | None = option("test a buffer class of your own", metavar="MODULE:CLASS", default=None)
    revision: str | None = option(
        "test this revision or mutant (default reference)", metavar="R", default=None
    )
    family: str = option(
        "model family, see 'list families' (default qwen3_vl)", metavar="F", default="qwen3_vl"
    )
    arm: str = option(
        "eager (default), which plays the buffer alone, or another arm of 'list arms'",
        metavar="A",
        parse=lambda text: ArmSpec.parse(text).name,
        default="eager",
    )

    @property
    def name(self) -> str:
        """The name that the user wrote."""
        return self.source or self.buffer or self.revision or "reference"

    def target(self, buffer: BufferRef | None = None) -> Target:
        """Return the target, where that of a source or of a class of the user is `buffer`.

        Raises `UsageError` for an unknown family, arm or revision, and for one that nothing can be
        hunted under.
        """
        check_family(self.family)
        arm = ArmSpec.parse(self.arm)
        if buffer and buffer.adapter and arm != EAGER:
            raise UsageError(f"--arm {arm.name}: an adapter class fits no decoder, and is for --arm eager")
        if self.source:
            # The class is known only when a worker has bound it.
            return Target(buffer or BufferRef(BufferKind.SOURCE, self.source), arm, self.family)
        if self.buffer:
            return Target(buffer or user_buffer(self.buffer), arm, self.family)
        revision, caller = parse_subject(self.name)
        if revision not in BUFFERS:
            raise unknown_name("revision", revision, BUFFERS, f"{', '.join(REVISIONS)}, and mutants")
        return Target(registered(revision), arm, self.family, caller)


@dataclass
class Progress:
    """Progress of a hunt in numbers; `graphs` of the last session are counted against their `budget`."""

    examples: int = 0
    steps: int = 0
    states: int = 0
    findings: int = 0
    graphs: int = 0
    budget: int = 0
    sessions: int = 0
    unmeasured: int = 0
    why_unmeasured: str = ""
    """Why the first example that could not be measured could not; a worker that was tampered with is one."""
    deaths: int = 0
    searches: int = 0
    """Searches that were begun; the seed of each follows from its number."""
    seconds: float = 0.0

    @property
    def steps_per_second(self) -> float:
        """Steps of examples, reads included, over the time of everything."""
        return self.steps / self.seconds if self.seconds else 0.0


class Watch:
    """Observer of a hunt; does nothing."""

    def on_example(self, progress: Progress, trace: Trace) -> None:
        """Note that an example was played."""

    def on_finding(self, finding: Finding) -> None:
        """Note a finding."""

    def is_done(self) -> bool:
        """Return whether the hunt is to end; called before each example."""
        return False
