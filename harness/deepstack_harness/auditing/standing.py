"""Where a class stands over a plan of cases: one row per rule, the shortest trace that shows a fault."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from deepstack_harness.catalogue.matrix import Planned
from deepstack_harness.contract.case import Judgement
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule, Verdict
from deepstack_harness.oracles.expectation import expect
from deepstack_harness.play.cells import Cell, Runner

_WORST_FIRST = (Verdict.FAIL, Verdict.ERROR, Verdict.PASS, Verdict.SKIP)
_NOT_OF_METHODS = frozenset({Rule.R0, Rule.R9, Rule.R10, Rule.R11})
"""Rules of a compiled decoder, or of ranks: methods that are driven alone say nothing about them."""


@dataclass(frozen=True)
class Standing:
    """One class of one source (or of a user): for every rule the row that decides.

    That is the failing one with the shortest trace, else one that could not be
    judged, else one that passed, else one that says why the rule does not apply.
    """

    source: str
    model_class: str
    rows: tuple[Row, ...]

    @property
    def broken(self) -> frozenset[Rule]:
        """Rules that FAIL somewhere, known or not."""
        return self.rules(Verdict.FAIL) | self.rules(Verdict.XFAIL)

    @property
    def kept(self) -> frozenset[Rule]:
        """Rules that PASS somewhere and FAIL nowhere."""
        return self.rules(Verdict.PASS) | self.improved

    @property
    def new(self) -> frozenset[Rule]:
        """Broken, and not known to be."""
        return self.rules(Verdict.FAIL)

    @property
    def improved(self) -> frozenset[Rule]:
        """Kept, and known to be broken."""
        return self.rules(Verdict.IMPROVED)

    @property
    def unjudged(self) -> frozenset[Rule]:
        """Rules that ended as ERROR."""
        return self.rules(Verdict.ERROR)

    def rules(self, verdict: Verdict) -> frozenset[Rule]:
        """Rules whose deciding row has this verdict."""
        return frozenset(Rule(row.rule) for row in self.rows if row.verdict == verdict)

    @property
    def signature(self) -> tuple[Row, ...]:
        """What two classes share that stand alike: their rows, without the names, files and lines."""
        blank = {"model_class": None, "revision": "", "source": None, "detail": "", "family": ""}
        return tuple(replace(row, **blank) for row in self.rows)  # type: ignore[arg-type]


def stand(
    runner: Runner,
    source: str,
    model_class: str,
    plan: Iterable[Planned],
    known: Mapping[Rule, str] = MappingProxyType({}),
) -> Standing:
    """Play a plan and sum it up; `known` are failures (rule -> reference) that are expected."""
    return sum_up([runner.play(planned) for planned in plan], source, model_class, known)


def sum_up(cells: Sequence[Cell], source: str, model_class: str, known: Mapping[Rule, str]) -> Standing:
    """Where a class stands after these cells, of which there is at least one."""
    rules = [said.rule for said in cells[0].judgements if said.rule not in _NOT_OF_METHODS]
    deciding = (_deciding(rule, cells) for rule in rules)
    return Standing(source, model_class, tuple(expect(deciding, known)))


def _deciding(rule: Rule, cells: Sequence[Cell]) -> Row:
    pairs = [(cell, said) for cell in cells for said in cell.judgements if said.rule is rule]
    cell, said = min(pairs, key=_precedence)
    return Row.of(cell.case, said, cell.observation.torch)


def _precedence(pair: tuple[Cell, Judgement]) -> tuple[int, int]:
    """Of traces of one length the first in the plan is taken."""
    cell, said = pair
    return (_WORST_FIRST.index(said.verdict), len(cell.case.trace.steps))
