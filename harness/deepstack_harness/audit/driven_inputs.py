"""Inputs at risk, driven: what was measured of each in a worker, and the verdict that follows.

A `forward` runs over stand-ins for its parts, uncompiled, with guards kept, and with guards dropped as vLLM
drops them.  *Broken* names the promise; *kept* needs an input whose effect on the uncompiled answer was
shown; an input that cannot be driven, or showed no effect, is *unknown*.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from deepstack_harness.audit.driven_forward import CallerCut, RegionCut, cut_caller, cut_region
from deepstack_harness.audit.inputs.rows import InputChange, InputKind, InputSeen, InputStanding, Place
from deepstack_harness.contract.observation import DroppedGuard
from deepstack_harness.contract.oracles.promises import JudgedSteps, judge_steps
from deepstack_harness.contract.rules import Promise
from deepstack_harness.contract.steps import SteppedRegion
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.engines.carriers import FORWARD
from deepstack_harness.engines.known import engine_of, open_source
from deepstack_harness.errors import Reason, UsageError, reason_of
from deepstack_harness.sources.source import Source, inside_package
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import RaisedInWorker, WorkerEnd
from deepstack_harness.workers.profiles import COMPILE, COMPILE_LIMITS
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.worker import Worker


class Driven(StrEnum):
    """What driving an input showed.

    BROKEN: a promise.  KEPT: none, and the input changes the answer.  UNREAD: no line of the `forward`
    reads it. UNKNOWN: it could not be driven, or no value that was tried changes the answer.
    """

    BROKEN = "broken"
    KEPT = "kept"
    UNREAD = "not read"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class DrivenInput:
    """An input to be driven: the class of its region, the file of the class, and what changes.

    The warm-up is without it, or with it where it is `given_first`.  An `attribute` is one of the
    region's class, or of the class `read_by`, which the region calls; a `field_of_step` is one of the
    object that carries a step. `moves` is True for a tensor that another one replaces, `lost` for an
    argument that a later pipeline stage is not given, and `captured` for a region that is not compiled,
    but captured and replayed.  `callers` are the places in a `forward` that give an argument.
    """

    model_class: str
    member: str
    name: str
    attribute: bool = False
    field_of_step: bool = False
    given_first: bool = False
    moves: bool = False
    lost: bool = False
    captured: bool = False
    read_by: str = ""
    assumed: bool = False
    callers: tuple[Place, ...] = ()


def to_drive(row: InputStanding, *, captured: bool = False) -> DrivenInput:
    """Return what has to be driven of an input at risk; `captured` for a region that an engine replays.

    Where nothing says what the warm-up sees, it is without the input.
    """
    return DrivenInput(
        row.model_class, row.member, row.input.removeprefix("self."),
        attribute=row.kind is InputKind.ATTRIBUTE,
        field_of_step=row.kind is InputKind.FIELD,
        given_first=row.warm_up is InputSeen.GIVEN and row.change is InputChange.PRESENCE,
        moves=row.change is InputChange.STORAGE,
        lost=row.change is InputChange.LOST,
        captured=captured,
        assumed=row.warm_up is InputSeen.UNKNOWN,
        read_by=row.read_by if row.kind is InputKind.ATTRIBUTE else "",
        callers=tuple(place for place in row.writers if place.function == FORWARD)
        if row.kind is InputKind.ARGUMENT and row.change is InputChange.PRESENCE else (),
    )  # fmt: skip


@dataclass(frozen=True)
class DrivenFacts:
    """The facts of one input.

    `region` is what was measured under the arms, `mended` the same with the input given to the later
    pipeline stage too.  `value` says what a step passes, and `effect` is the largest absolute difference
    that it makes uncompiled. `read_at` is the first line that reads the input. `refusal` is the place where
    the `forward` refuses to be called without the input, and `blocked` says why there is nothing to judge.
    """

    region: SteppedRegion | None = None
    mended: SteppedRegion | None = None
    value: str = ""
    given_by: str = ""
    without_by: str = ""
    read_at: str = ""
    stood_in: tuple[str, ...] = ()
    effect: float | None = None
    refusal: Reason | None = None
    unread: bool = False
    blocked: Reason | None = None


@dataclass(frozen=True)
class DriveResult:
    """The verdict on one input; `where` is FILE:LINE of what blocks or decides it, or of the dropped guard.

    `distance` is the largest absolute difference from the uncompiled code, above `limit`, in the second of
    the `steps`; `guard` is the dropped guard that fails.  `effect` is that of `DrivenFacts`.
    """

    driven: Driven
    detail: str
    where: str = ""
    promise: Promise | None = None
    arm: str = ""
    steps: tuple[int, ...] = ()
    guard: str = ""
    distance: float | None = None
    limit: float | None = None
    effect: float | None = None


def cut_with_callers(source: Source, wanted: DrivenInput) -> tuple[RegionCut, list[CallerCut]]:
    """Cut the region of an input, and those who call it; no caller where one of them cannot be cut.

    Raises what `cut_region` raises.
    """
    region = cut_region(
        source, wanted.member, wanted.model_class, wanted.name,
        attribute=wanted.attribute, field_of_step=wanted.field_of_step, read_by=wanted.read_by,
    )  # fmt: skip
    callers = []
    for place in wanted.callers:
        with suppress(UsageError):
            callers.append(cut_caller(source, place.member, place.model_class, place.line, region))
    known = [caller for caller in callers if caller is not None and (caller.is_known or caller.whole)]
    return region, known if len(known) == len(wanted.callers) else []


MEASURE = Remote("deepstack_harness.audit.driven_work:measure_input", DrivenFacts)
_WORK_LIMITS = replace(COMPILE_LIMITS, step_s=120.0)


def drive_inputs(
    text: str, rows: Iterable[InputStanding], limits: Limits = _WORK_LIMITS
) -> Iterator[tuple[InputStanding, DriveResult]]:
    """Drive inputs of the source that `text` names, one after the other in one worker; yield each verdict.

    A class that ends its worker is unknown, and the next input gets another one.  Raises `MachineError`
    where no worker can be started, and `UsageError` for what is no source.
    """
    source = open_source(text)
    argument = engine_of(source).argument
    captured = argument is not None and isinstance(argument.replay, tuple)
    with Worker(limits, preload=MEASURE.module, sandbox=COMPILE) as worker:
        for row in rows:
            wanted = to_drive(row, captured=captured)
            try:  # this process reads every file that the worker needs
                cut_with_callers(source, wanted)
            except UsageError as error:
                yield row, _unknown(reason_of(error), row.member.partition("/")[0])
                continue
            result = worker.call(MEASURE, {"text": text, "wanted": wanted})
            if isinstance(result, WorkerEnd | RaisedInWorker):
                ended = Reason(f"its code was not judged: {result.sentence}", row.member, row.line)
                yield row, _unknown(ended)
            else:
                judged = judge_input(wanted, result.value)
                yield row, replace(judged, where=judged.where or row.where)


def _in_package(region: SteppedRegion, wanted: DrivenInput, read_at: str) -> SteppedRegion:
    """Return facts whose guards have places of the package: `read_at` for a guard of a stand-in."""
    folder = wanted.member.partition("/")[0]

    def placed(guard: DroppedGuard) -> DroppedGuard:
        where = inside_package(guard.where, folder)
        return replace(guard, where=where if where.startswith(f"{folder}/") else read_at)

    arms = [
        replace(arm, calls=tuple(replace(call, guards=tuple(map(placed, call.guards))) for call in arm.calls))
        for arm in region.arms
    ]
    return replace(region, arms=tuple(arms))


def judge_input(wanted: DrivenInput, measured: DrivenFacts) -> DriveResult:
    """Return the verdict on what was measured of one input."""
    folder = wanted.member.partition("/")[0]
    if measured.blocked is not None:
        return _unknown(measured.blocked, folder)
    if measured.unread:
        return DriveResult(Driven.UNREAD, f"forward never reads `{wanted.name}`")
    if measured.refusal is not None:
        detail = f"without `{wanted.name}` {measured.refusal.text}: a warm-up has it too"
        return DriveResult(Driven.KEPT, detail, inside_package(measured.refusal.where, folder))
    assert measured.region is not None
    judged = judge_steps(_in_package(measured.region, wanted, measured.read_at))
    if wanted.lost:
        return _judge_stages(wanted, measured, judged)
    return _judge_arms(wanted, measured, judged)


def _unknown(reason: Reason, folder: str = "") -> DriveResult:
    return DriveResult(Driven.UNKNOWN, reason.text, inside_package(reason.where, folder))


_CONTROL = "eager/stock"
"""The arm that keeps torch's own guards: what breaks there is no matter of a dropped guard."""


