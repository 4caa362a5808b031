"""The verdicts on a class after a plan of cases: for each rule and regime the row that decides.

The regimes are judged apart. A fault that breaks several rules is reported once: a rule is an effect of
another rule if it was never seen broken by itself, that is, if the other rule broke at an earlier step or at
the same step of each trace that breaks it. A rule that graphs show broken is an effect of the same rule in
live use if the trace breaks it without graphs too.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from typing_extensions import override

from deepstack_harness.catalogue.known import UNREPORTED, KnownRules
from deepstack_harness.catalogue.pairs import axes_of
from deepstack_harness.contract.arm import EAGER
from deepstack_harness.contract.case import PlannedCase, Regime
from deepstack_harness.contract.oracles.judge import JudgedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import MOST_STEPS, Op
from deepstack_harness.contract.verdicts import (
    BROKEN,
    KEPT,
    WORST_FIRST,
    Effect,
    Row,
    RuleVerdicts,
    Verdict,
    row_against_expectation,
)

Place = tuple[Regime, Rule]
"""A rule in one regime."""
Effects = Mapping[Place, Place]
"""Broken rules that are effects -> the broken rule that is reported instead."""
Replay = Callable[[PlannedCase], JudgedCase | None]
"""Plays and judges one more case; None where nothing can be played any more."""


_NOT_OF_BUFFERS = frozenset({Rule.OUTPUT, Rule.SHARDING, Rule.WORK})
"""Rules of outputs, ranks and work: they explain no broken rule of the buffer, and none explains them."""


def effects_in(cases: Iterable[JudgedCase]) -> dict[Place, Place]:
    """Return the broken rules that never broke by themselves, each with the rule that explains it."""
    first: dict[Place, dict[str, int]] = {}
    for judged in cases:
        for judgement in judged.judgements:
            failed = judgement.verdict is Verdict.FAIL and judgement.rule not in _NOT_OF_BUFFERS
            if failed and judgement.steps:
                first.setdefault((judged.case.regime, judgement.rule), {})[judged.case.id] = judgement.steps[
                    0
                ]
    # Rows that a graph reads wrongly follow from storage that moved.
    order = [Rule.ADDRESS, *Rule]
    # A fault that shows in more traces explains one that shows in fewer, never the other way round.
    ranked = sorted(first, key=lambda place: (-len(first[place]), order.index(place[1])))
    effects: dict[Place, Place] = {}
    for number, effect in enumerate(ranked):
        causes = (place for place in ranked[:number] if place not in effects and place[0] is effect[0])
        for cause in causes:
            steps = first[cause]
            if all(case in steps and steps[case] <= step for case, step in first[effect].items()):
                effects[effect] = cause
                break
    return effects


def same_without_graphs(
    cases: Sequence[JudgedCase], broken: Mapping[Rule, str], play: Replay
) -> dict[Place, Place]:
    """Return rules broken under graphs (rule -> shortest trace) that the trace breaks without graphs too."""
    effects: dict[Place, Place] = {}
    if any(judged.observation.ended for judged in cases):
        return effects  # a class that ends its process, or hangs, is not called again
    live = {rule for judged in cases if judged.case.regime is Regime.LIVE for rule in judged.broken}
    for judged in cases:
        case = judged.case
        rules = {rule for rule, trace in broken.items() if trace == str(case.trace)} & live
        if not rules:
            continue
        # Replays become live steps, and nothing is captured.
        steps = tuple(
            replace(step, op=Op.FORWARD) if step.op is Op.REPLAY else step
            for step in case.trace
            if step.op is not Op.CAPTURE
        )
        buffer, trace = replace(case.buffer, replayed=False), replace(case.trace, steps=steps)
        case = replace(case, buffer=buffer, trace=trace, arm=EAGER)
        without_graphs = play(replace(judged.planned, case=case))
        for rule in rules & (without_graphs.broken if without_graphs else frozenset()):
            effects[Regime.CAPTURED, rule] = (Regime.LIVE, rule)
    return effects


_NOT_OF_METHODS = frozenset({Rule.OUTPUT, Rule.SHARDING, Rule.WORK, Rule.GRAPHS})
"""Rules of a compiled decoder, or of ranks: calls of the methods do not test them."""


Finding = tuple[Row, tuple[Row, ...]]
"""A broken rule, and broken rules that are its effects."""


class BrokenTrace(msgspec.Struct, frozen=True):
    """One rule that one trace breaks: what the next version of the class is compared with.

    `rows` has the step, the level and the number of each wrong row; it is empty where no row is wrong.
    """

    regime: Regime
    rule: Rule
    trace: str
    value: float | None = None
    shape: str | None = None
    effect: Effect | None = None
    steps: tuple[int, ...] = ()
    rows: frozenset[tuple[int, int, int]] = frozenset()


def _broken_traces(cases: Iterable[JudgedCase]) -> tuple[BrokenTrace, ...]:
    return tuple(
        BrokenTrace(
            judged.case.regime, failed.rule, str(judged.case.trace), failed.value, failed.shape,
            failed.effect, failed.steps, failed.wrong_rows,
        )
        for judged in cases
        for failed in judged.judgements
        if failed.verdict is Verdict.FAIL
    )  # fmt: skip


def by_cause(rows: Iterable[Row], effects: Effects) -> list[Finding]:
    """Return the broken rules to report, in order, each with its effects.

    An unexpected fault is reported even if a known failure explains it.
    """
    broken = {(row.regime, row.rule): row for row in rows if row.verdict in BROKEN}
    causes = {place: _cause_of(place, broken, effects) for place in broken}
    return [
        (row, tuple(broken[effect] for effect, cause in causes.items() if cause == place != effect))
        for place, row in broken.items()
        if causes[place] == place
    ]


def _cause_of(place: Place, broken: Mapping[Place, Row], effects: Effects) -> Place:
    """Follow effects to the place of the row that is reported."""
    cause = effects.get(place, place)
    if (
        cause == place
        or cause not in broken
        or broken[cause].verdict not in (broken[place].verdict, Verdict.FAIL)
    ):
        return place
    return _cause_of(cause, broken, effects)


@dataclass(frozen=True)
class ClassVerdicts(RuleVerdicts):
    """The verdicts on one class of a source, or of a user: for every rule and regime the row that decides.

    That is the failing row with the shortest trace, else a row that could not be judged, else a row that
    passed, else the row with the reason why the rule does not apply.
    """

    source: str
    model_class: str
    rows: tuple[Row, ...]
    effects: Effects = field(default_factory=dict)
    """Broken rules that another broken rule of this class explains."""
    in_forward: frozenset[Place] = frozenset()
    """Broken rules that pass when only the methods of this class are called."""
    broken_traces: tuple[BrokenTrace, ...] = ()
    """Every trace that breaks a rule; of a rule that is broken and has none here, its row has the one."""

    @property
    @override
    def verdicts(self) -> Collection[tuple[Rule, Verdict]]:
        return [(row.rule, row.verdict) for row in self.rows]

    @property
    @override
    def kept(self) -> frozenset[Rule]:
        """Rules that were put to the test, and pass in every regime."""
        return super().kept - self.broken

    @property
    def findings(self) -> list[Finding]:
        """Each cause once: its row, and the rows of the rules that it explains."""
        return by_cause(self.rows, self.effects)

    def broken_in(self, regime: Regime) -> frozenset[Rule]:
        """Return the rules that are broken in one regime, known or not."""
        return frozenset(row.rule for row in self.rows if row.regime is regime and row.verdict in BROKEN)

    @property
    def signature(self) -> tuple[Row, ...]:
        """The rows without names, files and lines: equal for two classes with the same verdicts."""
        return tuple(
            replace(
                row,
                model_class=None,
                revision="",
                source=None,
                detail="",
                family="",
                case="",
                where=None,
                chances=None,
                step=None,
                call=None,
                exception=None,
            )
            for row in self.rows
        )


def sum_up(
    cases: Sequence[JudgedCase],
    source: str,
    model_class: str,
    known: Mapping[Rule, str] | None = None,
    rules: Sequence[Rule] | None = None,
    *,
    plain_first: bool = False,
) -> ClassVerdicts:
    """Return the verdicts on a class after these cases, of which there is at least one.

    `rules` are those to report; by default all that calls of the methods test. The worst row decides, an
    unknown fault before the known faults of its rule; with `plain_first` a trace of unusual inputs comes
    after all others, as known failures have plain ones. Where a method has ended a process, that is the
    finding: a rule that passes in other traces passes, though it could not be judged in a trace that was cut
    short or not played.
    """
    ended = any(judged.observation.ended and judged.broken for judged in cases)
    rows = []
    for judged in cases:
        seen, trace = judged.observation, judged.case.trace
        unusual = plain_first and bool(axes_of(trace))
        length = len(trace.steps) + unusual * MOST_STEPS
        for row in judged.rows():
            rank = float(WORST_FIRST.index(row.verdict))
            if _is_new(row, known):
                rank = -1.0
            elif ended and row.verdict is Verdict.ERROR and (seen.ended or not seen.steps):
                rank = WORST_FIRST.index(Verdict.SKIP) - 0.5
            rows.append(((rank, length), row))
    if rules is None:
        judged_rules = (judgement.rule for judgement in cases[0].judgements)
        rules = [rule for rule in judged_rules if rule not in _NOT_OF_METHODS]
    deciding = (_deciding(rule, rows) for rule in rules)
    return ClassVerdicts(
        source, model_class, tuple(against_known(deciding, known)), effects_in(cases),
        broken_traces=_broken_traces(cases),
    )  # fmt: skip


def sum_up_regimes(
    cases: Sequence[JudgedCase], source: str, model_class: str, known: Mapping[Rule, str] | None = None
) -> ClassVerdicts:
    """Return the verdicts on a class with a row per rule and regime, rules in order, live use first."""
    by_regime = [[judged for judged in cases if judged.case.regime is regime] for regime in Regime]
    parts = (sum_up(part, source, model_class, plain_first=True) for part in by_regime if part)
    rows = [row for part in parts for row in part.rows]
    # What is known of a rule is known of either regime, so all of its rows have to be seen at once.
    rows = sorted(against_known(rows, known), key=lambda row: list(Rule).index(row.rule))
    return ClassVerdicts(
        source, model_class, tuple(rows), effects_in(cases), broken_traces=_broken_traces(cases)
    )


def compare_ways(
    verdicts: ClassVerdicts, by_methods: Sequence[JudgedCase], in_order: Sequence[JudgedCase]
) -> ClassVerdicts:
    """Return the verdicts, with a note on each rule that breaks in only one of two ways to call the class.

    `by_methods` are the cases that call the methods, `in_order` those of the class's own `embed_input_ids`
    and `forward`.
    """
    ways = [_seen_verdicts(by_methods), _seen_verdicts(in_order)]
    methods_break, forward_breaks = (
        {place for place, seen in way.items() if Verdict.FAIL in seen} for way in ways
    )
    passing = [{place for place, seen in way.items() if seen <= _PASSING} for way in ways]

    def detail(row: Row) -> str:
        place = (row.regime, row.rule)
        if place in forward_breaks & passing[0]:
            return f"{row.detail}; its methods keep it when they are called alone"
        if place in methods_break & passing[1]:
            return f"{row.detail}; its own embed_input_ids and forward keep it in the engine's orders"
        return row.detail

    rows = (replace(row, detail=detail(row)) if row.verdict in BROKEN else row for row in verdicts.rows)
    return replace(verdicts, rows=tuple(rows), in_forward=frozenset(forward_breaks - methods_break))


_PASSING = frozenset({Verdict.PASS, Verdict.SKIP})


def _seen_verdicts(cases: Iterable[JudgedCase]) -> dict[Place, set[Verdict]]:
    """Return the verdicts of every rule that was put to the test, by regime and rule."""
    by_place: dict[Place, set[Verdict]] = {}
    for judged in cases:
        for judgement in judged.judgements:
            by_place.setdefault((judged.case.regime, judgement.rule), set()).add(judgement.verdict)
    return {place: seen for place, seen in by_place.items() if seen != {Verdict.SKIP}}


def against_known(rows: Iterable[Row], known: Mapping[Rule, str] | None) -> list[Row]:
    """Compare the rows of one class with known failures (rule -> reference); None leaves them as they are."""
    rows = list(rows)
    if known is None:
        return rows
    seen = {row.rule for row in rows if row.verdict is Verdict.FAIL and not _is_new(row, known)}
    return [
        row_against_expectation(row, broken=_is_expected(row, known, seen), reference=_reference(row, known))
        for row in rows
    ]


def _reference(row: Row, known: Mapping[Rule, str]) -> str:
    """Return the issue of the known failure that a row shows, with how it was matched without a version.

    Empty where nobody has reported it: there is nothing to read.
    """
    reference = known.get(row.rule, "")
    if isinstance(known, KnownRules):
        reference = known.reference_of(row.rule, row.regime, row.shape, row.trace) or reference
    if reference == UNREPORTED:
        return ""
    matched_by = known.matched_by if isinstance(known, KnownRules) else ""
    return ", ".join(filter(None, [reference, matched_by]))


def _is_expected(row: Row, known: Mapping[Rule, str], seen: Collection[Rule]) -> bool:
    """Return True for a row that has to be broken.

    `seen` are rules whose known failure shows in some regime: it need not show in the other one, unless an
    entry states that.
    """
    if row.rule not in known or row.verdict is Verdict.FAIL:
        return row.rule in known and not _is_new(row, known)
    if isinstance(known, KnownRules) and known.of_any_release:
        return False
    if isinstance(known, KnownRules) and known.states(row.rule, row.regime):
        return True
    states_regime = isinstance(known, KnownRules) and any(known.states(row.rule, regime) for regime in Regime)
    return row.rule not in seen and not states_regime


def _is_new(row: Row, known: Mapping[Rule, str] | None) -> bool:
    """Return True for a fault in another regime or of another shape than those known of its rule."""
    if row.verdict is not Verdict.FAIL or not isinstance(known, KnownRules):
        return False
    return not known.covers(row.rule, row.regime, row.shape, row.trace)


def _deciding(rule: Rule, rows: Iterable[tuple[tuple[float, int], Row]]) -> Row:
    """Return the worst row of a rule, with the chances that the rule had in all cases.

    Of equals it is the row of the shortest trace, then the first in the plan.
    """
    of_rule = [(weight, row) for weight, row in rows if row.rule is rule]
    _, row = min(of_rule, key=lambda pair: pair[0])
    chances = sum(other.chances or 0 for _, other in of_rule)
    return replace(row, chances=chances) if row.verdict in KEPT | BROKEN else row


RULES = (
    Rule.STRUCTURE,
    Rule.BOUNDARY,
    Rule.FRESHNESS,
    Rule.CAPACITY,
    Rule.CLEAR,
    Rule.ADDRESS,
    Rule.PLACEMENT,
    Rule.REJECTION,
    Rule.GRAPHS,
)
"""Rules of a buffer that is played without a decoder; R11 is judged by what guards look at."""

BOTH = "both"
CHOICES = (*(regime for regime in Regime if regime), BOTH)

WHO_IS_CAPTURED = (
    "graphs replay what get and clear recorded, without their Python: vLLM with cudagraph_mode FULL, "
    "decode-only steps of its default FULL_AND_PIECEWISE, breakable graphs (0.22 on); also FastDeploy, "
    "TensorRT-LLM and vLLM's plugins, whose graphs read static storage, and SGLang's prefill graphs. Eager "
    "and PIECEWISE runs are live"
)
"""The engines and modes in which the captured regime matters."""


@dataclass(frozen=True)
class RegimeVerdicts:
    """The verdicts on one class in each regime that was played.

    `same_live` are rules that are broken under graphs, and by the same trace without graphs too.
    """

    by_regime: Mapping[Regime, ClassVerdicts]
    same_live: Effects = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        """Each cause once, over both regimes: its row, and the rows of what it explains."""
        rows = [row for verdicts in self.by_regime.values() for row in verdicts.rows]
        within = {
            place: cause for verdicts in self.by_regime.values() for place, cause in verdicts.effects.items()
        }
        return by_cause(rows, {**within, **self.same_live})

    def chosen(self, regime: str) -> list[ClassVerdicts]:
        """Return the verdicts of the regimes that `live`, `captured` or `both` names."""
        return [verdicts for judged, verdicts in self.by_regime.items() if regime in (BOTH, judged)]


def only(plan: Iterable[PlannedCase], regime: str) -> list[PlannedCase]:
    """Return the part of a plan in `live`, `captured` or `both` regimes."""
    return [planned for planned in plan if regime in (BOTH, planned.case.regime)]


def sum_up_each_regime(
    cases: Sequence[JudgedCase], source: str, model_class: str, replay: Replay
) -> RegimeVerdicts:
    """Sum up the cases of each regime by themselves.

    `replay` plays one more case, so that a fault that has nothing to do with graphs is reported once.
    """
    by_regime = {}
    for regime in (Regime.LIVE, Regime.CAPTURED):
        part = [judged for judged in cases if judged.case.regime is regime]
        if part:
            by_regime[regime] = sum_up(part, source, model_class, rules=RULES)
    captured = by_regime[Regime.CAPTURED].rows if Regime.CAPTURED in by_regime else ()
    broken = {row.rule: row.trace for row in captured if row.verdict in BROKEN}
    return RegimeVerdicts(by_regime, same_without_graphs(cases, broken, replay))
