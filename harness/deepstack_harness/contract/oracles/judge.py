"""Judging a case: the oracles of all rules, their judgements of an observed case, and the effects for users.

Other installed packages may refine one rule of the buffer each. An entry point in `deepstack_harness.oracles`
is called RULE.NAME, such as `R2.finite_rows`, and is a function that takes what our oracles take and returns
a judgement of that rule. The function can add a FAIL or an ERROR to the judgement of the rule. It can neither
turn a FAIL of ours into a PASS nor judge a rule of its own. There is one row per rule in any case, so that
reports, baselines, expectations and exit codes need to know nothing about other packages; installing an
oracle is consent to it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

from typing_extensions import override

from deepstack_harness.contract.case import Case, PlannedCase
from deepstack_harness.contract.names import Names
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.oracles import buffer, compiler, outputs, ranks
from deepstack_harness.contract.oracles.trace_audit import Deviation, ObservedCase, error
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import READS_BUFFER
from deepstack_harness.contract.verdicts import (
    BROKEN,
    Effect,
    FaultKind,
    Judgement,
    Row,
    RuleVerdicts,
    Verdict,
    row_against_expectation,
    row_of_case,
)
from deepstack_harness.errors import UsageError

EXTRA_ORACLES = Names("oracle", {}, "oracles")
"""Oracles of other packages; the docstring of this module describes what they may do."""


def effect_of(judgement: Judgement, deviations: Sequence[Deviation] = ()) -> Effect | None:
    """Return the worst effect that follows from the facts; None for a rule that passes, or without effect.

    `deviations` are those that break the rule.
    """
    if judgement.verdict not in BROKEN:
        return None
    if judgement.shape is FaultKind.RAISED or any(deviation.exception for deviation in deviations):
        return Effect.CRASH
    wrong = [
        (row, deviation.real_rows) for deviation in deviations if (row := deviation.first_row) is not None
    ]
    if judgement.rule is Rule.OUTPUT or any(row < real_rows for row, real_rows in wrong):
        return Effect.OUTPUT
    if wrong:
        return Effect.PADDING
    return Effect.COST if judgement.rule is Rule.WORK or judgement.shape in _WASTED else None


_WASTED = frozenset({FaultKind.GRAPHS, FaultKind.BREAKS, FaultKind.RECOMPILE_LIMIT, FaultKind.SUBGRAPHS})
"""Shapes of R11 and R13 that cost compile time, or compiled code: outputs stay right."""
_WITHOUT_BUFFER = frozenset({Rule.RANGES, Rule.ORDERING, Rule.MEMORY})
_SEVERITY = {Verdict.ERROR: 1, Verdict.FAIL: 2}
"""Judgements of another package that count, the weaker first; all others are 0."""


@cache
def extra_oracles() -> tuple[tuple[str, Rule, Callable[..., object]], ...]:
    """Import the oracles of other packages: for each its label, its rule and the function.

    Raises `UsageError` for one that cannot be imported, or whose name does not begin with a rule.
    """
    oracles = []
    for name, entry in EXTRA_ORACLES.items():
        if sentence := misnamed(name, entry.distribution):
            raise UsageError(sentence)
        judge = EXTRA_ORACLES.load(name, callable, "a function that judges a case")
        oracles.append((f"{name} of {entry.distribution}", Rule(name.partition(".")[0]), judge))
    return tuple(oracles)


def misnamed(name: str, distribution: str) -> str:
    """Return a sentence about the name of an oracle that does not begin with a rule, else nothing."""
    prefix, _, own = name.partition(".")
    rules = [rule for rule in Rule if rule not in _WITHOUT_BUFFER]
    if prefix in rules and own:
        return ""
    return (
        f"oracle '{name}' of {distribution} is not called RULE.NAME with a rule of the buffer "
        f"({', '.join(rules)}), as R2.{own or name} would be"
    )


def refined(judgement: Judgement, observed: ObservedCase) -> Judgement:
    """Return our judgement of a rule, or the worse one of another package's oracle of that rule."""
    for label, rule, judge in extra_oracles():
        if rule is not judgement.rule:
            continue
        try:
            other = judge(observed)
        except Exception as problem:  # noqa: BLE001  # another package may raise anything
            other = error(rule, f"raised {type(problem).__name__}: {problem}")
        if not isinstance(other, Judgement) or other.rule is not rule:
            other = error(rule, f"answered {other!r:.200}, which is no judgement of {rule}")
        if _SEVERITY.get(other.verdict, 0) > _SEVERITY.get(judgement.verdict, 0):
            judgement = replace(other, detail=f"{label}: {other.detail}")
    return judgement


