"""Faults of one trace: the rules that it breaks in its first wrong step, or the death of its worker."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from deepstack_harness.contract.case import Case, PlannedCase
from deepstack_harness.contract.observation import Observation, StepFacts
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import SECOND, Op, Step, Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.fuzzing.player import Death
from deepstack_harness.oracles.judged_case import judge_case

Budget = Callable[[Sequence[Step]], int]
"""Graphs that a correct buffer needs for these steps."""

_SAYS_NOTHING_OF_ROWS = frozenset({Rule.R1, Rule.R6, Rule.R7})
"""Rules that may be broken without a row being wrong: behind such a step the trace can be judged further."""

_PLACE = re.compile(r"^step \d+ '[^']*': (?=[\d,]+ rows?)")
_PAYLOAD_OPTIONS = re.compile(r" (?:(?:spans|request|layout|dtype|values|on|fail)=[^ ']+|grad\b)")
_MESSAGE = re.compile(r"(raised \w+): .*")
_MORE = re.compile(r" \(and \d+ more\)")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")
_PLURAL = re.compile(r"(# (?:wrong )?\w+?)s\b")


@dataclass(frozen=True)
class Fault:
    """A broken rule, or the death of a worker, and the trace up to the step that shows it.

    `name` is the rule or the kind of death.  Faults of the same `key` are taken for one.
    """

    name: str
    shape: str
    trace: Trace
    detail: str
    judgement: Judgement | None = None
    read_everywhere: Trace | None = None
    """The trace with a read of all rows before the first step and behind each; None for a death."""

    @property
    def key(self) -> tuple[str, str]:
        """The name and the shape."""
        return self.name, self.shape

    @property
    def rule(self) -> Rule | None:
        """The broken rule; None for a death."""
        return self.judgement.rule if self.judgement else None


def fault_of_death(trace: Trace, death: Death) -> Fault:
    """Return the death as a fault of the step that was played."""
    until = replace(trace, steps=trace.steps[: death.step])
    return Fault(death.kind, str(until.steps[-1].op), until, death.detail)


def faults_by_step(case: Case, observation: Observation, budget: Budget) -> Iterator[list[Fault]]:
    """Iterate over the faults of the first wrong step, and of later ones as far as they can be judged.

    Rows behind a wrong row are not judged: later faults would only follow from it.  R0 is left out where
    another rule is broken in the same step, because a wrong payload makes a wrong output.
    """
    done: frozenset[Rule] = frozenset()
    judge = _Prefixes(case, observation, budget)
    while done <= _SAYS_NOTHING_OF_ROWS:
        broken = judge.first_broken(done)
        if not broken:
            return
        done |= {fault.judgement.rule for fault in broken if fault.judgement}
        yield [fault for fault in broken if fault.rule is not Rule.R0] or broken


class _Prefixes:
    """Prefixes of a played trace, judged without playing them again."""

    def __init__(self, case: Case, observation: Observation, budget: Budget) -> None:
        self._case = case
        self._observation = observation
        self._budget = budget

    def first_broken(self, without: frozenset[Rule]) -> list[Fault]:
        """Return the faults of the shortest prefix that breaks a rule, apart from rules `without`."""
        steps, rules = self._case.trace.steps, frozenset(Rule) - without
        rules = frozenset(said.rule for said in self._broken(len(steps), rules))
        if not rules:
            return []
        shortest = 1 + bisect_left(
            range(1, len(steps)), True, key=lambda count: bool(self._broken(count, rules))
        )
        trace = replace(self._case.trace, steps=steps[:shortest])
        read = _read_everywhere(trace, self._observation.steps)
        return [
            Fault(said.rule, shape_of(said.detail), trace, said.detail, said, read)
            for said in self._broken(shortest, rules)
        ]

    def _broken(self, count: int, rules: frozenset[Rule]) -> list[Judgement]:
        case, seen = self._case, self._observation
        steps = case.trace.steps[:count]
        if count < len(case.trace.steps):
            # As many graphs as there were then.
            graphs = seen.graphs and replace(seen.graphs, graphs=seen.steps[count - 1].graphs)
            seen = replace(seen, steps=seen.steps[:count], graphs=graphs)
            case = replace(case, trace=replace(case.trace, steps=steps))
        case = replace(case, graph_budget=self._budget(steps))
        said = judge_case(PlannedCase(case, None), seen, rules).judgements
        return [one for one in said if one.verdict is Verdict.FAIL]


def _read_everywhere(trace: Trace, seen: Sequence[StepFacts]) -> Trace:
    # The first read of new storage must not stand behind a rejected call, which would be blamed for the rows.
    done = [Step(Op.GET, trace.capacity, on=name) for name in (None, SECOND)[: trace.buffers]]
    for step, facts in zip(trace, seen, strict=False):
        done.append(step)
        if step.op is not Op.GET and facts.capacity <= _MOST_READ * trace.capacity:
            done.append(Step(Op.GET, facts.capacity, on=step.on))
    return replace(trace, steps=tuple(done))


_MOST_READ = 8
"""Times the capacity at the beginning, up to which all rows are read."""


def shape_of(detail: str) -> str:
    """Return a description without its numbers, and an exception without its message.

    "step 3 'get 16': 2 rows over 1 level, first row 9 of level 0 holds zeros" and the same with other
    numbers behind another step are one shape.
    """
    text = _MORE.sub("", _MESSAGE.sub(r"\1", _PAYLOAD_OPTIONS.sub("", _PLACE.sub("", detail))))
    return _PLURAL.sub(r"\1", _NUMBER.sub("#", text))
