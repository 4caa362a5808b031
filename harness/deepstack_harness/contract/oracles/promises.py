"""Judge a region that was run over steps: the promises I1..I5, only from the facts.

Every call begins from the state that the uncompiled code left, so that each call is judged independently, and
breaks at most one of I1, I2 and I4. A difference of the output breaks I2 where the cause is the layout of an
input, and I1 otherwise; a difference of what the region writes (arguments, attributes, buffers) breaks I4
where the output is right, and where no input explains why it is wrong. A compiler that raises instead of
using a graph refuses, which I1 allows, and which is reported; another exception that the uncompiled code does
not raise is a wrong output.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from deepstack_harness.contract.arm import ArmSpec, ShapePolicy
from deepstack_harness.contract.facts import System
from deepstack_harness.contract.observation import NOT_FINITE, DroppedGuard
from deepstack_harness.contract.rules import Promise
from deepstack_harness.contract.steps import (
    LAYOUT,
    ChangedInput,
    Difference,
    SteppedArm,
    SteppedCall,
    SteppedRegion,
)
from deepstack_harness.contract.verdicts import Effect, Row, Verdict
from deepstack_harness.text import number, plural, shortened

_LONGEST = 60
"""Characters of a guard's text; those of tensors are long."""
_MOST_CAUSES = 3
"""Inputs that are named where no single one explains a wrong output; the verdict does not depend on it."""


@dataclass(frozen=True)
class JudgedSteps:
    """A region over its steps, judged promise by promise and arm by arm."""

    region: SteppedRegion
    rows: tuple[Row[Promise], ...]

    @property
    def broken(self) -> list[Row[Promise]]:
        """Promises that are broken."""
        return [row for row in self.rows if row.verdict is Verdict.FAIL]

    def first_call(self, row: Row[Promise]) -> SteppedCall:
        """Return the first call that broke the promise of a broken row."""
        calls = (call for arm in self.region.arms if arm.arm == row.arm for call in arm.calls)
        return next(call for call in calls if call.step == row.step)

    def sentences(self, row: Row[Promise]) -> list[str]:
        """Return what was wrong first with a broken promise, and why, a sentence each."""
        return list(_sentences(row.rule, self.first_call(row)))

    @property
    def unjudged(self) -> list[str]:
        """Sentences about what could not be judged."""
        restless = [self.region.restless] if self.region.restless else []
        whys = [(arm.arm, arm.unjudged or arm.stopped) for arm in self.region.arms]
        arms = [f"{arm}: {why}" for arm, why in whys if why]
        warm = [
            f"{arm.arm}: {next(_sentences(Promise.SPECIALISATION, call))}, in the warm-up: no later change "
            "of an input is the cause"
            for arm in self.region.arms
            if (call := _differs_warm(arm))
        ]
        return [*restless, *arms, *warm]

    @property
    def good(self) -> bool:
        """Return whether something was put to the test, and nothing is broken or could not be judged."""
        tested = any(row.verdict is Verdict.PASS for row in self.rows)
        return tested and not self.broken and not self.unjudged

    def __str__(self) -> str:
        """Return the findings for people: what is broken first, then what was tested."""
        return "\n".join(report_lines(self))


def judge_steps(region: SteppedRegion) -> JudgedSteps:
    """Judge all promises under all arms; the rows have the name of the region as their case."""
    rows = [
        _row(region, arm, promise, wrong, chances)
        for arm in region.arms
        if not arm.unjudged
        for promise, wrong, chances in _judge_arm(arm)
    ]
    return JudgedSteps(region, tuple(rows))


