"""The audit of a trace: the ledger follows the observed steps, and every row is compared with it.

One wrong row breaks one rule. In a call above the capacity it is R4; a wrong count, a wrong width or an
exception is R2; a row of a cleared payload is R5, of a replaced one (or of a caller's tensor that was not
copied, or was changed) R3; a row that went wrong through a rejected call is R8 (or R4, when it was rejected
for its size or because memory was exhausted), through growth R4; what is left is R2. Rows that a detached
graph read, or failed to clear, belong to R6.

`ObservedCase` is the argument of every oracle; `passed`, `judge_figure`, `skip` and `error` make a judgement.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from deepstack_harness.contract.case import Case
from deepstack_harness.contract.ledger import CallOutcome, Expected, Fate, Ledger
from deepstack_harness.contract.observation import Answer, Observation, RowOrigin, RowRange, StepFacts
from deepstack_harness.contract.rules import PayloadKind, Rule
from deepstack_harness.contract.trace import RUNS_DECODER, SECOND, Op, Step
from deepstack_harness.contract.verdicts import FaultKind, Judgement, Verdict
from deepstack_harness.text import plural


@dataclass(frozen=True)
class WrongRow:
    """One wrong row of a step; `origin` is None for a row that is missing.

    A row of a tensor, of which a `Judgement` counts thousands.
    """

    level: int
    row: int
    origin: RowOrigin | None
    shape: FaultKind


@dataclass(frozen=True)
class Deviation:
    """Wrong rows, or calls that went wrong, of one step: what an oracle folds into the judgement of a rule.

    `shape` is the kind of fault, `row` is the first wrong row where rows are wrong. `first_row` is the lowest
    number of a wrong row in the step (None: no row is wrong), `real_rows` the number of rows that belong to
    real tokens; rows after them are padding. `exception` is the type of what a call raised that had to
    return. `step` is the number of the step, from 1.
    """

    rule: Rule
    amount: int
    unit: str
    detail: str
    shape: FaultKind
    row: WrongRow | None = None
    first_row: int | None = None
    real_rows: int = 0
    exception: str = ""
    step: int = 0
    rows: tuple[WrongRow, ...] = ()
    """All wrong rows, where rows are wrong."""


def origins_of(ranges: Iterable[RowRange]) -> list[RowOrigin]:
    """Return the origin of each row; rows of a payload count up, all others share one origin."""
    return [
        (payload, level, row + offset if payload and payload > 0 else row)
        for payload, level, row, count in ranges
        for offset in range(count)
    ]


_ZERO: RowOrigin = (0, 0, 0)
"""The origin of a row of zeros."""
_ENDED = ((Fate.REPLACED, Rule.FRESHNESS), (Fate.CLEARED, Rule.CLEAR))
"""The rule about rows of a payload that ended, by how it ended."""
_META = "meta"
"""The device whose tensors have no storage; a level on it breaks R7."""

_SHAPES = {
    Fate.LIVE: FaultKind.LIVE,
    Fate.REPLACED: FaultKind.REPLACED,
    Fate.CLEARED: FaultKind.CLEARED,
    Fate.REJECTED: FaultKind.REJECTED,
    Fate.ELSEWHERE: FaultKind.OTHER_BUFFER,
}
"""Shapes of rows of a payload, by what became of the payload."""


class ContractAudit:
    """The deviations of one trace, and how often it put each rule to the test.

    One audit serves all oracles of an observation. A trace in the making may be judged after every step:
    `follow` then reads the new steps only.
    """

    def __init__(self) -> None:
        """Start before the first step."""
        self.deviations: list[Deviation] = []
        self.stale_padding: list[Deviation] = []
        """Padded rows that hold what an earlier payload left, where that is no fault."""
        self.chances: Counter[Rule] = Counter()
        """How often each rule was put to the test."""
        self.unavailable: list[str] = []
        self._followers: dict[str | None, _Follower] = {}
        self._followed: list[StepFacts] = []

    def follow(self, case: Case, observation: Observation) -> None:
        """Compare the steps that were not followed yet.

        Raises `ValueError` where `observation` does not begin with the very steps that were.
        """
        done, facts = len(self._followed), observation.steps
        if len(facts) < done or (done and facts[done - 1] is not self._followed[-1]):
            raise ValueError(f"this audit follows another trace than '{case.trace}'")
        if not observation.vision:
            return  # a model without a vision tower always returns None: that is R1
        if not self._followers:
            # A buffer may have more room than the case requests, and reports it before the first step.
            capacity = max(case.trace.capacity, observation.capacity or 0)
            sizes = (capacity, observation.levels, observation.hidden)
            names = (None, SECOND)[: case.trace.buffers]
            kind = observation.payload_kind
            self._followers = {
                name: _Follower(Ledger(*sizes, kind=kind), self, observation.dtype) for name in names
            }
        pairs = zip(case.trace.steps[done:], facts[done:], strict=True)
        for number, (step, seen) in enumerate(pairs, done + 1):
            for name, follower in self._followers.items():
                if name == step.on:
                    follower.follow(number, step, seen)
                elif not seen.unavailable:
                    follower.ledger.pass_by(step)  # on the other buffer, which may not change this one
            self._followed.append(seen)

    def deviations_of(self, rule: Rule) -> list[Deviation]:
        """Return the deviations that break one rule."""
        return [deviation for deviation in self.deviations if deviation.rule is rule]


class _Follower:
    """Comparison of a trace with a ledger, step by step; it collects the deviations."""

    def __init__(self, ledger: Ledger, audit: ContractAudit, dtype: str) -> None:
        self.ledger = ledger
        self._dtype = dtype
        self._audit = audit
        self._number = 0
        self._reported: set[tuple[int, int]] = set()
        self._suspect: Rule | None = None
        """The rule that a row newly wrong at the next read breaks: growth or a rejection came before."""
        self._damaged: Rule | None = None
        """The rule of a call that raised and changed something all the same: what follows is its fault."""
        self._rejected: dict[int, Rule] = {}
        """Payloads by number that a set was to reject -> the rule that its rows break if they are read."""
        self._astray = False
        """A graph read and cleared other storage than the buffer's: of its rows nothing is known."""

    def follow(self, number: int, step: Step, facts: StepFacts) -> None:
        """Compare one step (number from 1), then move the ledger on."""
        if facts.unavailable:
            self._audit.unavailable.append(facts.unavailable)
            return
        where = f"step {number} '{step}'"
        # Where no allocation failed, the call has no excuse.
        expected = self.ledger.expect(step if facts.failed_allocation else replace(step, fail=None))
        self._number = number
        self._astray |= _detached(facts)
        if facts.raised is None or facts.raised.call != "make":
            self._test(step, expected, facts)
        self._compare_outcome(where, step, expected, facts)
        self._compare_tensors(where, expected, facts)
        self._compare_padding(where, facts)
        if expected.levels and not (self.ledger.unsound or self._astray):
            self._compare_rows(where, step, expected, facts)
        self._move_on(step, expected, facts)

    def _test(self, step: Step, expected: Expected, facts: StepFacts) -> None:
        """Count a chance of the rule of this step: without a payload, growth has nothing to lose."""
        if self._astray and expected.levels:
            return
        if expected.rule is Rule.BOUNDARY:
            chance = step.op is Op.CLEAR or facts.answer is not None or facts.raised is not None
        elif expected.rule is Rule.CAPACITY:
            taken = step.op is Op.SET and step.tokens > 0 and facts.raised is None
            chance = taken or self.ledger.tokens > 0
        else:
            chance = True
        self._audit.chances[expected.rule] += chance

    def _compare_tensors(self, where: str, expected: Expected, facts: StepFacts) -> None:
        """Compare tensors that the caller holds: a payload after set, earlier return values after get."""
        if facts.caller_changed:
            what = " and ".join(facts.caller_changed)
            detail = f"{where} changed {what} of the tensor that it was given"
            self._report(Deviation(Rule.FRESHNESS, 1, "calls", detail, FaultKind.ARGUMENT_CHANGED))
        if facts.earlier_changed:
            changed = facts.earlier_changed
            detail = f"{where}: {changed} levels of an earlier answer changed, which still holds"
            rule = self._suspect or expected.rule  # a call in between may have been rejected too late
            self._report(Deviation(rule, changed, "levels", detail, FaultKind.ANSWER_CHANGED))

    def _compare_padding(self, where: str, facts: StepFacts) -> None:
        """Report real rows of the output that padded rows of the payload have an influence on."""
        if facts.padding is None:
            return
        self._audit.chances[Rule.FRESHNESS] += 1
        if changed := facts.padding.changed:
            detail = (
                f"{where}: {plural(changed, 'row')} of real tokens came out other when the "
                f"{plural(facts.padding.padded, 'padded row')} behind them held other values"
            )
            shape, real = FaultKind.PADDING_READ, self.ledger.tokens
            self._report(Deviation(Rule.FRESHNESS, changed, "rows", detail, shape, None, 0, real))

    def _compare_outcome(self, where: str, step: Step, expected: Expected, facts: StepFacts) -> None:
        raised = facts.raised if facts.raised and facts.raised.call != "decoder" else None
        if raised is None and expected.outcome is CallOutcome.RAISES and facts.raised is None:
            self._report(Deviation(expected.rule, 1, "calls", f"{where} was accepted", FaultKind.ACCEPTED))
        # No caller can go on after a call that ended the process or without a buffer: neither is a rejection.
        made = raised is None or raised.call != "make"
        if raised is not None and (raised.ends or not made or expected.outcome is CallOutcome.ANSWERS):
            detail = f"{where}: {raised.call} raised {raised.type}: {raised.message}"
            rule = self._damaged or expected.rule if made else Rule.BOUNDARY
            self._report(Deviation(rule, 1, "calls", detail, FaultKind.RAISED, exception=raised.type))
        elif raised is not None and facts.failed_allocation and facts.capacity > self.ledger.capacity:
            # Room that was made before the failure, as for a copy of the result, does no harm.
            self._damaged = expected.rule
        elif raised is not None and self.ledger.steps_done and facts.capacity != self.ledger.capacity:
            change = f"changed the capacity from {self.ledger.capacity} to {facts.capacity}"
            detail = f"{where} raised {raised.type}, and {change}"
            self._report(Deviation(expected.rule, 1, "calls", detail, FaultKind.CAPACITY))
            self._damaged = expected.rule
        elif facts.raised is None and expected.outcome is not CallOutcome.RAISES:
            change, capacity = "", facts.capacity
            if capacity < (step.tokens if step.op in {Op.SET, Op.RESIZE} else 0):
                change = f" was accepted, and the capacity is {capacity}"
            elif capacity < self.ledger.capacity and step.op is not Op.RESIZE:
                change = f": the capacity shrank from {self.ledger.capacity} to {capacity}"
            if change:
                self._report(Deviation(Rule.CAPACITY, 1, "calls", f"{where}{change}", FaultKind.CAPACITY))

    def _compare_rows(self, where: str, step: Step, expected: Expected, facts: StepFacts) -> None:
        answer = facts.answer
        if answer is None or len(answer.rows) != len(expected.levels):
            return  # None, or a level too few: that is R1
        visual = self.ledger.kind is PayloadKind.VISUAL
        # A rule about stale rows is put to the test only where such a row could have been read: after the
        # live payload, where an ended one once lay.  Of another kind of payload R3 is judged by the influence
        # of padding on real rows, and R5 is not judged.
        for fate, rule in _ENDED if visual and _META not in answer.devices else ():
            ended = (payload.tokens for payload in self.ledger.payloads.values() if payload.fate is fate)
            if min(step.tokens, max(ended, default=0)) > self.ledger.tokens:
                self._audit.chances[rule] += 1
        real = facts.tokens
        if real is None:
            # Where no visual payload is live the step has only text, so that all its rows are real.
            real = self.ledger.tokens or (step.tokens if visual else 0)
        wide = [width for width in answer.hidden if width != self.ledger.hidden]
        if wide:
            detail = f"{where}: {len(wide)} levels are {wide[0]} wide, not {self.ledger.hidden}"
            self._report(
                Deviation(
                    expected.rule, len(wide), "levels", detail, FaultKind.WIDTH, first_row=0, real_rows=real
                )
            )
            return
        for rule, rows in self._wrong_rows(expected, answer).items():
            detail = f"{where}: {self._describe(rows)}"
            lowest = min(wrong.row for wrong in rows)
            self._report(
                Deviation(
                    rule, len(rows), "rows", detail, rows[0].shape, rows[0], lowest, real, rows=tuple(rows)
                )
            )
        if stale := self._stale_padding(expected, answer):
            first, detail, count = stale[0], f"{where}: {self._describe(stale)}", len(stale)
            self._audit.stale_padding.append(
                Deviation(Rule.FRESHNESS, count, "rows", detail, first.shape, first, first.row, real)
            )
        self._suspect = None

    def _wrong_rows(self, expected: Expected, answer: Answer) -> dict[Rule, list[WrongRow]]:
        """Return the rows that are newly wrong, by the rule that each breaks."""
        wrong: dict[Rule, list[WrongRow]] = {}
        live = self.ledger.live.number if self.ledger.live else 0
        comparable = (  # rows on the device meta have no values, only a number
            (RowRange(None, 0, 0, sum(run.rows for run in wanted)),) if device == _META else wanted
            for wanted, device in zip(expected.levels, answer.devices, strict=False)
        )
        for level, (ranges, wanted) in enumerate(zip(answer.rows, comparable, strict=True)):
            # Rows that are as wanted are the usual case, and many.
            pairs = () if ranges == wanted else zip_longest(origins_of(ranges), origins_of(wanted))
            for row, (origin, right) in enumerate(pairs):
                spared = row in expected.may_be_zero and origin == _ZERO
                # In another dtype (R7) rows may differ that are equal in the buffer's.
                spared |= answer.dtypes[level] != self._dtype and origin == (live, level, row)
                spared |= _is_padding(row, expected) and None not in (origin, right)
                if origin != right and not spared and (level, row) not in self._reported:
                    self._reported.add((level, row))
                    shape = FaultKind.SURPLUS if right is None else self._shape(row, origin)
                    rule = self._rule(expected, row, origin, right)
                    wrong.setdefault(rule, []).append(WrongRow(level, row, origin, shape))
        return wrong

    def _stale_padding(self, expected: Expected, answer: Answer) -> list[WrongRow]:
        """Return the rows of padding that hold an earlier payload, where padding may hold anything.

        Always empty for rows that live until they are written again: holding an earlier payload is right.
        """
        if self.ledger.kind is PayloadKind.KEPT:
            return []
        return [
            WrongRow(level, row, origin, self._shape(row, origin))
            for level, ranges in enumerate(answer.rows)
            for row, origin in enumerate(origins_of(ranges))
            if _is_padding(row, expected) and origin[0]
        ]

    def _shape(self, row: int, origin: RowOrigin | None) -> FaultKind:
        """Return the shape of a wrong row: where its content comes from."""
        if origin is None:
            return FaultKind.MISSING
        payload = origin[0]
        if payload is None:
            return FaultKind.NEVER_SET
        if payload <= 0:
            return FaultKind.CALLER if payload else FaultKind.ZEROS
        owner = self.ledger.owner_of((payload, *origin[1:]))
        cleared = owner is self.ledger.live and row < owner.first_row
        return FaultKind.CLEARED if cleared else _SHAPES[owner.fate]

    def _rule(self, expected: Expected, row: int, origin: RowOrigin | None, right: RowOrigin | None) -> Rule:
        if expected.rule is Rule.CAPACITY:
            return Rule.CAPACITY
        if origin is None or right is None:
            return self._damaged or Rule.BOUNDARY  # a row missing, or one too many
        payload = origin[0]
        if payload is not None and payload < 0:
            return Rule.FRESHNESS  # the buffer holds the caller's tensor instead of a copy
        owner = self.ledger.owner_of((payload, *origin[1:])) if payload else None
        if owner is not None and owner is self.ledger.live and row < owner.first_row:
            return Rule.CLEAR  # a micro-batch has cleared this row
        fate = owner.fate if owner else None
        if fate in (Fate.CLEARED, Fate.REPLACED):
            visual = self.ledger.kind is PayloadKind.VISUAL
            return Rule.CLEAR if fate is Fate.CLEARED and visual else Rule.FRESHNESS
        if owner is not None and fate is Fate.REJECTED:
            return self._suspect or self._rejected[owner.number]
        return self._suspect or self._damaged or Rule.BOUNDARY

    def _describe(self, rows: list[WrongRow]) -> str:
        first, levels = rows[0], len({wrong.level for wrong in rows})
        content = f"first row {first.row} of level {first.level} {self._content(first.origin)}"
        return f"{plural(len(rows), 'row')} over {plural(levels, 'level')}, {content}"

    def _content(self, origin: RowOrigin | None) -> str:
        """Return what a wrong row holds, in words."""
        if origin is None:
            return "is missing or one too many"
        payload, level, row = origin
        if payload is None:
            return "holds values that were never set"
        if payload == 0:
            return "holds zeros"
        owner = self.ledger.owner_of((payload, level, row))
        if payload < 0:
            return f"follows the caller's tensor of payload {-payload} (request {owner.request})"
        ended = f", {owner.fate} at step {owner.ended_by}" if owner.fate is not Fate.LIVE else ""
        whose = f"payload {owner.number} (request {owner.request}{ended})"
        return (
            f"holds row {row}, level {level} of {whose}"
            if owner.number == payload
            else f"holds a row of {whose}"
        )

    def _move_on(self, step: Step, expected: Expected, facts: StepFacts) -> None:
        accepted = facts.raised is None
        if accepted and (step.op is Op.CLEAR or step.op in RUNS_DECODER) and not _detached(facts):
            self._astray = False
        ends_rows = step.op in {Op.SET, Op.CLEAR} or expected.levels
        self.ledger.commit(step, accepted=accepted, capacity=facts.capacity, content=facts.content)
        if step.op is Op.SET and not accepted:
            blamed = Rule.CAPACITY if expected.rule is Rule.CAPACITY else Rule.REJECTION
            self._rejected[len(self.ledger.payloads)] = self._damaged or blamed
        if accepted and ends_rows and step.op is not Op.GET:
            self._reported.clear()
            self._suspect = None
        if expected.rule is Rule.REJECTION or (expected.rule is Rule.CAPACITY and facts.answer is None):
            self._suspect = expected.rule
        elif step.op is Op.SET and not accepted and expected.outcome is CallOutcome.EITHER:
            self._suspect = Rule.REJECTION  # a payload that may be refused, such as one of integers

    def _report(self, deviation: Deviation) -> None:
        self._audit.deviations.append(replace(deviation, step=self._number))


