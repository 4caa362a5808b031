"""Changes between runs: verdicts, distances, graphs and recompiles, case by case."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import TypeVar

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, KEPT, Verdict
from deepstack_harness.results.read import StoredRun
from deepstack_harness.results.records import CaseRecord

SCHEMA_VERSION = 1
K = TypeVar("K")
V = TypeVar("V")


class ChangeKind(StrEnum):
    """The meaning of a change to a reader."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    MISSING = "missing"
    NEW = "new"


RED = frozenset({ChangeKind.REGRESSION, ChangeKind.IMPROVEMENT, ChangeKind.MISSING})
"""Changes that somebody has to look at: after an improvement the baseline should be drawn tighter."""


@dataclass(frozen=True)
class Thresholds:
    """Thresholds above which a figure has changed.

    `distance`: a factor on the distance to eager of before, or on the rounding.
    `graphs`, `recompiles`: a number more, or fewer.
    """

    distance: float = 4.0
    graphs: float = 0.0
    recompiles: float = 0.0


@dataclass(frozen=True)
class Change:
    """One change; `metric` is `verdict RULE`, `distance`, `graphs`, `recompiles` or `case`.

    `since` is what NEW was compared with: `OLD`, or `the last N runs`.
    """

    kind: ChangeKind
    metric: str
    case: str
    where: str
    before: str
    after: str
    since: str = "OLD"
    schema_version: int = field(default=SCHEMA_VERSION)


class RuleState(StrEnum):
    """The state of a rule in a case, expected or not."""

    KEPT = "kept"
    BROKEN = "broken"
    UNJUDGED = "not judged"
    UNTESTED = "does not apply"


@dataclass(frozen=True)
class Measure:
    """A measured number, and the least that it can be told from."""

    value: float
    floor: float = 0.0


@dataclass(frozen=True)
class Picture:
    """A run, or the middle of several: `states` by (case, rule), `measures` by (case, metric)."""

    cases: Mapping[str, str]
    states: Mapping[tuple[str, Rule], RuleState]
    measures: Mapping[tuple[str, str], Measure]


def compare(
    old: StoredRun, new: StoredRun, history: Sequence[StoredRun] = (), limits: Thresholds | None = None
) -> list[Change]:
    """Return every change from `old` to `new`, and what became worse than the middle of `history` and `old`.

    The middle of a measure is its median, of a state the most frequent one.  What became
    better over the history is not repeated in every run.
    """
    limits = limits or Thresholds()
    after = picture(new)
    found = list(_changes(picture(old), after, limits, "OLD"))
    if history:
        known = {(change.case, change.metric) for change in found}
        runs = [*history, old]
        middle = _middle([picture(run) for run in runs])
        late = _changes(middle, after, limits, f"the last {len(runs)} runs")
        worse = {ChangeKind.REGRESSION, ChangeKind.MISSING}
        found += [
            change for change in late if change.kind in worse and (change.case, change.metric) not in known
        ]
    return found


def picture(run: StoredRun) -> Picture:
    """Return the comparable part of a run."""
    return Picture(
        {case.case: _where(case) for case in run.cases},
        {(row.case, row.rule): _state(row.verdict) for row in run.rows},
        {(case.case, name): measure for case in run.cases for name, measure in _measures(case)},
    )


def seconds(old: StoredRun, new: StoredRun) -> list[tuple[str, float, float]]:
    """Return (where, seconds before, now) of the cases in both runs, those that grew most first."""
    times = {case.case: case.seconds for case in old.cases}
    both = [(_where(case), times[case.case], case.seconds) for case in new.cases if case.case in times]
    return sorted(both, key=lambda found: found[1] - found[2])


def _where(case: CaseRecord) -> str:
    return " ".join([case.subject, case.group, case.dtype, f"'{case.trace}'"])


