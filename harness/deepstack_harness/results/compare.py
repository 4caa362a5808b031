"""What changed between runs: verdicts, distances, graphs and recompiles, case by case."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any

from deepstack_harness.contract.rules import BROKEN, Verdict
from deepstack_harness.results.read import Run

SCHEMA_VERSION = 1


class Kind(StrEnum):
    """What a change is to a reader."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    MISSING = "missing"
    NEW = "new"


RED = frozenset({Kind.REGRESSION, Kind.IMPROVEMENT, Kind.MISSING})
"""What somebody has to look at: baselines of an improvement want to be drawn tighter."""


@dataclass(frozen=True)
class Thresholds:
    """From where on a figure has changed.

    `distance`: as many times the distance to eager, or the rounding, of before.
    `graphs`, `recompiles`: more than so many more, or fewer.
    """

    distance: float = 4.0
    graphs: float = 0.0
    recompiles: float = 0.0


@dataclass(frozen=True)
class Change:
    """One thing that changed; `metric` is `verdict RULE`, `distance`, `graphs`, `recompiles` or `case`.

    `since` is what NEW was held against: `OLD`, or `the last N runs`.
    """

    kind: Kind
    metric: str
    case: str
    where: str
    before: str
    after: str
    since: str = "OLD"
    schema_version: int = field(default=SCHEMA_VERSION)


class State(StrEnum):
    """What a verdict says of the rule, expected or not."""

    KEPT = "kept"
    BROKEN = "broken"
    UNJUDGED = "not judged"
    ASIDE = "does not apply"


@dataclass(frozen=True)
class Figure:
    """A measured number, and the least that it can be told from."""

    value: float
    floor: float = 0.0


@dataclass(frozen=True)
class Picture:
    """A run, or the middle of several: `states` by (case, rule), `figures` by (case, metric)."""

    cases: Mapping[str, str]
    states: Mapping[tuple[str, str], State]
    figures: Mapping[tuple[str, str], Figure]


def compare(
    old: Run, new: Run, history: Sequence[Run] = (), limits: Thresholds | None = None
) -> list[Change]:
    """Every change from `old` to `new`, and what has become worse than the middle of `history` and `old`.

    A figure's middle is its median, a verdict's the most frequent one.  What became
    better over the history is not said again in every run.
    """
    limits = limits or Thresholds()
    after = picture(new)
    found = list(_changes(picture(old), after, limits, "OLD"))
    if history:
        known = {(change.case, change.metric) for change in found}
        runs = [*history, old]
        late = _changes(_middle([picture(run) for run in runs]), after, limits, f"the last {len(runs)} runs")
        worse = {Kind.REGRESSION, Kind.MISSING}
        found += [one for one in late if one.kind in worse and (one.case, one.metric) not in known]
    return found


def picture(run: Run) -> Picture:
    """What is compared of a run."""
    cases = run.cases.to_dict("records")
    states = zip(run.rows["case"], run.rows["rule"], run.rows["verdict"], strict=True)
    return Picture(
        {case["case"]: _where(case) for case in cases},
        {(case, rule): _state(verdict) for case, rule, verdict in states},
        {(case["case"], name): figure for case in cases for name, figure in _figures(case)},
    )


def _where(case: Mapping[str, Any]) -> str:
    return " ".join([case["subject"], case["group"], case["dtype"], f"'{case['trace']}'"])


def _state(verdict: str) -> State:
    if Verdict(verdict) in BROKEN:
        return State.BROKEN
    kept = {Verdict.PASS: State.KEPT, Verdict.IMPROVED: State.KEPT, Verdict.SKIP: State.ASIDE}
    return kept.get(Verdict(verdict), State.UNJUDGED)