def _is_padding(row: int, expected: Expected) -> bool:
    return expected.real is not None and row not in expected.real


def _detached(facts: StepFacts) -> bool:
    return facts.graph_use is not None and facts.graph_use.detached


@dataclass(frozen=True)
class ObservedCase:
    """A case with the facts that were measured of it.

    `audit` is made once and shared by the oracles that need it. Whoever judges a trace while it grows
    passes the audit of the steps before, so that each step is followed once.

    >>> def judge_growth(observed: ObservedCase) -> Judgement:
    ...     rows = max(facts.capacity or 0 for facts in observed.observation.steps)
    ...     right = rows <= 2 * observed.case.trace.capacity
    ...     return Judgement(Rule.CAPACITY, Verdict.PASS if right else Verdict.FAIL, rows, chances=1)
    """

    case: Case
    observation: Observation
    audit: ContractAudit = field(default_factory=ContractAudit)

    def audited(self) -> ContractAudit:
        """Return the audit of the whole trace."""
        self.audit.follow(self.case, self.observation)
        return self.audit


def numbered_steps(case: Case, observation: Observation) -> Iterator[tuple[int, Step, StepFacts]]:
    """Iterate over (number from 1, step, its facts) in order."""
    pairs = zip(case.trace.steps, observation.steps, strict=True)
    return ((number, step, facts) for number, (step, facts) in enumerate(pairs, 1))


