"""The gate: the findings that turn the exit code of `audit` to 1, and what they are compared with.

A base is another version of the same source.  A finding is new where the base does not have it, and where
it is worse than that of the base: an engine comes to it more easily, more traces show it, other rows or
more rows of the same trace are wrong, users notice more of it, or it was judged in the base and is not
judged, or judged by fewer chances, any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from deepstack_harness.audit.class_verdicts import BrokenTrace, ClassVerdicts, Finding, Place
from deepstack_harness.catalogue.orders import DEFAULT, FLAG, REACHES, UNKNOWN, reach_kind
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, KEPT, UNEXPECTED, Effect, FaultKind, Row, Verdict

if TYPE_CHECKING:
    from deepstack_harness.audit.account import UnjudgedCarrier
    from deepstack_harness.audit.audited_source import AuditedSource

FindingKey = tuple[str, str, str, str]
"""Class, rule, regime and shape: what makes two findings of two nights the same fault."""


def keys_of(classes: Iterable[ClassVerdicts]) -> frozenset[FindingKey]:
    """Return the broken rules of some classes, known ones included."""
    rows = (row for verdicts in classes for row in verdicts.rows if row.verdict in BROKEN)
    return frozenset((subject_of(row), row.rule, row.regime, row.shape or "") for row in rows)


def subject_of(row: Row) -> str:
    """Return the class or helper that a row is about."""
    return row.model_class or row.revision


Cause = tuple[str, Rule, str, str]
"""Place, rule, regime and shape: what classes share that have a fault from the same lines."""


def cause_of(row: Row) -> Cause:
    """Return the cause of a broken rule; without a place every class has its own."""
    return row.where or subject_of(row), row.rule, row.regime, row.shape or ""


def shown_of(finding: Finding, failing: Collection[Row]) -> Row:
    """Return the row to show of a broken rule and its effects: the first that fails, be it an effect."""
    row, also = finding
    return next((shown for shown in (row, *also) if shown in failing), row)


class Gate(StrEnum):
    """Findings that fail an audit.

    ANY: all.  NEW: those that the base does not have; without a base, those that no catalogue knows.  FLAG:
    those that default settings or a flag lead to.  DEFAULT: those that default settings lead to.  A fault of
    unknown reach counts in both, since nobody has read the orders of that engine.  With a base ANY, FLAG and
    DEFAULT are only about the new findings. Without one, known failures that are mended, or were not put to
    the test, count in ANY and FLAG.
    """

    ANY = "any"
    NEW = "new"
    FLAG = "flag"
    DEFAULT = "default"


class SeenClass(msgspec.Struct, frozen=True):
    """A class of a base, as far as it was judged: no rows for one that was not."""

    rows: tuple[Row[Rule], ...] = ()
    broken_traces: tuple[BrokenTrace, ...] = ()


@dataclass(frozen=True)
class Base:
    """The base of a comparison: its judged classes by name, and the file of every class that it has.

    `carriers` are the names of what carries a payload there and was not judged, and `changed` the files that
    are other in the source.
    """

    name: str
    classes: Mapping[str, SeenClass]
    members: Mapping[str, str] = field(default_factory=dict)
    carriers: Collection[str] = ()
    changed: Collection[str] = ()


def seen_classes(classes: Iterable[ClassVerdicts]) -> dict[str, SeenClass]:
    """Return what a comparison needs of judged classes, by name."""
    return {verdicts.model_class: SeenClass(verdicts.rows, verdicts.broken_traces) for verdicts in classes}


NewFinding = tuple[Row, str]
"""A row that is not in the base, or not as bad there, and in words what is new about it."""


@dataclass(frozen=True)
class GateResult:
    """The one value that headline, last line and exit code of an audit are made of.

    `failing` and `unjudged` are rows: findings that count, and rules that could not be judged and count.
    `base` is the name of the base, None without one. Of a comparison with it, `new` are the findings that are
    new whether they count or not, `stay` and `causes` are the numbers of causes that the base has too and
    that fail, and `mended` are the rows of the base whose rule passes now. Carriers that were not judged,
    and entries of known carriers that are outdated, fail every audit; a carrier of the base does not.
    """

    gate: Gate
    failing: tuple[Row, ...]
    unjudged: tuple[Row, ...]
    carriers: tuple[UnjudgedCarrier, ...] = ()
    outdated: tuple[str, ...] = ()
    base: str | None = None
    new: tuple[NewFinding, ...] = ()
    stay: int = 0
    causes: int = 0
    mended: tuple[Row, ...] = ()

    @property
    def holds(self) -> bool:
        """True if nothing fails."""
        return not (self.failing or self.unjudged or self.carriers or self.outdated)

    def why(self, row: Row) -> str:
        """Return what is new about a row; empty for one that is not, and without a base."""
        return next((why for new, why in self.new if new == row), "")

    def in_base(self, row: Row) -> bool | None:
        """Return whether the base has a row as bad; None without a base."""
        return None if self.base is None else not self.why(row)


def judge_gate(audited: Sequence[AuditedSource], gate: Gate, base: Base | None = None) -> GateResult:
    """Return what fails: the findings that count in `gate`, of those that are not in `base`."""
    rows = [row for source in audited for verdicts in source.subjects for row in verdicts.rows]
    carriers = [
        carrier
        for source in audited
        for carrier in source.account.unjudged
        # A reason is no excuse where the base was judged.
        if not carrier.reason or (base and base.classes.get(carrier.name, SeenClass()).rows)
    ]
    outdated = tuple(name for source in audited for name in source.account.outdated)
    if base is None:
        failing = tuple(row for row in rows if _counts(row, gate))
        unjudged = tuple(row for row in rows if row.verdict is Verdict.ERROR)
        return GateResult(gate, failing, unjudged, tuple(carriers), outdated)
    new = [finding for source in audited for finding in _new_findings(source, base)]
    changed = [row for row, _ in new]
    failing = tuple(row for row in changed if row.verdict in BROKEN and _is_reached(row, gate))
    subjects = [verdicts for source in audited for verdicts in source.subjects]
    shown = [shown_of(finding, failing) for verdicts in subjects for finding in verdicts.findings]
    return GateResult(
        gate,
        failing,
        tuple(row for row in changed if row.verdict not in BROKEN),
        tuple(carrier for carrier in carriers if carrier.name not in base.carriers),
        outdated,
        base.name,
        tuple(new),
        len({cause_of(row) for row in shown if row not in changed}),
        len({cause_of(row) for row in shown if row in failing}),
        tuple(row for source in audited for row in _mended(source, base)),
    )


def _counts(row: Row, gate: Gate) -> bool:
    """Return whether a row counts without a base."""
    if row.verdict is Verdict.ERROR:
        return False
    if row.verdict not in BROKEN:
        return gate in (Gate.ANY, Gate.FLAG) and row.verdict in UNEXPECTED
    return row.verdict is Verdict.FAIL if gate is Gate.NEW else _is_reached(row, gate)


def _is_reached(row: Row, gate: Gate) -> bool:
    kind = reach_kind(row.reach)
    return gate in (Gate.ANY, Gate.NEW) or kind in (DEFAULT, UNKNOWN) or (gate is Gate.FLAG and kind == FLAG)


def counterpart(name: str, source: AuditedSource, base: Base) -> tuple[str, bool]:
    """Return the class of the base that a class is compared with, and whether the class is derived from it.

    That is the class of the same name, the only one that is gone from a file where the class is the only new
    one, or the nearest class that it is derived from; an empty name where there is none of these.
    """
    if name in base.members or name in base.classes:
        return name, False
    member = source.members.get(name)
    gone = [old for old, there in base.members.items() if old not in source.members and there == member]
    fresh = [new for new, there in source.members.items() if new not in base.members and there == member]
    if len(gone) == len(fresh) == 1:
        return gone[0], False
    return next((above for above in source.derived_from.get(name, ()) if above in base.members), ""), True


def _new_findings(source: AuditedSource, base: Base) -> list[NewFinding]:
    judged = {verdicts.model_class: verdicts for verdicts in source.subjects}
    found: list[NewFinding] = []
    for name, verdicts in judged.items():
        other, derived = counterpart(name, source, base)
        before = base.classes.get(other, SeenClass())
        if not derived:
            worse = differences(verdicts, before).items()
            lineage = [
                judged.get(above) or base.classes.get(above, SeenClass())
                for above in source.derived_from.get(name, ())
            ]
            reasons = {
                place: why
                for place, why in worse
                if not _still_ignored(place, verdicts, before)
                and not _came_to_light(place, verdicts, before, lineage)
            }
        else:
            # A class that is new has the fault of a class above it only where it has the method from there.
            above = judged.get(other, before)
            at = {(row.regime, row.rule): row.where for row in above.rows if row.verdict in BROKEN}
            reasons = differences(verdicts, above, chances=False) | {
                (row.regime, row.rule): "not in the base: the class is new"
                for row in verdicts.rows
                if row.verdict in BROKEN and at.get((row.regime, row.rule)) != row.where
            }
        found += [(row, why) for row in verdicts.rows if (why := reasons.get((row.regime, row.rule), ""))]
        here = {(row.regime, row.rule) for row in verdicts.rows}
        found += [
            (replace(row, verdict=Verdict.ERROR, source=source.label, detail="it is not judged"), _LOST)
            for row in (() if derived else before.rows)
            if row.chances and (row.regime, row.rule) not in here
        ]
    return found


def _still_ignored(place: Place, now: ClassVerdicts, before: SeenClass) -> bool:
    """Return whether a class that gave None in the base gives zeros now: it still ignores its images."""
    regime, rule = place
    old = _row_of((regime, Rule.STRUCTURE), before)
    row = _row_of(place, now)
    if (
        rule is not Rule.BOUNDARY
        or row is None
        or row.verdict not in BROKEN
        or not old
        or not _gives(regime, now, before)
    ):
        return False
    known = {broken.trace for broken in _traces(before, old)}
    zeros = all(trace.shape == FaultKind.ZEROS and trace.trace in known for trace in _traces(now, row))
    return zeros and _reach_rank(row) >= _reach_rank(old)


def _came_to_light(
    place: Place, now: ClassVerdicts, before: SeenClass, above: Sequence[ClassVerdicts | SeenClass]
) -> bool:
    """Return whether a fault of a class above shows in a class that gave no payload in the base.

    It is from the same lines, and no easier to come to than in the class above.
    """
    row = _row_of(place, now)
    if row is None or row.verdict not in BROKEN or not _gives(place[0], now, before):
        return False
    return any(
        other.verdict in BROKEN and other.where == row.where and _reach_rank(row) >= _reach_rank(other)
        for verdicts in above
        if (other := _row_of(place, verdicts))
    )


def _reach_rank(row: Row) -> int:
    """Return the rank of a row's reach: the lower, the more easily an engine comes to it."""
    return REACHES.index(reach_kind(row.reach))