def _judge_arm(arm: SteppedArm) -> Iterator[tuple[Promise, Sequence[SteppedCall], int]]:
    """Yield each promise with the calls that break it, and the number of its chances."""
    wrong: dict[Promise, list[SteppedCall]] = {
        Promise.SPECIALISATION: [],
        Promise.LAYOUT: [],
        Promise.EFFECTS: [],
    }
    differs_warm = _differs_warm(arm)
    for call in arm.calls:
        # What differs before anything changed differs later too, and no input is to blame.
        counts = not call.warm_up and (not differs_warm or _is_explained(call))
        promise = _broken_by(call)
        if promise is not None and (counts or promise is Promise.EFFECTS):
            wrong[promise].append(call)
    others, by_layout, effects = wrong.values()
    served = [call for call in arm.calls if not (call.warm_up or (call.raised and call.wanted))]
    deciding = [
        changed
        for call in served
        for changed in call.changed
        if changed.aspect not in LAYOUT and _matters(changed)
    ]
    layouts = [changed for call in served for changed in call.changed if changed.aspect in LAYOUT]
    yield Promise.SPECIALISATION, others, len(deciding) or len(others)
    yield Promise.LAYOUT, by_layout, len(layouts) or len(by_layout)
    poisoned = [call for call in arm.calls if call.poisoned is not None]
    yield Promise.NEUTRAL_ROWS, [call for call in poisoned if call.poisoned], len(poisoned)
    written = sum(call.effects for call in arm.calls if not call.raised)
    yield Promise.EFFECTS, effects, written or len(effects)
    split = [call for call in arm.calls if call.split is not None]
    yield Promise.OWNERSHIP, [call for call in split if call.split], len(split)


def _differs_warm(arm: SteppedArm) -> SteppedCall | None:
    """Return the first call of the warm-up with another output: then no later change can be to blame.

    Where the arm itself assumes something of the sizes, the first compile takes another branch than the code
    does: the sizes are to blame, in the warm-up and later, and None is returned.
    """
    if ArmSpec.parse(arm.arm).shapes in (ShapePolicy.MARK_UNBACKED, ShapePolicy.BACKED_SIZE_OBLIVIOUS):
        return None
    wrong = (Promise.SPECIALISATION, Promise.LAYOUT)
    return next((call for call in arm.calls if call.warm_up and _broken_by(call) in wrong), None)


def _broken_by(call: SteppedCall) -> Promise | None:
    """Return which of I1, I2 and I4 a call breaks."""
    one_raises = bool(call.wanted) != bool(call.raised) and not call.refused
    is_wrong = _difference(call, answer=True) is not None or one_raises
    if _difference(call, answer=False) is not None and not (is_wrong and _is_explained(call)):
        return Promise.EFFECTS
    if not is_wrong:
        return None
    cause = _cause(call)
    by_layout = isinstance(cause, ChangedInput) and cause.aspect in LAYOUT
    if isinstance(cause, DroppedGuard):
        by_layout = any(changed.name == cause.name and changed.aspect in LAYOUT for changed in call.changed)
    return Promise.LAYOUT if by_layout else Promise.SPECIALISATION


def _is_explained(call: SteppedCall) -> bool:
    """Return whether a dropped guard or an input explains a wrong output; other numbers need a proof."""
    cause = _cause(call)
    return cause is not None and (
        not isinstance(cause, ChangedInput) or cause.aspect != "data" or cause.remains == 0
    )


def _matters(changed: ChangedInput) -> bool:
    """Return whether an input could show a fault: one that was measured to change nothing could not."""
    if changed.influence is None:
        return changed.aspect != "identity"
    return changed.influence > 0


def _difference(call: SteppedCall, *, answer: bool) -> Difference | None:
    """Return the first difference of the output of a call, or of what the region writes."""
    return next((difference for difference in call.differences if difference.is_answer == answer), None)


def _cause(call: SteppedCall) -> ChangedInput | DroppedGuard | None:
    """Return what explains a wrong step best.

    An input without whose change the uncompiled code returns the region's output comes first, then a dropped
    guard that decides and failed, then any input that changed.
    """
    explained = [changed for changed in call.changed if changed.explains]
    if len(explained) == 1 or (explained and not call.guards):
        return explained[0]
    deciding = [guard for guard in call.guards if guard.decides]
    for guard in deciding:
        named = [changed for changed in call.changed if _same(changed.name, guard.name)]
        if named:
            return named[0]
    if explained:
        return explained[0]
    if deciding:
        return deciding[0]
    return next((changed for changed in call.changed if _matters(changed)), None)