def skip(rule: Rule, why: str) -> Judgement:
    """Return SKIP: the rule does not apply, or nothing put it to the test."""
    return Judgement(rule, Verdict.SKIP, detail=why)


def error(rule: Rule, why: str) -> Judgement:
    """Return ERROR: the rule applies and could not be judged."""
    return Judgement(rule, Verdict.ERROR, detail=why)


def passed(rule: Rule, value: float, limit: float, unit: str, detail: str = "", *, chances: int) -> Judgement:
    """Return PASS: the figure, which is within its limit; SKIP for a rule that had no chance to be broken."""
    if not chances:
        return skip(rule, f"not tested: 0 {plural(0, rule.chance).partition(' ')[2]}")
    return Judgement(rule, Verdict.PASS, value, limit, unit, detail, chances=chances)


def judge_figure(  # noqa: PLR0913  # the fields of a judgement
    rule: Rule,
    value: float,
    limit: float,
    unit: str,
    detail: str = "",
    steps: Iterable[int] = (),
    *,
    shape: FaultKind,
    chances: int,
) -> Judgement:
    """Return FAIL of a shape above the limit, PASS up to it; `steps` are those where the rule was broken."""
    if value <= limit:
        return passed(rule, value, limit, unit, detail, chances=chances)
    numbers = tuple(sorted(set(steps)))
    return Judgement(
        rule, Verdict.FAIL, value, limit, unit, detail, steps=numbers, shape=shape, chances=max(1, chances)
    )


def judge_deviations(rule: Rule, deviations: Sequence[Deviation], detail: str, chances: int) -> Judgement:
    """Return FAIL: the amount of all deviations of the first one's unit, and what the first one is."""
    first = deviations[0]
    judgement = judge_figure(
        rule,
        sum(deviation.amount for deviation in deviations if deviation.unit == first.unit),
        0,
        first.unit,
        detail,
        [deviation.step for deviation in deviations],
        shape=first.shape,
        chances=chances,
    )
    row = first.row
    return replace(
        judgement,
        level=row.level if row else None,
        row=row.row if row else None,
        origin=row.origin if row else None,
        exception=first.exception,
        wrong_rows=frozenset(
            (deviation.step, row.level, row.row) for deviation in deviations for row in deviation.rows
        ),
    )