def _judge_arms(wanted: DrivenInput, measured: DrivenFacts, judged: JudgedSteps) -> DriveResult:
    if judged.unjudged:
        return _unknown(Reason(judged.unjudged[0]))
    wrong = [row for row in judged.broken if row.arm == _CONTROL]
    if wrong:
        return _unknown(
            Reason(f"guards that are kept do not help, so that the stand-ins do not fit: {wrong[0].detail}")
        )
    if judged.broken:
        return _broken(judged, wanted, measured)
    kept = [row for row in judged.rows if row.verdict is Verdict.PASS and row.arm != _CONTROL]
    if not kept:
        return _unknown(Reason("nothing was put to the test: no input of the step differs from the warm-up"))
    detail = f"`{wanted.name}` changes the answer by {measured.effect:.4g}, compiled as uncompiled"
    always = "; the warm-up is given one too" if measured.given_by else ""
    return DriveResult(
        Driven.KEPT,
        f"{detail} ({measured.value}){always}",
        measured.given_by,
        kept[0].rule,
        kept[0].arm,
        effect=measured.effect,
    )


def _broken(judged: JudgedSteps, wanted: DrivenInput, measured: DrivenFacts) -> DriveResult:
    row = judged.broken[0]
    guard = next((each for each in judged.first_call(row).guards if each.decides), None)
    detail = row.detail
    if measured.without_by:
        detail += f"; a profile run of its caller gives None ({measured.without_by})"
    elif wanted.assumed:
        detail += "; that the warm-up is without it was not seen"
    if measured.stood_in:
        detail += f"; a stand-in took it in the place of {', '.join(measured.stood_in)}"
    return DriveResult(
        Driven.BROKEN, detail, guard.where if guard else "", row.rule, row.arm,
        (1, row.steps[0]), guard.rule if guard else "", row.value, row.limit, measured.effect,
    )  # fmt: skip