def gives_payload(now: ClassVerdicts, before: SeenClass | None) -> bool:
    """Return whether a class gives its payload now, and did not in the base, in any regime."""
    return before is not None and any(_gives(regime, now, before) for regime in Regime)


def _gives(regime: Regime, now: ClassVerdicts, before: SeenClass) -> bool:
    """Return whether a class gives all levels of its payload now, and did not in the base."""
    was, row = (_row_of((regime, Rule.STRUCTURE), verdicts) for verdicts in (before, now))
    return bool(was and row and was.verdict in BROKEN and row.verdict in KEPT)


def _row_of(place: Place, of: ClassVerdicts | SeenClass) -> Row | None:
    """Return the row of a rule in one regime; None where it was not judged."""
    return next((row for row in of.rows if (row.regime, row.rule) == place), None)


_LOST = "not judged, and judged in the base"


def _mended(source: AuditedSource, base: Base) -> list[Row]:
    mended = []
    for verdicts in source.subjects:
        name, derived = counterpart(verdicts.model_class, source, base)
        kept = {(row.regime, row.rule) for row in verdicts.rows if row.verdict in KEPT}
        if not derived and name in base.classes:
            rows = base.classes[name].rows
            mended += [row for row in rows if row.verdict in BROKEN and (row.regime, row.rule) in kept]
    return mended


