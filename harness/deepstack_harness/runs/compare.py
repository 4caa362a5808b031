"""Changes between runs, case by case: verdicts, distances, graphs, recompiles, and what was compiled."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import TypeVar

from deepstack_harness.contract.observation import CompiledCode
from deepstack_harness.contract.rules import Promise, Rule
from deepstack_harness.contract.tolerances import WORSE
from deepstack_harness.contract.verdicts import BROKEN, KEPT, Verdict
from deepstack_harness.runs.records import CaseRecord
from deepstack_harness.runs.store import StoredRun
from deepstack_harness.text import number

SCHEMA_VERSION = 1
"""The version of the rows of a comparison."""
K = TypeVar("K")
V = TypeVar("V")


class ChangeKind(StrEnum):
    """The meaning of a change to a reader."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    MISSING = "missing"
    NEW = "new"
    BEHAVIOUR = "new behaviour"
    """Other code or other guards than before: neither better nor worse by any rule."""

    @property
    def style(self) -> str:
        """The colour on a terminal, by rich's name; empty for the usual one."""
        return {"regression": "red", "missing": "red", "improvement": "yellow"}.get(self, "")


RED = frozenset({ChangeKind.REGRESSION, ChangeKind.IMPROVEMENT, ChangeKind.MISSING})
"""Changes that somebody has to look at: after an improvement the baseline should be drawn tighter."""


@dataclass(frozen=True)
class Change:
    """One change; `metric` is `verdict RULE`, `distance`, `graphs`, `recompiles`, `breaks` or `case`.

    It is `kernels` where Inductor's code runs other kernels (`before` and `after` have those that only one
    run has), and `guards TYPE` where another number of guards of a type was dropped.

    `since` is what NEW was compared with: `OLD`, or `the last N runs`. `promise` is that of the rule, None
    for other metrics and for rules of their own. `cause` is the title of the finding that the change belongs
    to (`deepstack_harness.runs.causes`), and `consequence` is True where it follows from another change;
    empty and False where causes were not requested.
    """

    kind: ChangeKind
    metric: str
    case: str
    where: str
    before: str
    after: str
    since: str = "OLD"
    promise: Promise | None = None
    cause: str = ""
    consequence: bool = False
    schema_version: int = field(default=SCHEMA_VERSION)


class RuleState(StrEnum):
    """The state of a rule in a case, expected or not."""

    KEPT = "kept"
    BROKEN = "broken"
    UNJUDGED = "not judged"
    UNTESTED = "does not apply"


@dataclass(frozen=True)
class ComparableRun:
    """A run, or the middle of several: `states` by (case, rule), `measures` by (case, metric).

    A measure is a number, and the one as which smaller ones count: a distance within rounding is no distance.
    `shapes` are the kinds of faults, with the type of an exception; the middle of several runs has none, and
    no `compiled`, which has the kernels and the dropped guards of each case by metric. Of a run that is not
    `whole`, cases that are not there have not been played yet.
    """

    cases: Mapping[str, str]
    states: Mapping[tuple[str, Rule], RuleState]
    measures: Mapping[tuple[str, str], tuple[float, float]]
    shapes: Mapping[tuple[str, Rule], str] = field(default_factory=dict)
    compiled: Mapping[str, Mapping[str, Counter[str]]] = field(default_factory=dict)
    whole: bool = True


def compare(old: StoredRun, new: StoredRun, history: Sequence[StoredRun] = ()) -> list[Change]:
    """Return every change from `old` to `new`, and what became worse than the middle of `history` and `old`.

    The middle of a measure is its median, of a state the most frequent one. What became
    better over the history is not repeated in every run.
    """
    after = comparable(new)
    changes = list(_changes(comparable(old), after, "OLD"))
    if history:
        seen = {(change.case, change.metric) for change in changes}
        runs = [*history, old]
        middle = _typical_run([comparable(run) for run in runs])
        late = _changes(middle, after, f"the last {len(runs)} runs")
        worse = {ChangeKind.REGRESSION, ChangeKind.MISSING}
        changes += [
            change for change in late if change.kind in worse and (change.case, change.metric) not in seen
        ]
    return changes


def comparable(run: StoredRun) -> ComparableRun:
    """Return the comparable part of a run."""
    return ComparableRun(
        {case.case: _case_key(case) for case in run.cases},
        {(row.case, row.rule): _state(row.verdict) for row in run.rows},
        {(case.case, name): measure for case in run.cases for name, measure in _measures(case)},
        {
            (row.case, row.rule): " ".join(filter(None, [row.shape, row.exception]))
            for row in run.rows
            if row.verdict in BROKEN and row.shape
        },
        {case.case: _compiled(case.code) for case in run.cases if case.code is not None},
        whole=not run.unfinished,
    )


def seconds(old: StoredRun, new: StoredRun) -> list[tuple[str, float, float]]:
    """Return (where, seconds before, now) of the cases in both runs, those that grew most first."""
    times = {case.case: case.seconds for case in old.cases}
    both = [(_case_key(case), times[case.case], case.seconds) for case in new.cases if case.case in times]
    return sorted(both, key=lambda place: place[1] - place[2])


def _case_key(case: CaseRecord) -> str:
    return " ".join([case.subject, case.group, case.dtype, f"'{case.trace}'"])