def _judge_stages(wanted: DrivenInput, measured: DrivenFacts, judged: JudgedSteps) -> DriveResult:
    """Judge two pipeline stages against one; the control gives the input to both."""
    if judged.unjudged:
        return _unknown(Reason(judged.unjudged[0]))
    split = [row for row in judged.rows if row.rule is Promise.OWNERSHIP]
    if not split or split[0].verdict is Verdict.SKIP:
        return _unknown(Reason("two pipeline stages cannot be run one after the other over stand-ins"))
    if split[0].verdict is Verdict.PASS:
        detail = (
            f"two pipeline stages answer as one does; `{wanted.name}` changes it by {measured.effect:.4g}"
        )
        return DriveResult(Driven.KEPT, detail, "", Promise.OWNERSHIP, split[0].arm, effect=measured.effect)
    if measured.mended is None or judge_steps(measured.mended).broken:
        return _unknown(Reason(f"two stages differ from one also where both are given `{wanted.name}`"))
    detail = (
        f"a later pipeline stage runs without `{wanted.name}`: two stages are {split[0].value:.4g} from one, "
        "and agree where it is given to both"
    )
    return DriveResult(
        Driven.BROKEN, detail, "", Promise.OWNERSHIP, split[0].arm, split[0].steps[:1], "", split[0].value,
        split[0].limit, measured.effect, )  # fmt: skip