def _figures(case: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    distances = case["distances"]
    if isinstance(distances, Mapping) and distances.get("eager") is not None:
        yield "distance", Figure(distances["eager"], distances["rounding"] or 0.0)
    for name in ("graphs", "recompiles"):
        if case[name] is not None and case[name] == case[name]:  # a NaN is no figure
            yield name, Figure(float(case[name]))


def _middle(pictures: Sequence[Picture]) -> Picture:
    """Of what is in more than half of them; of equally frequent states the latest."""
    half = len(pictures) / 2
    return Picture(
        {key: found[-1] for key, found in _gathered(one.cases for one in pictures) if len(found) > half},
        {key: _mode(found) for key, found in _gathered(one.states for one in pictures) if len(found) > half},
        {
            key: _median(found)
            for key, found in _gathered(one.figures for one in pictures)
            if len(found) > half
        },
    )


def _gathered(maps: Iterable[Mapping[Any, Any]]) -> Iterable[tuple[Any, list[Any]]]:
    found: dict[Any, list[Any]] = {}
    for one in maps:
        for key, value in one.items():
            found.setdefault(key, []).append(value)
    return found.items()


def _mode(states: Sequence[State]) -> State:
    return Counter(reversed(states)).most_common(1)[0][0]


def _median(figures: Sequence[Figure]) -> Figure:
    return Figure(median(one.value for one in figures), median(one.floor for one in figures))


def _changes(before: Picture, after: Picture, limits: Thresholds, since: str) -> Iterator[Change]:
    for case in [case for case in before.cases if case not in after.cases]:
        yield Change(Kind.MISSING, "case", case, before.cases[case], "there", "gone", since)
    for case in [case for case in after.cases if case not in before.cases]:
        yield Change(Kind.NEW, "case", case, after.cases[case], "not there", "there", since)
    for key in [key for key in before.states if key in after.states]:
        if kind := _verdict_change(before.states[key], after.states[key]):
            yield _told(kind, f"verdict {key[1]}", after, key, (before.states[key], after.states[key]), since)
    for key in [key for key in before.figures if key in after.figures]:
        old, new = before.figures[key], after.figures[key]
        if kind := _FIGURES[key[1]](old, new, limits):
            yield _told(kind, key[1], after, key, (f"{old.value:.4g}", f"{new.value:.4g}"), since)


def _told(
    kind: Kind, metric: str, after: Picture, key: tuple[str, str], pair: tuple[str, str], since: str
) -> Change:
    return Change(kind, metric, key[0], after.cases[key[0]], str(pair[0]), str(pair[1]), since)


def _verdict_change(old: State, new: State) -> Kind | None:
    if old is new:
        return None
    if new is State.ASIDE:
        return Kind.MISSING
    if new is State.KEPT:
        return Kind.NEW if old is State.ASIDE else Kind.IMPROVEMENT
    return Kind.REGRESSION


def _distance_change(old: Figure, new: Figure, limits: Thresholds) -> Kind | None:
    if new.value > limits.distance * max(old.value, old.floor):
        return Kind.REGRESSION
    return Kind.IMPROVEMENT if old.value > limits.distance * max(new.value, new.floor) else None


def _count_change(name: str) -> Callable[[Figure, Figure, Thresholds], Kind | None]:
    def change(old: Figure, new: Figure, limits: Thresholds) -> Kind | None:
        limit = getattr(limits, name)
        if new.value > old.value + limit:
            return Kind.REGRESSION
        return Kind.IMPROVEMENT if new.value < old.value - limit else None

    return change


_FIGURES = {
    "distance": _distance_change,
    "graphs": _count_change("graphs"),
    "recompiles": _count_change("recompiles"),
}


def seconds(old: Run, new: Run) -> list[tuple[str, float, float]]:
    """(where, seconds before, now) of the cases that both have, those that grew most first."""
    times = dict(zip(old.cases["case"], old.cases["seconds"], strict=True))
    both = [
        (_where(case), float(times[case["case"]]), float(case["seconds"]))
        for case in new.cases.to_dict("records")
        if case["case"] in times
    ]
    return sorted(both, key=lambda one: one[1] - one[2])
