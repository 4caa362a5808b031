"""Verdicts: their order, their words, and how a known failure changes them.

No other module lists verdicts in an order, calls one of them broken or unexpected, or names one for readers.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from deepstack_harness.contract.rules import Rule


class Verdict(StrEnum):
    """A statement about one rule.

    An oracle says PASS, FAIL, SKIP (the rule was not put to the test; the detail says why) or ERROR (it could
    not be judged).  XFAIL, IMPROVED and MISSING exist only beside a known failure, see `against_expectation`.
    """

    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"
    ERROR = "ERROR"
    XFAIL = "XFAIL"
    IMPROVED = "IMPROVED"
    MISSING = "MISSING"

    @property
    def word(self) -> str:
        """The text of a narrow table cell."""
        return _READING[self].word

    @property
    def meaning(self) -> str:
        """The explanation in a legend."""
        return _READING[self].meaning

    @property
    def abbreviation(self) -> str:
        """Four letters at most, for a matrix on the terminal."""
        return _READING[self].abbreviation

    @property
    def sign(self) -> str:
        """One character for a matrix in Markdown."""
        return _READING[self].sign

    @property
    def style(self) -> str:
        """The colour on a terminal, by rich's name; empty for the usual one."""
        return _READING[self].style


class _Reading(NamedTuple):
    word: str
    meaning: str
    abbreviation: str
    sign: str
    style: str = ""


# Worst first: reports sort and fold cases by this order.
_READING = {
    Verdict.FAIL: _Reading("broken", "broken", "FAIL", "❌", "red"),
    Verdict.ERROR: _Reading("not judged", "not judged", "ERR", "⚠️", "yellow"),
    Verdict.IMPROVED: _Reading("kept, expected to break", "kept, expected to break", "IMPR", "⬆️", "cyan"),
    Verdict.MISSING: _Reading(
        "not tested, expected to break", "not tested, expected to break", "MISS", "❔", "cyan"
    ),
    Verdict.XFAIL: _Reading("broken", "broken, as expected", "xf", "🔶", "magenta"),
    Verdict.PASS: _Reading("kept", "kept", "ok", "✅"),
    Verdict.SKIP: _Reading("not tested", "does not apply", "-", "▫️", "dim"),
}

WORST_FIRST: tuple[Verdict, ...] = tuple(_READING)

BROKEN = frozenset({Verdict.FAIL, Verdict.XFAIL})
"""Verdicts of a broken rule, whether the failure is known or not."""

KEPT = frozenset({Verdict.PASS, Verdict.IMPROVED})
"""Verdicts of a rule that was put to the test and kept."""

UNEXPECTED = frozenset({Verdict.FAIL, Verdict.ERROR, Verdict.IMPROVED, Verdict.MISSING})
"""Verdicts that turn CI red: somebody has to look at them."""

OPENED = UNEXPECTED | {Verdict.XFAIL}
"""Verdicts with something to tell: a trace, a figure, a diagnosis."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict that stands for all of them; raises `ValueError` for none."""
    return min(verdicts, key=WORST_FIRST.index)


def against_expectation(verdict: Verdict, *, broken: bool | None) -> Verdict:
    """Return the verdict of a rule that is (True) or is not (False, None) known to be broken.

    Beside a known failure FAIL is expected (XFAIL), PASS says that the failure is gone (IMPROVED), and SKIP
    that nothing put it to the test (MISSING).  What could not be judged stays ERROR.
    """
    if not broken:
        return verdict
    changed = {Verdict.FAIL: Verdict.XFAIL, Verdict.PASS: Verdict.IMPROVED, Verdict.SKIP: Verdict.MISSING}
    return changed.get(verdict, verdict)


class Effect(StrEnum):
    """A broken rule's consequence for users.

    OUTPUT: rows of real tokens are wrong.  PADDING: only padded rows are.  CRASH: a step raises.
    COST: work or time is wasted.
    """

    OUTPUT = "output"
    PADDING = "padding"
    CRASH = "crash"
    COST = "cost"


@dataclass(frozen=True)
class Judgement:
    """An oracle's statement about one rule: a figure against a limit, not only yes or no.

    `effect` is there for broken rules whose facts tell it, see `deepstack_harness.oracles.effect`.  `steps`
    are the numbers (from 1) of the steps in which a rule of the buffer was seen broken.
    """

    rule: Rule
    verdict: Verdict
    value: float | None = None
    limit: float | None = None
    unit: str = ""
    detail: str = ""
    effect: Effect | None = None
    steps: tuple[int, ...] = ()


class RuleVerdicts:
    """A base for whatever was judged by several rules: subclasses say `verdicts`, the rest follows."""

    @property
    def verdicts(self) -> Collection[tuple[Rule, Verdict]]:
        """The rules that were judged, each with its verdict."""
        raise NotImplementedError

    @property
    def broken(self) -> frozenset[Rule]:
        """Broken rules, known or not."""
        return self.rules(BROKEN)

    @property
    def kept(self) -> frozenset[Rule]:
        """Rules that were put to the test and kept."""
        return self.rules(KEPT)

    @property
    def unjudged(self) -> frozenset[Rule]:
        """Rules that ended as ERROR."""
        return self.rules({Verdict.ERROR})

    @property
    def unexpected(self) -> frozenset[Rule]:
        """Rules that somebody has to look at."""
        return self.rules(UNEXPECTED)

    def rules(self, wanted: Collection[Verdict]) -> frozenset[Rule]:
        """Return the rules with one of these verdicts."""
        return frozenset(rule for rule, verdict in self.verdicts if verdict in wanted)

    def breaks_exactly(self, rules: frozenset[Rule] | None) -> bool:
        """Say whether all rules could be judged and these alone are broken; any may be broken for None."""
        return not self.unjudged and rules in (None, self.broken)