def _same(name: str, source: str) -> bool:
    root = source.partition("[")[0].split("(")[-1]
    return name == source or name.partition(" (")[0] in source or name.startswith(root)


def _row(
    region: SteppedRegion, arm: SteppedArm, promise: Promise, wrong: Sequence[SteppedCall], chances: int
) -> Row[Promise]:
    """Return the row of a promise under an arm; the first call that broke it gives the figures."""
    row = Row(
        system=System.STEPS, revision=region.name, case=region.name, torch=region.torch, device="",
        rule=promise, verdict=Verdict.PASS if chances else Verdict.SKIP, chances=chances,
        **ArmSpec.parse(arm.arm).columns,
    )  # fmt: skip
    if not wrong:
        return row
    call = wrong[0]
    difference = _difference(call, answer=promise is not Promise.EFFECTS)
    effect = None  # only what the region writes is wrong
    if call.split_raised or (call.raised and not call.wanted):
        effect = Effect.CRASH
    elif (difference is not None and difference.is_answer) or promise in _ON_REQUEST:
        effect = Effect.OUTPUT
    value = {Promise.NEUTRAL_ROWS: call.poisoned, Promise.OWNERSHIP: call.split}.get(
        promise, difference.distance if difference else None
    )
    return replace(
        row, verdict=Verdict.FAIL, chances=max(chances, 1), value=value,
        limit=difference.limit if difference else call.limit, effect=effect,
        detail="; ".join(_sentences(promise, call)), step=call.step,
        steps=tuple(other.step for other in wrong),
        inputs=(*call.neutral, *(changed.name for changed in call.changed)),
        guards=tuple(guard.rule for guard in call.guards),
        influence=max((i for changed in call.changed if (i := changed.influence) is not None), default=None),
    )  # fmt: skip


def _sentences(promise: Promise, call: SteppedCall) -> Iterator[str]:
    if promise is Promise.NEUTRAL_ROWS:
        of = f" of {', '.join(f'`{name}`' for name in call.neutral)}" if call.neutral else ""
        by = _figure(call.poisoned)
        yield f"step {call.step}: neutral rows{of} with other values change the answer by {by}"
        return
    if promise is Promise.OWNERSHIP:
        if call.split_raised:
            yield f"step {call.step}: a part of it ends with {call.split_raised}, and the whole returns"
            return
        by = _figure(call.split)
        yield f"step {call.step}: the outputs of its parts differ from that of the whole by {by}"
        return
    difference = _difference(call, answer=promise is not Promise.EFFECTS)
    if difference is None:
        ended = (
            f"it ends with {call.raised}, and the uncompiled code returns"
            if call.raised
            else f"it returns, and the uncompiled code ends with {call.wanted}"
        )
        yield f"step {call.step}: {ended}"
    else:
        by = f"is {difference.what}" if difference.distance is None else (
            f"differs from the uncompiled code by {_figure(difference.distance)} "
            f"(allowed: {number(difference.limit, 2)})"
        )  # fmt: skip
        yield f"step {call.step}: {difference.place} {by}"
    left = _difference(call, answer=False)
    if left is not None and left is not difference:
        by = left.what if left.distance is None else f"it differs by {_figure(left.distance)}"
        yield f"{left.place} is wrong after it, too: {by}"
    cause = _cause(call)
    if isinstance(cause, ChangedInput):
        guarded = any(guard.decides and _same(cause.name, guard.name) for guard in call.guards)
        others = () if cause.explains or guarded else (other for other in call.changed if other.influence)
        yield from map(str, islice(dict.fromkeys([cause, *others]), _MOST_CAUSES))
        if cause.explains:
            before = f"`{cause.other}` and `{cause.name}`" if cause.other else f"`{cause.name}`"
            yield f"the answer equals that of the uncompiled code with {before} as in the warm-up"
    guards = [guard for guard in call.guards if guard.decides]
    if guards:
        guard = guards[0]
        if not isinstance(cause, ChangedInput):
            yield f"`{guard.name}` was {guard.then} when compiled and is {guard.now} now"
        yield (f"the dropped guard {shortened(guard.rule, _LONGEST)} ({guard.where or 'no line'}) fails")
    elif call.replayed:
        yield "a replay reads what was captured, whatever the caller passes"