def _state(verdict: Verdict) -> RuleState:
    if verdict in BROKEN:
        return RuleState.BROKEN
    if verdict in KEPT:
        return RuleState.KEPT
    return RuleState.UNJUDGED if verdict is Verdict.ERROR else RuleState.UNTESTED


def _measures(case: CaseRecord) -> Iterator[tuple[str, tuple[float, float]]]:
    if case.distances is not None:
        yield "distance", (case.distances.eager, case.distances.rounding)
    counts = {"graphs": case.graphs, "recompiles": case.recompiles, "breaks": case.breaks}
    for name, count in counts.items():
        if count is not None:
            yield name, (float(count), 0.0)


GUARDS, KERNELS = "guards", "kernels"


def _compiled(code: CompiledCode) -> dict[str, Counter[str]]:
    """Return how often a case runs each kernel, and dropped each type of guard; no entry where not known."""
    counts = {GUARDS: Counter({dropped.kind: dropped.number for dropped in code.dropped})}
    return counts if code.kernels is None else {**counts, KERNELS: Counter(code.kernels)}


def _behaviour(before: ComparableRun, after: ComparableRun, since: str) -> Iterator[Change]:
    """Yield what was compiled differently, in cases for which both runs recorded it."""
    for case in [case for case in before.compiled if case in after.compiled]:
        was, now, where = before.compiled[case], after.compiled[case], after.cases[case]
        for kind in sorted(was[GUARDS].keys() | now[GUARDS].keys()):
            if was[GUARDS][kind] != now[GUARDS][kind]:
                counts = str(was[GUARDS][kind]), str(now[GUARDS][kind])
                yield Change(ChangeKind.BEHAVIOUR, f"{GUARDS} {kind}", case, where, *counts, since)
        if KERNELS in was and KERNELS in now and was[KERNELS] != now[KERNELS]:
            went, came = was[KERNELS] - now[KERNELS], now[KERNELS] - was[KERNELS]
            names = listed_kernels(went), listed_kernels(came)
            yield Change(ChangeKind.BEHAVIOUR, KERNELS, case, where, *names, since)


def listed_kernels(counts: Mapping[str, int]) -> str:
    """Return `extern_kernels.bmm x2, cpp_fused_add`, in the order of the names; `none` for none."""
    each = (name + (f" x{number}" if number > 1 else "") for name, number in sorted(counts.items()))
    return ", ".join(each) or "none"


def _typical_run(runs: Sequence[ComparableRun]) -> ComparableRun:
    """Return median measures and most frequent states; what half of the runs or fewer have is dropped.

    Of equally frequent states the latest is taken.
    """
    half = len(runs) / 2
    cases = _values_by_key(run.cases for run in runs)
    states = _values_by_key(run.states for run in runs)
    measures = _values_by_key(run.measures for run in runs)
    return ComparableRun(
        {key: values[-1] for key, values in cases.items() if len(values) > half},
        {
            key: Counter(reversed(values)).most_common(1)[0][0]
            for key, values in states.items()
            if len(values) > half
        },
        {
            key: (median(value for value, _ in values), median(least for _, least in values))
            for key, values in measures.items()
            if len(values) > half
        },
    )


def _values_by_key(maps: Iterable[Mapping[K, V]]) -> dict[K, list[V]]:
    gathered: dict[K, list[V]] = {}
    for mapping in maps:
        for key, value in mapping.items():
            gathered.setdefault(key, []).append(value)
    return gathered


def _changes(before: ComparableRun, after: ComparableRun, since: str) -> Iterator[Change]:
    for case in [case for case in before.cases if after.whole and case not in after.cases]:
        yield Change(ChangeKind.MISSING, "case", case, before.cases[case], "there", "gone", since)
    for case in [case for case in after.cases if before.whole and case not in before.cases]:
        yield Change(ChangeKind.NEW, "case", case, after.cases[case], "not there", "there", since)
    for key in [key for key in before.states if key in after.states]:
        was, now = before.states[key], after.states[key]
        before_as, now_as = before.shapes.get(key, ""), after.shapes.get(key, "")
        if kind := _verdict_change(was, now):
            texts = str(was), str(now)
        elif before_as and now_as and before_as != now_as:
            # A known fault of a rule must not hide a new one.
            kind, texts = ChangeKind.REGRESSION, (f"{was}: {before_as}", f"{now}: {now_as}")
        else:
            continue
        promise = key[1].instance_of
        yield Change(kind, f"verdict {key[1]}", key[0], after.cases[key[0]], *texts, since, promise)
    for place in [place for place in before.measures if place in after.measures]:
        (old, old_least), (new, new_least) = before.measures[place], after.measures[place]
        factor = WORSE if place[1] == "distance" else 1
        if new > factor * max(old, old_least):
            kind = ChangeKind.REGRESSION
        elif old > factor * max(new, new_least):
            kind = ChangeKind.IMPROVEMENT
        else:
            continue
        yield Change(kind, place[1], place[0], after.cases[place[0]], number(old), number(new), since)
    yield from _behaviour(before, after, since)


def _verdict_change(old: RuleState, new: RuleState) -> ChangeKind | None:
    if old is new:
        return None
    if new is RuleState.UNTESTED:
        return ChangeKind.MISSING
    if new is RuleState.KEPT:
        return ChangeKind.NEW if old is RuleState.UNTESTED else ChangeKind.IMPROVEMENT
    return ChangeKind.REGRESSION