def _state(verdict: Verdict) -> RuleState:
    if verdict in BROKEN:
        return RuleState.BROKEN
    if verdict in KEPT:
        return RuleState.KEPT
    return RuleState.UNJUDGED if verdict is Verdict.ERROR else RuleState.UNTESTED


def _measures(case: CaseRecord) -> Iterator[tuple[str, Measure]]:
    if case.distances is not None:
        yield "distance", Measure(case.distances.eager, case.distances.rounding)
    for name, count in (("graphs", case.graphs), ("recompiles", case.recompiles)):
        if count is not None:
            yield name, Measure(float(count))


def _middle(pictures: Sequence[Picture]) -> Picture:
    """Return median measures and most frequent states; what half of the pictures or fewer have is dropped.

    Of equally frequent states the latest is taken.
    """
    half = len(pictures) / 2
    cases = _gathered(each.cases for each in pictures)
    states = _gathered(each.states for each in pictures)
    measures = _gathered(each.measures for each in pictures)
    return Picture(
        {key: found[-1] for key, found in cases.items() if len(found) > half},
        {key: _mode(found) for key, found in states.items() if len(found) > half},
        {key: _median(found) for key, found in measures.items() if len(found) > half},
    )


def _gathered(maps: Iterable[Mapping[K, V]]) -> dict[K, list[V]]:
    found: dict[K, list[V]] = {}
    for each in maps:
        for key, value in each.items():
            found.setdefault(key, []).append(value)
    return found


def _mode(states: Sequence[RuleState]) -> RuleState:
    return Counter(reversed(states)).most_common(1)[0][0]


def _median(measures: Sequence[Measure]) -> Measure:
    return Measure(median(each.value for each in measures), median(each.floor for each in measures))


def _changes(before: Picture, after: Picture, limits: Thresholds, since: str) -> Iterator[Change]:
    for case in [case for case in before.cases if case not in after.cases]:
        yield Change(ChangeKind.MISSING, "case", case, before.cases[case], "there", "gone", since)
    for case in [case for case in after.cases if case not in before.cases]:
        yield Change(ChangeKind.NEW, "case", case, after.cases[case], "not there", "there", since)
    for key in [key for key in before.states if key in after.states]:
        was, now = before.states[key], after.states[key]
        if kind := _verdict_change(was, now):
            yield Change(kind, f"verdict {key[1]}", key[0], after.cases[key[0]], was, now, since)
    for place in [place for place in before.measures if place in after.measures]:
        old, new = before.measures[place], after.measures[place]
        if kind := _MEASURES[place[1]](old, new, limits):
            figures = f"{old.value:.4g}", f"{new.value:.4g}"
            yield Change(kind, place[1], place[0], after.cases[place[0]], *figures, since)


def _verdict_change(old: RuleState, new: RuleState) -> ChangeKind | None:
    if old is new:
        return None
    if new is RuleState.UNTESTED:
        return ChangeKind.MISSING
    if new is RuleState.KEPT:
        return ChangeKind.NEW if old is RuleState.UNTESTED else ChangeKind.IMPROVEMENT
    return ChangeKind.REGRESSION


def _distance_change(old: Measure, new: Measure, limits: Thresholds) -> ChangeKind | None:
    if new.value > limits.distance * max(old.value, old.floor):
        return ChangeKind.REGRESSION
    return ChangeKind.IMPROVEMENT if old.value > limits.distance * max(new.value, new.floor) else None


def _count_change(old: Measure, new: Measure, limit: float) -> ChangeKind | None:
    if new.value > old.value + limit:
        return ChangeKind.REGRESSION
    return ChangeKind.IMPROVEMENT if new.value < old.value - limit else None


_MEASURES: Mapping[str, Callable[[Measure, Measure, Thresholds], ChangeKind | None]] = {
    "distance": _distance_change,
    "graphs": lambda old, new, limits: _count_change(old, new, limits.graphs),
    "recompiles": lambda old, new, limits: _count_change(old, new, limits.recompiles),
}
