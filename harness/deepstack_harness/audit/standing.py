"""The standing of a class over a plan of cases: for each rule and regime the row that decides.

The regimes are judged apart.  A fault that breaks several rules is told once: one rule is an effect of
another if it was never seen broken alone, that is, in each trace that breaks it the other one broke
at an earlier step or at the same.  A rule that graphs show broken is an effect of the same rule in
live use if the trace breaks it without graphs too.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from typing_extensions import override

from deepstack_harness.catalogue.known import KnownRules
from deepstack_harness.contract.arm import EAGER
from deepstack_harness.contract.case import PlannedCase, Regime
from deepstack_harness.contract.oracles.judge import JudgedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Step
from deepstack_harness.contract.verdicts import (
    BROKEN,
    WORST_FIRST,
    Row,
    RuleVerdicts,
    Verdict,
    beside_expectation,
)

Place = tuple[Regime, Rule]
"""A rule in one regime."""
Effects = Mapping[Place, Place]
"""Broken rules that are effects -> the broken rule that is told instead."""
Replay = Callable[[PlannedCase], JudgedCase | None]
"""Plays and judges one more case; None where nothing can be played any more."""


_NOT_OF_BUFFERS = frozenset({Rule.R0, Rule.R9, Rule.R10})
"""Rules of outputs, ranks and work: they explain no broken rule of the buffer, and none explains them."""


def effects_in(cases: Iterable[JudgedCase]) -> dict[Place, Place]:
    """Return the broken rules that were never seen broken alone, each with the rule that explains it."""
    first: dict[Place, dict[str, int]] = {}
    for judged in cases:
        for said in judged.judgements:
            if said.verdict is Verdict.FAIL and said.steps and said.rule not in _NOT_OF_BUFFERS:
                first.setdefault((judged.case.regime, said.rule), {})[judged.case.id] = said.steps[0]
    # Rows that a graph reads wrongly follow from storage that moved.
    order = [Rule.R6, *Rule]
    # A fault that shows in more traces explains one that shows in fewer, never the other way round.
    ranked = sorted(first, key=lambda place: (-len(first[place]), order.index(place[1])))
    found: dict[Place, Place] = {}
    for number, effect in enumerate(ranked):
        causes = (one for one in ranked[:number] if one not in found and one[0] is effect[0])
        cause = next((one for one in causes if _explains(first[one], first[effect])), None)
        if cause is not None:
            found[effect] = cause
    return found


def same_without_graphs(
    cases: Sequence[JudgedCase], broken: Mapping[Rule, str], play: Replay
) -> dict[Place, Place]:
    """Return rules broken under graphs (rule -> shortest trace) that the trace breaks without graphs too."""
    found: dict[Place, Place] = {}
    if any(judged.observation.ended for judged in cases):
        return found  # a class that ends its process, or hangs, is not called again
    live = {rule for judged in cases if judged.case.regime is Regime.LIVE for rule in judged.broken}
    for judged in cases:
        mine = {rule for rule, trace in broken.items() if trace == str(judged.case.trace)} & live
        again = play(_without_graphs(judged.planned)) if mine else None
        for rule in mine & (again.broken if again else frozenset()):
            found[Regime.CAPTURED, rule] = (Regime.LIVE, rule)
    return found


def _explains(cause: Mapping[str, int], effect: Mapping[str, int]) -> bool:
    return all(case in cause and cause[case] <= step for case, step in effect.items())


def _without_graphs(planned: PlannedCase) -> PlannedCase:
    """Return a case whose replays are live steps, and that captures nothing."""
    trace = planned.case.trace
    steps = (Step(Op.FORWARD, step.tokens) if step.op is Op.REPLAY else step for step in trace)
    live = tuple(step for step in steps if step.op is not Op.CAPTURE)
    buffer = replace(planned.case.buffer, replayed=False)
    case = replace(planned.case, buffer=buffer, trace=replace(trace, steps=live), arm=EAGER)
    return replace(planned, case=case)


_NOT_OF_METHODS = frozenset({Rule.R0, Rule.R9, Rule.R10, Rule.R11})
"""Rules of a compiled decoder, or of ranks: methods that are driven alone say nothing about them."""


Finding = tuple[Row, tuple[Row, ...]]
"""A broken rule, and broken rules that are its effects."""


def by_cause(rows: Iterable[Row], effects: Effects) -> list[Finding]:
    """Return the broken rules that are told, in order, each with its effects.

    What nobody expected is told even if a known failure explains it.
    """
    broken = {(row.regime, row.rule): row for row in rows if row.verdict in BROKEN}
    causes = {place: _cause_of(place, broken, effects) for place in broken}
    return [
        (row, tuple(broken[effect] for effect, cause in causes.items() if cause == place != effect))
        for place, row in broken.items()
        if causes[place] == place
    ]


def _cause_of(place: Place, broken: Mapping[Place, Row], effects: Effects) -> Place:
    """Follow effects to the row that is told."""
    cause = effects.get(place, place)
    if (
        cause == place
        or cause not in broken
        or broken[cause].verdict not in (broken[place].verdict, Verdict.FAIL)
    ):
        return place
    return _cause_of(cause, broken, effects)


@dataclass(frozen=True)
class Standing(RuleVerdicts):
    """One class of one source (or of a user): for every rule (and regime) the row that decides.

    That is the failing one with the shortest trace, else one that could not be
    judged, else one that passed, else one that says why the rule does not apply.
    """

    source: str
    model_class: str
    rows: tuple[Row, ...]
    effects: Effects = field(default_factory=dict)
    """Broken rules that another broken rule of this class explains."""
    in_forward: frozenset[Place] = frozenset()
    """Broken rules that the methods of this class keep when they are called alone."""

    @property
    @override
    def verdicts(self) -> Collection[tuple[Rule, Verdict]]:
        return [(row.rule, row.verdict) for row in self.rows]

    @property
    @override
    def kept(self) -> frozenset[Rule]:
        """Rules that were put to the test, and kept in every regime."""
        return super().kept - self.broken

    @property
    def new(self) -> frozenset[Rule]:
        """Rules that are broken and not known to be."""
        return self.rules({Verdict.FAIL})

    @property
    def improved(self) -> frozenset[Rule]:
        """Rules that are kept and known to be broken."""
        return self.rules({Verdict.IMPROVED})

    @property
    def missing(self) -> frozenset[Rule]:
        """Rules that are known to be broken and were not put to the test."""
        return self.rules({Verdict.MISSING})

    @property
    def findings(self) -> list[Finding]:
        """Each cause once: its row, and the rows of the rules that it explains."""
        return by_cause(self.rows, self.effects)

    def broken_in(self, regime: Regime) -> frozenset[Rule]:
        """Return the rules that are broken in one regime, known or not."""
        return frozenset(row.rule for row in self.rows if row.regime is regime and row.verdict in BROKEN)

    @property
    def signature(self) -> tuple[Row, ...]:
        """The rows without names, files and lines: equal for two classes that stand alike."""
        return tuple(
            replace(
                row, model_class=None, revision="", source=None, detail="", family="", case="", where=None
            )
            for row in self.rows
        )


def sum_up(
    cases: Sequence[JudgedCase],
    source: str,
    model_class: str,
    known: Mapping[Rule, str] | None = None,
    rules: Sequence[Rule] | None = None,
) -> Standing:
    """Return the standing of a class after these cases, of which there is at least one.

    `rules` are those to tell; by default all that methods alone say something about.
    """
    ended = any(judged.observation.ended and judged.broken for judged in cases)
    rows = [(_weight(judged, row, ended=ended), row) for judged in cases for row in judged.rows()]
    # A fault that nobody knows is told before the known ones of its rule.
    rows = [((-1.0, weight[1]) if _is_new(row, known) else weight, row) for weight, row in rows]
    if rules is None:
        rules = [said.rule for said in cases[0].judgements if said.rule not in _NOT_OF_METHODS]
    deciding = (_deciding(rule, rows) for rule in rules)
    return Standing(source, model_class, tuple(beside_known(deciding, known)), effects_in(cases))


def sum_up_regimes(
    cases: Sequence[JudgedCase], source: str, model_class: str, known: Mapping[Rule, str] | None = None
) -> Standing:
    """Return the standing of a class with a row per rule and regime, rules in order, live use first."""
    apart = [[judged for judged in cases if judged.case.regime is regime] for regime in Regime]
    rows = [row for mine in apart if mine for row in sum_up(mine, source, model_class).rows]
    # What is known of a rule is known of either regime, so all of its rows have to be seen at once.
    rows = sorted(beside_known(rows, known), key=lambda row: list(Rule).index(row.rule))
    return Standing(source, model_class, tuple(rows), effects_in(cases))


def beside_each_other(
    standing: Standing, alone: Sequence[JudgedCase], in_order: Sequence[JudgedCase]
) -> Standing:
    """Return the standing with what each way to drive the class says of a rule that the other one breaks.

    `alone` are the cases that call the methods, `in_order` those of the class's own `embed_input_ids` and
    `forward`.
    """
    ways = [_verdicts_of(alone), _verdicts_of(in_order)]
    by_methods, by_forward = (
        {place for place, verdicts in way.items() if Verdict.FAIL in verdicts} for way in ways
    )
    kept = [{place for place, verdicts in way.items() if verdicts <= _KEEPS} for way in ways]

    def beside(row: Row) -> str:
        place = (row.regime, row.rule)
        if place in by_forward & kept[0]:
            return f"{row.detail}; its methods keep it when they are called alone"
        if place in by_methods & kept[1]:
            return f"{row.detail}; its own embed_input_ids and forward keep it in the engine's orders"
        return row.detail

    rows = (replace(row, detail=beside(row)) if row.verdict in BROKEN else row for row in standing.rows)
    return replace(standing, rows=tuple(rows), in_forward=frozenset(by_forward - by_methods))


_KEEPS = frozenset({Verdict.PASS, Verdict.SKIP})


def _verdicts_of(cases: Iterable[JudgedCase]) -> dict[Place, set[Verdict]]:
    """Return the verdicts of every rule that was put to the test, by regime and rule."""
    found: dict[Place, set[Verdict]] = {}
    for judged in cases:
        for said in judged.judgements:
            found.setdefault((judged.case.regime, said.rule), set()).add(said.verdict)
    return {place: verdicts for place, verdicts in found.items() if verdicts != {Verdict.SKIP}}


def beside_known(rows: Iterable[Row], known: Mapping[Rule, str] | None) -> list[Row]:
    """Put the rows of one class beside known failures (rule -> reference); None leaves them as they are."""
    rows = list(rows)
    if known is None:
        return rows
    seen = {row.rule for row in rows if row.verdict is Verdict.FAIL and not _is_new(row, known)}
    return [
        beside_expectation(row, broken=_is_expected(row, known, seen), reference=known.get(row.rule, ""))
        for row in rows
    ]


def _is_expected(row: Row, known: Mapping[Rule, str], seen: Collection[Rule]) -> bool:
    """Return True for a row that has to be broken.

    `seen` are rules whose known failure shows in some regime: it need not show in the other one, unless an
    entry states that.
    """
    if row.rule not in known or row.verdict is Verdict.FAIL:
        return row.rule in known and not _is_new(row, known)
    if isinstance(known, KnownRules) and known.states(row.rule, row.regime):
        return True
    return row.rule not in seen and _known_in_either(row.rule, known)


def _known_in_either(rule: Rule, known: Mapping[Rule, str]) -> bool:
    """Return True where no entry states the regimes in which a known failure of the rule shows."""
    return not isinstance(known, KnownRules) or not any(known.states(rule, regime) for regime in Regime)


def _is_new(row: Row, known: Mapping[Rule, str] | None) -> bool:
    """Return True for a fault in another regime or of another shape than those known of its rule."""
    if row.verdict is not Verdict.FAIL or not isinstance(known, KnownRules):
        return False
    return not known.covers(row.rule, row.regime, row.shape)


def _deciding(rule: Rule, rows: Iterable[tuple[tuple[float, int], Row]]) -> Row:
    """Return the worst row of a rule; of equals that of the shortest trace, then the first in the plan."""
    mine = ((weight, row) for weight, row in rows if row.rule is rule)
    _, row = min(mine, key=lambda pair: pair[0])
    return row


def _weight(judged: JudgedCase, row: Row, *, ended: bool) -> tuple[float, int]:
    """Return the rank of a verdict, the worst first, and the length of the trace.

    Where a method has `ended` a process, that is the finding: a rule that was kept in other traces stays
    kept, though it could not be judged in a trace that was cut short or not played.
    """
    rank = float(WORST_FIRST.index(row.verdict))
    seen = judged.observation
    if ended and row.verdict is Verdict.ERROR and (seen.ended or not seen.steps):
        rank = WORST_FIRST.index(Verdict.SKIP) - 0.5
    return rank, len(judged.case.trace.steps)


RULES = (Rule.R1, Rule.R2, Rule.R3, Rule.R4, Rule.R5, Rule.R6, Rule.R7, Rule.R8, Rule.R11)
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
class Standings:
    """Standing of every rule in each regime that was played.

    `same_live` are rules that are broken under graphs, and by the same trace without graphs too.
    """

    of: Mapping[Regime, Standing]
    same_live: Effects = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        """Each cause once, over both regimes: its row, and the rows of what it explains."""
        rows = [row for standing in self.of.values() for row in standing.rows]
        within = {place: cause for standing in self.of.values() for place, cause in standing.effects.items()}
        return by_cause(rows, {**within, **self.same_live})

    def chosen(self, regime: str) -> list[Standing]:
        """Return the standings that decide for `live`, `captured` or `both`."""
        return [standing for one, standing in self.of.items() if regime in (BOTH, one)]


def regimes_of(regime: str) -> Collection[Regime]:
    """Return the regimes that a choice names."""
    return [one for one in Regime if one and regime in (BOTH, one)]


def only(plan: Iterable[PlannedCase], regime: str) -> list[PlannedCase]:
    """Return the part of a plan in `live`, `captured` or `both` regimes."""
    return [planned for planned in plan if planned.case.regime in regimes_of(regime)]


def stand_in_regimes(cases: Sequence[JudgedCase], source: str, model_class: str, replay: Replay) -> Standings:
    """Sum up the cases of each regime by themselves.

    `replay` plays one more case, so that a fault that has nothing to do with graphs is told once.
    """
    found = {}
    for regime in (Regime.LIVE, Regime.CAPTURED):
        mine = [judged for judged in cases if judged.case.regime is regime]
        if mine:
            found[regime] = sum_up(mine, source, model_class, rules=RULES)
    captured = found[Regime.CAPTURED].rows if Regime.CAPTURED in found else ()
    broken = {row.rule: row.trace for row in captured if row.verdict in BROKEN}
    return Standings(found, same_without_graphs(cases, broken, replay))
