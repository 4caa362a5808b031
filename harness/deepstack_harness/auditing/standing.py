"""The standing of a class over a plan of cases: the row that decides, for each rule."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from typing_extensions import override

from deepstack_harness.catalogue.known_failures import KnownRules
from deepstack_harness.contract.row import Row, beside_expectation
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import WORST_FIRST, RuleVerdicts, Verdict
from deepstack_harness.oracles.judged_case import JudgedCase

_NOT_OF_METHODS = frozenset({Rule.R0, Rule.R9, Rule.R10, Rule.R11})
"""Rules of a compiled decoder, or of ranks: methods that are driven alone say nothing about them."""


@dataclass(frozen=True)
class Standing(RuleVerdicts):
    """One class of one source (or of a user): for every rule the row that decides.

    That is the failing one with the shortest trace, else one that could not be
    judged, else one that passed, else one that says why the rule does not apply.
    """

    source: str
    model_class: str
    rows: tuple[Row, ...]

    @property
    @override
    def verdicts(self) -> Collection[tuple[Rule, Verdict]]:
        return [(row.rule, row.verdict) for row in self.rows]

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
    return Standing(source, model_class, tuple(beside_known(deciding, known)))


def beside_known(rows: Iterable[Row], known: Mapping[Rule, str] | None) -> list[Row]:
    """Put rows beside known failures (rule -> reference); None leaves them as they are."""
    if known is None:
        return list(rows)
    return [
        beside_expectation(
            row, broken=row.rule in known and not _is_new(row, known), reference=known.get(row.rule, "")
        )
        for row in rows
    ]


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
