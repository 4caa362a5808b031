"""The standing of a class over a plan of cases: the row that decides, for each rule."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from typing_extensions import override

from deepstack_harness.auditing.causes import Effects, Place, effects_in
from deepstack_harness.catalogue.known_failures import KnownRules
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.row import Row, beside_expectation
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, WORST_FIRST, RuleVerdicts, Verdict
from deepstack_harness.oracles.judged_case import JudgedCase

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
    return not known.covers(row.rule, row.regime, row.unit)


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