Oracle = Callable[[ObservedCase], Judgement]


class RuleOracle(NamedTuple):
    """A rule, the function that judges it, and what its figure is."""

    rule: Rule
    judge: Oracle
    figure: str


def _of_trace(rule: Rule, figure: str) -> RuleOracle:
    return RuleOracle(rule, partial(buffer.judge_rows_and_calls, rule), figure)


ORACLES: tuple[RuleOracle, ...] = (
    RuleOracle(Rule.OUTPUT, outputs.judge_output, "distance of compiled to eager"),
    RuleOracle(Rule.STRUCTURE, buffer.judge_structure, "answers that are None or lack a level"),
    _of_trace(Rule.BOUNDARY, "wrong rows, counts and exceptions within the capacity"),
    _of_trace(Rule.FRESHNESS, "rows of a replaced payload"),
    _of_trace(Rule.CAPACITY, "rows lost or short above the capacity"),
    _of_trace(Rule.CLEAR, "rows of a cleared payload"),
    RuleOracle(Rule.ADDRESS, buffer.judge_address, "storage that moved unannounced"),
    RuleOracle(Rule.PLACEMENT, buffer.judge_placement, "levels in another dtype or on another device"),
    _of_trace(Rule.REJECTION, "bad calls accepted, or rejected with the state changed"),
    RuleOracle(Rule.SHARDING, ranks.judge_sharding, "rows of another rank, outputs off the unsharded run"),
    RuleOracle(
        Rule.WORK,
        compiler.judge_work,
        "rows that opaque attention and kernels on a payload processed, against those asked for",
    ),
    RuleOracle(Rule.GRAPHS, compiler.judge_graphs, "graphs built against the budget, breaks, fall-back"),
)
"""The oracles of the buffer, in the order of the rules; other packages may refine one (`EXTRA_ORACLES`)."""
OF_ACCESSES = (
    RuleOracle(
        Rule.MEMORY, compiler.judge_memory, "bytes touched outside of tensors, rows of unwritten memory"
    ),
)
"""Oracles of arms whose code is interpreted: no other arm knows what its kernels touch."""


def judge_all(observed: ObservedCase, rules: Collection[Rule] | None = None) -> list[Judgement]:
    """Return one judgement per rule (or only of `rules`), in the order of the oracles."""
    oracles = (*ORACLES, *OF_ACCESSES) if observed.case.arm.interpreted else ORACLES
    return [
        _completed(refined(oracle.judge(observed), observed), observed)
        for oracle in oracles
        if rules is None or oracle.rule in rules
    ]


def _completed(judgement: Judgement, observed: ObservedCase) -> Judgement:
    """Add the effect and the call of a broken rule, and what is not checked of an adapted buffer.

    The latter is the whole detail of a rule that is SKIP.
    """
    if judgement.verdict not in BROKEN:
        adapter = observed.case.buffer.adapter
        why = adapter.unchecked.get(judgement.rule) if adapter else None
        if not why or judgement.verdict is Verdict.ERROR:
            return judgement
        words = [judgement.detail, why] if judgement.verdict is Verdict.PASS else [why]
        return replace(judgement, detail="; ".join(filter(None, words)))
    own = {Rule.OUTPUT: outputs.crashes, Rule.SHARDING: ranks.deviations}.get(judgement.rule)
    deviations = own(observed) if own else observed.audited().deviations_of(judgement.rule)
    call = ""
    if judgement.step is not None:
        op = observed.case.trace.steps[judgement.step - 1].op
        raised = observed.observation.steps[judgement.step - 1].raised
        call = raised.call if raised and judgement.exception else "get" if op in READS_BUFFER else op
    return replace(judgement, effect=effect_of(judgement, deviations), call=call)