def differences(
    now: ClassVerdicts | SeenClass, before: ClassVerdicts | SeenClass, *, chances: bool = True
) -> dict[Place, str]:
    """Return the rules that are worse than before, by regime and rule, each with what is worse.

    Without `chances` rules that pass are not compared.
    """
    old = {(row.regime, row.rule): row for row in before.rows}
    found = {
        (row.regime, row.rule): _difference(row, now, old.get((row.regime, row.rule)), before)
        for row in now.rows
        if row.verdict in BROKEN or row.verdict is Verdict.ERROR
    }
    if chances:
        found |= _fewer_chances(now, before)
    return {place: why for place, why in found.items() if why}


_EFFECTS = (None, Effect.COST, Effect.PADDING, Effect.OUTPUT, Effect.CRASH)
"""What users notice, the worst last."""


def _difference(
    row: Row, now: ClassVerdicts | SeenClass, old: Row | None, before: ClassVerdicts | SeenClass
) -> str:
    if row.verdict is Verdict.ERROR:
        if not before.rows:
            return "not judged"
        return "" if old is not None and old.verdict is Verdict.ERROR else _LOST
    if old is None or old.verdict not in BROKEN:
        return "not in the base"
    if _reach_rank(row) < _reach_rank(old):
        return f"reach {row.reach}, in the base {old.reach}"
    if other := _settings(row) - _settings(old):
        return f"another setting leads there: {' or '.join(sorted(other))}"
    return _worse_traces(_traces(now, row), _traces(before, old), before.broken_traces)


