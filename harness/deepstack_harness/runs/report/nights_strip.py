"""Thirty nights at a glance: a strip for each rule and family, and what the last night shows of it.

A strip has a cell for each night: passed, broken as known, red, or not tested.  From it follows since when a
cell is red and with which versions that night ran, which cells flip, and which were tested once and are not
tested any more.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, KEPT, UNEXPECTED, Verdict
from deepstack_harness.runs.report.run_data import RunData, summarise
from deepstack_harness.text import clean

MOST_NIGHTS = 30
"""Nights of a strip: a month, and the width of a phone."""
FLIPS = 3
"""Times that a cell goes from red to not red or back, from which on it is flaky: one red night is two."""

Place = tuple[Rule, str]
"""A rule and a family."""


class CellState(StrEnum):
    """State of a rule in a family in one night, the worst of its cases."""

    RED = "red"
    KNOWN = "broken as known"
    KEPT = "kept"
    UNTESTED = "not tested"

    @property
    def sign(self) -> str:
        """One character, so that no state is shown only by its colour."""
        return {"red": "x", "broken as known": "·", "kept": "", "not tested": "-"}[self]


@dataclass(frozen=True)
class Night:
    """One night: what it was measured with, how long its stages took, and its result in one line.

    `changed` names the versions that the night before did not have.
    """

    name: str
    when: str
    good: bool
    headline: str
    versions: tuple[str, ...]
    changed: tuple[str, ...]
    seconds: float
    unexpected: int

    @property
    def day(self) -> str:
        """Only the date."""
        return self.when.partition(" ")[0]


@dataclass(frozen=True)
class Strip:
    """One rule in one family over the nights, oldest first.

    `red_since` is the first of the red nights that end with the last one, None where that is not red;
    `flips` counts the changes between red and not red; `last_tested` is the last night that tested a cell
    which the last night did not test.
    """

    rule: Rule
    family: str
    states: tuple[CellState, ...]
    red_since: Night | None
    from_the_start: bool
    flips: int
    last_tested: Night | None

    @property
    def red_nights(self) -> int:
        """The number of red nights that end with the last one."""
        return len(self.states) - max(
            (number for number, state in enumerate(self.states, 1) if state is not CellState.RED), default=0
        )

    @property
    def flaky(self) -> bool:
        """Return whether it changes so often that no change explains it."""
        return self.flips >= FLIPS

    @property
    def steady(self) -> bool:
        """Return whether there is nothing to report of it."""
        return CellState.RED not in self.states and self.last_tested is None


@dataclass(frozen=True)
class Nights:
    """All nights that are shown, and their strips: those that are red tonight first."""

    nights: tuple[Night, ...]
    strips: tuple[Strip, ...]
    left_out: int

    @property
    def red(self) -> list[Strip]:
        """Strips that are red in the last night."""
        return [strip for strip in self.strips if strip.red_since]

    @property
    def flaky(self) -> list[Strip]:
        """Strips that flip."""
        return [strip for strip in self.strips if strip.flaky]

    @property
    def no_longer_tested(self) -> list[Strip]:
        """Strips that the last night does not test, and an earlier one did."""
        return [strip for strip in self.strips if strip.last_tested]

    @property
    def told(self) -> list[Strip]:
        """Strips with something to report."""
        return [strip for strip in self.strips if not strip.steady]

    @property
    def steady(self) -> list[Strip]:
        """Strips that were red in no night."""
        return [strip for strip in self.strips if strip.steady]

    @property
    def longest(self) -> float:
        """Seconds of the longest night."""
        return max(night.seconds for night in self.nights)


def nights_of(run: RunData) -> Nights | None:
    """Return the nights that end with this run; None where no earlier run is known."""
    before = [earlier for earlier in run.history or () if earlier.started < run.started]
    if not before:
        return None
    runs = [*before[-(MOST_NIGHTS - 1) :], run]
    nights: list[Night] = []
    for night in runs:
        nights.append(_night(night, nights[-1] if nights else None))
    states = [_states(night) for night in runs]
    rules = list(Rule)
    seen = {place for by_place in states for place in by_place}
    places = sorted(seen, key=lambda place: (rules.index(place[0]), place[1]))
    strips = [_strip(place, nights, states) for place in places]
    strips.sort(key=lambda strip: (strip.red_since is None, not strip.flaky, strip.last_tested is None))
    return Nights(tuple(nights), tuple(strips), len(before) + 1 - len(runs))


def _night(run: RunData, before: Night | None) -> Night:
    summary = summarise(run)
    versions = tuple(dict.fromkeys(text for about in run.about for text in about.versions))
    changed = tuple(text for text in versions if before and text not in before.versions)
    seconds = (
        sum(case.seconds for case in run.cases.values())
        if run.stages is None
        else sum(stage.seconds for stage in run.stages)
    )
    return Night(
        run.name, run.when, summary.good, summary.headline, versions, changed, seconds, summary.unexpected
    )


def _states(run: RunData) -> dict[Place, CellState]:
    verdicts: dict[Place, set[Verdict]] = defaultdict(set)
    for row in run.rows:
        verdicts[row.rule, row.family or "-"].add(row.verdict)
    return {(rule, clean(family)): _state(seen) for (rule, family), seen in verdicts.items()}


def _state(verdicts: set[Verdict]) -> CellState:
    if verdicts & UNEXPECTED:
        return CellState.RED
    if verdicts & BROKEN:
        return CellState.KNOWN
    return CellState.KEPT if verdicts & KEPT else CellState.UNTESTED


def _strip(place: Place, nights: Sequence[Night], by_night: Sequence[dict[Place, CellState]]) -> Strip:
    states = tuple(by_place.get(place, CellState.UNTESTED) for by_place in by_night)
    tested = [state for state in states if state is not CellState.UNTESTED]
    reds = [state is CellState.RED for state in tested]
    flips = sum(earlier is not other for earlier, other in pairwise(reds))
    first = max((number for number, state in enumerate(states, 1) if state is not CellState.RED), default=0)
    last = max((number for number, state in enumerate(states) if state is not CellState.UNTESTED), default=0)
    lost = bool(tested) and states[-1] is CellState.UNTESTED
    return Strip(
        *place,
        states,
        nights[first] if first < len(states) else None,
        first == 0,
        flips,
        nights[last] if lost else None,
    )