@dataclass(frozen=True)
class JudgedCase(RuleVerdicts):
    """One case that was played and judged."""

    planned: PlannedCase
    observation: Observation
    judgements: tuple[Judgement, ...]

    @property
    def case(self) -> Case:
        """The case that was played."""
        return self.planned.case

    @property
    @override
    def verdicts(self) -> Collection[tuple[Rule, Verdict]]:
        return [(judgement.rule, judgement.verdict) for judgement in self.judgements]

    @property
    def as_expected(self) -> bool:
        """Return whether exactly the rules that the plan names are broken, and every rule could be judged."""
        return self.breaks_exactly(self.planned.must_break)

    def rows(self) -> list[Row]:
        """Return one row per rule, without an expectation."""
        torch, incident = self.observation.torch, self.planned.incident
        return [row_of_case(self.case, judgement, torch, incident) for judgement in self.judgements]

    def rows_against_plan(self) -> list[Row]:
        """Return one row per rule, with the plan's expectation of the rule."""
        return [row_against_expectation(row, broken=self.planned.expects(row.rule)) for row in self.rows()]


_OF_COMPILED_CODE = frozenset({Rule.OUTPUT, Rule.WORK, Rule.GRAPHS})
"""Rules that nothing puts to the test where the compiler made no code."""
_OF_DECODERS = _OF_COMPILED_CODE | {Rule.SHARDING, Rule.MEMORY}


def judge_case(
    planned: PlannedCase, observation: Observation, rules: Collection[Rule] | None = None
) -> JudgedCase:
    """Judge what was observed of a case by all rules, or only by `rules`.

    Where ranks died or hung, every rule is ERROR, and R9 has what they printed. ERROR are all rules where
    code under test changed what measures it, those that nothing had put to the test before the process
    ended, and those of compiled code where the compiler failed in code of its own.
    """
    if observation.tampering or not observation.steps:
        why = f"tampered: {observation.tampering}" if observation.tampering else observation.error
        why = why or "no step was played"
        unjudged = (
            error(oracle.rule, why if oracle.rule is Rule.SHARDING else why.splitlines()[0])
            for oracle in ORACLES
            if rules is None or oracle.rule in rules
        )
        return JudgedCase(planned, observation, tuple(unjudged))
    failed = (facts.raised for facts in observation.steps if facts.raised and facts.raised.by_compiler)
    raised = next(failed, None)
    judgements = []
    for judgement in judge_all(ObservedCase(planned.case, observation), rules):
        untested = judgement.verdict is Verdict.SKIP
        if raised and judgement.rule in (_OF_COMPILED_CODE if untested else _OF_DECODERS):
            why = f"the compiler of torch {observation.torch} failed here: {raised.type}: {raised.message}"
            judgements.append(replace(error(judgement.rule, why), exception=raised.type))
        elif untested and observation.ended is not None:
            judgements.append(error(judgement.rule, observation.ended))
        else:
            judgements.append(judgement)
    return JudgedCase(planned, observation, tuple(judgements))


def judge_cases(
    plan: Iterable[PlannedCase],
    play: Callable[[Case], Observation],
    rules: Collection[Rule] | None = None,
    *,
    given_up: Callable[[], str] = str,
) -> Iterator[JudgedCase]:
    """Play the cases of a plan one after the other, and yield each judged as soon as it was played.

    Before each case `given_up` is called; it returns the reason why the rest is not played, or an empty text
    to go on. Raises what `play` raises.
    """
    for planned in plan:
        why = given_up()
        yield unjudged_case(planned, why) if why else judge_case(planned, play(planned.case), rules)


def unjudged_case(planned: PlannedCase, why: str, torch: str = "") -> JudgedCase:
    """Return a case that did not come to its end: every rule is ERROR."""
    judgements = tuple(error(oracle.rule, why) for oracle in ORACLES)
    nothing = Observation(planned.case.dtype, planned.case.device, 0, 0, torch, (), error=why)
    return JudgedCase(planned, nothing, judgements)