def _figure(value: float | None) -> str:
    if value is None:
        return "something else"
    return "NaN, infinity or another shape" if value >= NOT_FINITE else number(value)


def by_cause(judged: JudgedSteps) -> list[list[Row[Promise]]]:
    """Return broken rows of several arms together that name one promise, one step and one input."""
    groups: dict[tuple[object, ...], list[Row[Promise]]] = {}
    for row in judged.broken:
        call = judged.first_call(row)
        cause, difference = _cause(call), _difference(call, answer=row.rule is not Promise.EFFECTS)
        name = cause.name if cause is not None else difference and difference.place
        groups.setdefault((row.rule, row.step, name), []).append(row)
    return list(groups.values())


_ON_REQUEST = frozenset({Promise.NEUTRAL_ROWS, Promise.OWNERSHIP})
"""Promises that need words of the caller: which rows are neutral, and what the parts of a call are."""


def report_lines(judged: JudgedSteps) -> Iterable[str]:
    """Yield what was found, what could not be judged, and what was tested, a line each."""
    for same in by_cause(judged):
        first, arms = same[0], ", ".join(row.arm for row in same)
        more = f" (and {plural(len(first.steps) - 1, 'later step')})" if len(first.steps) > 1 else ""
        yield f"{first.rule} {first.rule.word} broken under {arms}{more}"
        yield from (f"  {sentence}" for sentence in judged.sentences(first))
    for sentence in judged.unjudged:
        yield f"not judged: {sentence}"
    for arm in judged.region.arms:
        refused = [call for call in arm.calls if call.refused]
        if refused:
            yield f"{arm.arm}: step {refused[0].step} refuses with {refused[0].raised}"
    yield from dict.fromkeys(
        f"step {call.step} cannot show whether `{changed.name}` is read: it changes nothing there"
        for arm in judged.region.arms
        for call in arm.calls
        for changed in call.changed
        if changed.influence == 0 and changed.aspect not in ("data", "requires_grad", "identity")
    )
    raises = dict.fromkeys(
        f"step {call.step} ends with {call.wanted}, compiled or not: nothing of it was compared"
        for arm in judged.region.arms
        for call in arm.calls
        if call.raised and call.wanted
    )
    yield from raises
    if not judged.unjudged and all(row.verdict is Verdict.SKIP for row in judged.rows):
        yield (
            "nothing was put to the test: no input of a later step "
            f"{'that returns ' if raises else ''}differs from the warm-up, and nothing is written"
        )
    for arm in judged.region.arms:
        if arm.unjudged:
            continue
        rows = [row for row in judged.rows if row.arm == arm.arm]
        words = [f"{plural(len(arm.calls), 'call')}, {plural(arm.graphs, 'graph')}"]
        words += [
            f"{row.rule} {row.verdict.word}" + (f" ({plural(row.chances, 'chance')})" if row.chances else "")
            for row in rows
            if row.verdict is not Verdict.SKIP
        ]
        untested = [row.rule for row in rows if row.verdict is Verdict.SKIP and row.rule not in _ON_REQUEST]
        words += [f"not tested: {' '.join(untested)}"] if untested else []
        yield f"{arm.arm}: {'; '.join(words)}"
