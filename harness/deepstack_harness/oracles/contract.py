"""R2, R3, R4, R5, R8: the ledger follows the observed trace, and every row is compared.

One wrong row breaks one rule.  Asked above the capacity it is R4; a wrong count
or an exception is R2; a row of a cleared payload is R5, of a replaced one (or of
a caller's tensor that was not copied) R3; a row that went wrong through a
rejected call is R8 (or R4, when it was rejected for its size), through growth R4;
what is left is R2.  What a detached graph read, and rows that it failed to clear,
are for R6 to tell.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from deepstack_harness.contract.case import Answer, Case, Judgement, Observation, Run, StepFacts
from deepstack_harness.contract.ledger import Expected, Fate, Ledger, Outcome
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import RUNS_DECODER, Op, Step
from deepstack_harness.oracles.base import against, numbered_steps, skip

Cell = tuple[int | None, int, int]
"""Origin of one row: (payload, level, row), as in `deepstack_harness.contract.case.Run`."""


@dataclass(frozen=True)
class Finding:
    """One deviation: how many rows or calls, in which step, and whose rows."""

    rule: Rule
    amount: int
    unit: str
    detail: str


@dataclass
class Audit:
    """What following a trace brought to light: findings, and the rules that were put to the test."""

    findings: list[Finding] = field(default_factory=list)
    judged: set[Rule] = field(default_factory=set)
    unavailable: list[str] = field(default_factory=list)


_META = "meta"
"""The device whose tensors have no storage; that an answer lies there is R7."""

_LAST: "list[_Audited]" = []
"""The audit made last, and of what."""


def boundary(case: Case, observation: Observation) -> Judgement:
    """R2: wrong counts, exceptions and wrong values within the capacity."""
    return _judge(Rule.R2, case, observation, "no get or clear within the capacity")


def freshness(case: Case, observation: Observation) -> Judgement:
    """R3: rows of a payload that a later set replaced."""
    return _judge(Rule.R3, case, observation, "no row of a replaced payload could be read")


def capacity(case: Case, observation: Observation) -> Judgement:
    """R4: calls above the capacity, and resize."""
    return _judge(Rule.R4, case, observation, "no step went above the capacity")


def clear(case: Case, observation: Observation) -> Judgement:
    """R5: rows of a payload that was cleared."""
    return _judge(Rule.R5, case, observation, "no row of a cleared payload could be read")


def rejection(case: Case, observation: Observation) -> Judgement:
    """R8: bad calls that were accepted, or changed something though they were rejected."""
    return _judge(Rule.R8, case, observation, "no step makes a bad call")


def audit(case: Case, observation: Observation) -> Audit:
    """Follow the whole trace; one that goes on where the last one audited ended is followed from there.

    So the oracles of one observation share an audit, and a trace that is judged after
    every step is followed once.
    """
    if not _LAST or not _LAST[0].goes_on_in(case, observation):
        _LAST[:] = [_Audited(case, observation)]
    return _LAST[0].upto(case, observation)


class _Audited:
    """An audit, and the steps that it has come through."""

    def __init__(self, case: Case, observation: Observation) -> None:
        self._sizes = _sizes(case, observation)
        self._follower = _Follower(Ledger(case.trace.capacity, observation.levels, observation.hidden))
        self._done: list[tuple[Step, StepFacts]] = []

    def goes_on_in(self, case: Case, observation: Observation) -> bool:
        """Whether this begins with the very steps that were followed."""
        pairs = zip(self._done, case.trace.steps, observation.steps, strict=False)
        return (
            self._sizes == _sizes(case, observation)
            and len(self._done) <= len(observation.steps)
            and all(done[0] is step and done[1] is facts for done, step, facts in pairs)
        )

    def upto(self, case: Case, observation: Observation) -> Audit:
        """Follow what is new; answers the audit of it all."""
        if observation.vision:
            for number, step, facts in [*numbered_steps(case, observation)][len(self._done) :]:
                self._follower.follow(number, step, facts)
                self._done.append((step, facts))
        return self._follower.audit


def _sizes(case: Case, observation: Observation) -> tuple[int, int, int]:
    return case.trace.capacity, observation.levels, observation.hidden


def _judge(rule: Rule, case: Case, observation: Observation, why_skipped: str) -> Judgement:
    found = audit(case, observation)
    mine = [finding for finding in found.findings if finding.rule is rule]
    if not mine and rule not in found.judged:
        return skip(rule, "; ".join([why_skipped, *found.unavailable]))
    unit = mine[0].unit if mine else "rows"
    amount = sum(finding.amount for finding in mine if finding.unit == unit)
    return against(rule, amount, 0, unit, _summary(mine))


def _summary(findings: list[Finding]) -> str:
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return findings[0].detail + more if findings else ""


class _Follower:
    """Walks a trace beside a ledger and collects findings."""

    def __init__(self, ledger: Ledger) -> None:
        self.audit = Audit()
        self._ledger = ledger
        self._reported: set[tuple[int, int]] = set()
        self._suspect: Rule | None = None
        """The rule that a row newly wrong at the next read breaks: growth or a rejection came before."""
        self._astray = False
        """A graph read and cleared other storage than the buffer's: of its rows nothing is known."""

    def follow(self, number: int, step: Step, facts: StepFacts) -> None:
        """Compare one step (number from 1), then move the ledger on."""
        if facts.unavailable:
            self.audit.unavailable.append(facts.unavailable)
            return
        where = f"step {number} '{step}'"
        expected = self._ledger.expect(step)
        self._astray |= _detached(facts)
        self._test(step, expected)
        self._compare_outcome(where, step, expected, facts)
        if facts.answer is not None and expected.levels and not (self._ledger.unsound or self._astray):
            self._compare_rows(where, step, expected, facts.answer)
        self._move_on(step, expected, facts)

    def _test(self, step: Step, expected: Expected) -> None:
        unread = self._astray and expected.levels
        if not unread and (step.op is not Op.SET or expected.rule is not Rule.R2):
            self.audit.judged.add(expected.rule)

    def _compare_outcome(self, where: str, step: Step, expected: Expected, facts: StepFacts) -> None:
        raised = facts.raised if facts.raised and facts.raised.call != "decoder" else None
        if raised is None and expected.outcome is Outcome.RAISES and facts.raised is None:
            self._report(expected.rule, 1, "calls", f"{where} was accepted")
        if raised is not None and expected.outcome is Outcome.ANSWERS:
            said = f"{raised.call} raised {raised.type}: {raised.message}"
            self._report(expected.rule, 1, "calls", f"{where}: {said}")

    def _compare_rows(self, where: str, step: Step, expected: Expected, answer: Answer) -> None:
        if len(answer.rows) != len(expected.levels):
            return  # None, or a level too few: that is R1
        if _META not in answer.devices:
            self._expose(step.tokens)
        wrong: dict[Rule, list[tuple[int, int, Cell | None]]] = {}
        comparable = map(_comparable, expected.levels, answer.devices)
        for level, (runs, wanted) in enumerate(zip(answer.rows, comparable, strict=True)):
            for row, cell, right in _rows_side_by_side(runs, wanted):
                if cell != right and (level, row) not in self._reported:
                    self._reported.add((level, row))
                    wrong.setdefault(self._rule(expected, cell, right), []).append((level, row, cell))
        for rule, cells in wrong.items():
            self._report(rule, len(cells), "rows", f"{where}: {self._describe(cells)}")
        self._suspect = None

    def _expose(self, tokens: int) -> None:
        # A rule about stale rows is put to the test only where such a row could have been
        # read: behind the live payload, where an ended one once lay.
        for fate, rule in ((Fate.REPLACED, Rule.R3), (Fate.CLEARED, Rule.R5)):
            if min(tokens, self._ledger.stale_rows(fate)) > self._ledger.tokens:
                self.audit.judged.add(rule)

    def _rule(self, expected: Expected, cell: Cell | None, right: Cell | None) -> Rule:
        if expected.rule is Rule.R4:
            return Rule.R4
        if cell is None or right is None:
            return Rule.R2  # a row missing, or one too many
        payload = cell[0]
        if payload is not None and payload < 0:
            return Rule.R3  # the caller's tensor was kept instead of copied
        fate = self._ledger.payloads[payload].fate if payload else None
        if fate in (Fate.CLEARED, Fate.REPLACED):
            return Rule.R5 if fate is Fate.CLEARED else Rule.R3
        return self._suspect or Rule.R2

    def _describe(self, cells: list[tuple[int, int, Cell | None]]) -> str:
        level, row, cell = cells[0]
        levels = len({level for level, _, _ in cells})
        return (
            f"{len(cells)} rows over {levels} levels, first row {row} of level {level} {self._origin(cell)}"
        )

    def _origin(self, cell: Cell | None) -> str:
        if cell is None:
            return "is missing or one too many"
        payload, level, row = cell
        if payload is None:
            return "holds values that were never set"
        if payload == 0:
            return "holds zeros"
        owner = self._ledger.payloads[abs(payload)]
        if payload < 0:
            return f"follows the caller's tensor of payload {-payload} (request {owner.request})"
        ended = f", {owner.fate} at step {owner.ended_by}" if owner.fate is not Fate.LIVE else ""
        return f"holds row {row}, level {level} of payload {payload} (request {owner.request}{ended})"

    def _move_on(self, step: Step, expected: Expected, facts: StepFacts) -> None:
        accepted = facts.raised is None
        if accepted and (step.op is Op.CLEAR or step.op in RUNS_DECODER) and not _detached(facts):
            self._astray = False
        ends_rows = step.op in {Op.SET, Op.CLEAR} or expected.levels
        self._ledger.commit(step, accepted=accepted, capacity=facts.capacity)
        if accepted and ends_rows and step.op is not Op.GET:
            self._reported.clear()
            self._suspect = None
        if expected.rule is Rule.R8 or (expected.rule is Rule.R4 and facts.answer is None):
            self._suspect = expected.rule

    def _report(self, rule: Rule, amount: int, unit: str, detail: str) -> None:
        self.audit.findings.append(Finding(rule, amount, unit, detail))


def _detached(facts: StepFacts) -> bool:
    return facts.graph_use is not None and facts.graph_use.detached


def _comparable(wanted: tuple[Run, ...], device: str) -> tuple[Run, ...]:
    """What can be held against an answer: rows on meta have no values, only their number counts."""
    return (Run(None, 0, 0, sum(run.rows for run in wanted)),) if device == _META else wanted


def _rows_side_by_side(
    runs: tuple[Run, ...], wanted: tuple[Run, ...]
) -> Iterator[tuple[int, Cell | None, Cell | None]]:
    """(row, what it is, what it must be) where they may differ; None where one side has no such row."""
    if runs == wanted:
        return
    found, right = list(_cells(runs)), list(_cells(wanted))
    for row in range(max(len(found), len(right))):
        yield row, found[row] if row < len(found) else None, right[row] if row < len(right) else None


def _cells(runs: Iterable[Run]) -> Iterator[Cell]:
    for payload, level, row, count in runs:
        steps = payload is not None and payload > 0
        yield from ((payload, level, row + (offset if steps else 0)) for offset in range(count))