def _settings(row: Row) -> set[str]:
    return set((row.reach or "").removeprefix(FLAG).split(" or ")) if reach_kind(row.reach) == FLAG else set()


def _traces(of: ClassVerdicts | SeenClass, row: Row) -> list[BrokenTrace]:
    """Return the traces that break the rule of a row; the row's own one where the rest are not known."""
    place = (row.regime, row.rule)
    found = [broken for broken in of.broken_traces if (broken.regime, broken.rule) == place]
    steps = () if row.step is None else (row.step,)
    own = BrokenTrace(row.regime, row.rule, row.trace, row.value, row.shape, row.effect, steps)
    return found or [own]


def _worse_traces(
    now: Sequence[BrokenTrace], before: Sequence[BrokenTrace], others: Sequence[BrokenTrace]
) -> str:
    """Return what is worse in the traces that break one rule; empty for nothing.

    A trace that another rule of the base broke no later, and as badly, shows nothing new of a known rule.
    """
    known: dict[str, list[BrokenTrace]] = {}
    for old in before:
        known.setdefault(old.trace, []).append(old)
    for broken in now:
        if broken.trace not in known:
            step, effect = min(broken.steps, default=0), _EFFECTS.index(broken.effect)
            # Where a graph reads freed storage (R6), the rows of the steps after that were not judged.
            if any(
                (other.trace, other.regime) == (broken.trace, broken.regime)
                and bool(other.steps)
                and min(other.steps) <= step
                and (other.rule is Rule.ADDRESS or _EFFECTS.index(other.effect) >= effect)
                for other in others
            ):
                continue
            return f"also broken on '{broken.trace}'"
        reasons = [_worse(broken, old) for old in known[broken.trace]]
        if all(reasons):
            return f"on '{broken.trace}' {reasons[0]}"
    return ""


_ABOUT = 1.01
"""Factor up to which two distances are equal: an output is summed in another order after a refactoring.

A distance that grows by less is not reported as new; it still breaks its rule.
"""


def _worse(now: BrokenTrace, before: BrokenTrace) -> str:
    """Return what is worse on one trace; empty for nothing."""
    if _EFFECTS.index(now.effect) > _EFFECTS.index(before.effect):
        return f"users notice {now.effect}, in the base {before.effect or 'nothing'}"
    if now.rows or before.rows:
        return (
            f"{len(now.rows)} rows are wrong, in the base {len(before.rows)}"
            if now.rows - before.rows
            else ""
        )
    if now.shape != before.shape:
        return f"the fault is '{now.shape}', in the base '{before.shape}'"
    if set(now.steps) - set(before.steps):
        return "other steps are wrong"
    if (now.value or 0) > (before.value or 0) * _ABOUT:
        return f"the figure is {now.value:g}, in the base {before.value or 0:g}"
    return ""


def _fewer_chances(now: ClassVerdicts | SeenClass, before: ClassVerdicts | SeenClass) -> dict[Place, str]:
    """Return the rules that pass, or are not tested, and were put to the test more often before.

    A class with more room comes less often to its capacity: its steps test R2 in place of R4.  A trace that
    breaks a rule counts as a chance of it even where no call was one.
    """
    found = dict[Place, str]()
    for old in before.rows:
        place = (old.regime, old.rule)
        row = _row_of(place, now)
        if row is None or old.verdict not in KEPT | BROKEN or row.verdict in BROKEN | {Verdict.ERROR}:
            continue
        was, tested = old.chances or 0, row.chances or 0
        if old.verdict in BROKEN:
            was -= len(_traces(before, old))
        if old.rule is Rule.CAPACITY:
            at_boundary = (old.regime, Rule.BOUNDARY)
            rows = (_row_of(at_boundary, verdicts) for verdicts in (now, before))
            calls, calls_before = ((row.chances or 0) if row else 0 for row in rows)
            was = 0 if calls >= calls_before else was
        if tested < was:
            found[place] = f"tested {tested} times, in the base {was} times"
    return found
