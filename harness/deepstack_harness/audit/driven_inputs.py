"""Inputs at risk: what was measured of each in a worker, and the row that follows.

A `forward` runs over stand-ins for its parts, uncompiled, with torch's guards, and with guards dropped as
vLLM drops them.  FAIL names the promise.  PASS needs an input whose influence on the uncompiled result was
shown.  SKIP: no line of the `forward` reads the input.  ERROR: it could not be run, or no value that was
tried changes the result.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from deepstack_harness.audit.inputs.rows import InputSeen, InputStanding
from deepstack_harness.audit.source_worker import IMPORT_S
from deepstack_harness.catalogue.known import seen_input
from deepstack_harness.contract.observation import DroppedGuard
from deepstack_harness.contract.oracles.promises import JudgedSteps, judge_steps
from deepstack_harness.contract.rules import Promise
from deepstack_harness.contract.steps import SteppedRegion
from deepstack_harness.contract.verdicts import Evidence, Row, Verdict
from deepstack_harness.engines.discover import ArgumentFiles
from deepstack_harness.engines.known import engine_of, open_source
from deepstack_harness.errors import Reason
from deepstack_harness.sources.request import every_python_file
from deepstack_harness.sources.source import Source, inside_package
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import RaisedInWorker, WorkerEnd
from deepstack_harness.workers.profiles import COMPILE, COMPILE_LIMITS
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.worker import Worker


@dataclass(frozen=True)
class DrivenFacts:
    """The facts of one input.

    `region` is what was measured under the arms, `mended` the same with the input given to the later
    pipeline stage too.  `value` is what a step passes, and `effect` is the largest absolute difference
    that it makes uncompiled. `read_at` is the first line that reads the input. `refusal` is the place where
    the `forward` refuses to be called without the input, and `blocked` is why there is nothing to judge.
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


SYSTEM = "inputs"
"""`system` in the rows of inputs."""


def input_row(source: Source, standing: InputStanding) -> Row[Promise]:
    """Return the row of an input whose region was not run: not tested, for the reason of its standing."""
    seen = seen_input(source.package, source.version, standing.model_class, standing.input)
    return Row(
        system=SYSTEM, engine=source.package, model_class=standing.model_class, revision=source.label,
        source=source.label, device="", rule=standing.promise, verdict=Verdict.SKIP, detail=standing.why,
        where=standing.where, evidence=seen.evidence if seen else Evidence.READ,
    )  # fmt: skip


MEASURE = Remote("deepstack_harness.audit.driven_work:measure_input", DrivenFacts)
_WORK_LIMITS = replace(COMPILE_LIMITS, step_s=IMPORT_S)


def drive_inputs(
    text: str, rows: Iterable[InputStanding], limits: Limits = _WORK_LIMITS
) -> Iterator[tuple[InputStanding, Row[Promise]]]:
    """Run the regions of inputs of the source that `text` names, one after the other; yield each verdict.

    A class that ends its worker is ERROR, and the next input gets another worker.  Raises `MachineError`
    where no worker can be started, and `UsageError` for what is no source.
    """
    source = open_source(text)
    every_python_file(source)  # the worker has no network
    payload = engine_of(source).payload
    captured = isinstance(payload, ArgumentFiles) and isinstance(payload.replay, tuple)
    with Worker(limits, preload=MEASURE.module, sandbox=COMPILE) as worker:
        for standing in rows:
            row = input_row(source, standing)
            result = worker.call(MEASURE, {"text": text, "wanted": standing, "captured": captured})
            if isinstance(result, WorkerEnd | RaisedInWorker):
                why = f"its code was not judged: {result.sentence}"
                yield standing, _unknown(row, Reason(why, standing.member, standing.line))
            else:
                judged = judge_input(row, standing, result.value)
                yield standing, replace(judged, where=judged.where or row.where)


def _in_package(region: SteppedRegion, wanted: InputStanding, read_at: str) -> SteppedRegion:
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


def judge_input(row: Row[Promise], wanted: InputStanding, measured: DrivenFacts) -> Row[Promise]:
    """Return the row of an input with the verdict on what was measured of it."""
    folder = wanted.member.partition("/")[0]
    if measured.blocked is not None:
        return _unknown(row, measured.blocked, folder)
    if measured.unread:
        return replace(row, detail=f"forward never reads `{wanted.name}`", where=None)
    if measured.refusal is not None:
        detail = f"without `{wanted.name}` {measured.refusal.text}: a warm-up has it too"
        where = inside_package(measured.refusal.where, folder)
        return replace(row, verdict=Verdict.PASS, detail=detail, where=where)
    assert measured.region is not None
    judged = judge_steps(_in_package(measured.region, wanted, measured.read_at))
    judge = _judge_stages if wanted.is_lost else _judge_arms
    return judge(row, wanted, measured, judged)


def _unknown(row: Row[Promise], reason: Reason, folder: str = "") -> Row[Promise]:
    where = inside_package(reason.where, folder)
    return replace(row, verdict=Verdict.ERROR, detail=reason.text, where=where or None)


def _measured(
    row: Row[Promise], of_steps: Row[Promise], measured: DrivenFacts, detail: str, where: str = ""
) -> Row[Promise]:
    """Return the row of an input with what the row of its steps has of the promise and the arm."""
    return replace(
        of_steps, system=row.system, engine=row.engine, model_class=row.model_class, revision=row.revision,
        source=row.source, evidence=row.evidence, case=row.case, detail=detail, where=where or None,
        influence=measured.effect,
    )  # fmt: skip


_CONTROL = "eager/stock"
"""The arm with torch's own guards: what breaks there is no matter of a dropped guard."""


def _judge_arms(
    row: Row[Promise], wanted: InputStanding, measured: DrivenFacts, judged: JudgedSteps
) -> Row[Promise]:
    if judged.unjudged:
        return _unknown(row, Reason(judged.unjudged[0]))
    wrong = [broken for broken in judged.broken if broken.arm == _CONTROL]
    if wrong:
        why = f"guards that are kept do not help, so that the stand-ins do not fit: {wrong[0].detail}"
        return _unknown(row, Reason(why))
    if judged.broken:
        return _broken(row, wanted, measured, judged)
    kept = [other for other in judged.rows if other.verdict is Verdict.PASS and other.arm != _CONTROL]
    if not kept:
        why = "nothing was put to the test: no input of the step differs from the warm-up"
        return _unknown(row, Reason(why))
    detail = f"`{wanted.name}` changes the answer by {measured.effect:.4g}, compiled as uncompiled"
    always = "; the warm-up is given one too" if measured.given_by else ""
    return _measured(row, kept[0], measured, f"{detail} ({measured.value}){always}", measured.given_by)


def _broken(
    row: Row[Promise], wanted: InputStanding, measured: DrivenFacts, judged: JudgedSteps
) -> Row[Promise]:
    broken = judged.broken[0]
    guard = next((failed for failed in judged.first_call(broken).guards if failed.decides), None)
    detail = broken.detail
    if measured.without_by:
        detail += f"; a profile run of its caller gives None ({measured.without_by})"
    elif wanted.warm_up is InputSeen.UNKNOWN:
        detail += "; that the warm-up is without it was not seen"
    if measured.stood_in:
        detail += f"; a stand-in took it in the place of {', '.join(measured.stood_in)}"
    return _measured(row, broken, measured, detail, guard.where if guard else "")


def _judge_stages(
    row: Row[Promise], wanted: InputStanding, measured: DrivenFacts, judged: JudgedSteps
) -> Row[Promise]:
    """Judge two pipeline stages against one; the control gives the input to both."""
    if judged.unjudged:
        return _unknown(row, Reason(judged.unjudged[0]))
    split = [other for other in judged.rows if other.rule is Promise.OWNERSHIP]
    if not split or split[0].verdict is Verdict.SKIP:
        return _unknown(row, Reason("two pipeline stages cannot be run one after the other over stand-ins"))
    if split[0].verdict is Verdict.PASS:
        detail = (
            f"two pipeline stages answer as one does; `{wanted.name}` changes it by {measured.effect:.4g}"
        )
        return _measured(row, split[0], measured, detail)
    if measured.mended is None or judge_steps(measured.mended).broken:
        why = f"two stages differ from one also where both are given `{wanted.name}`"
        return _unknown(row, Reason(why))
    detail = (
        f"a later pipeline stage runs without `{wanted.name}`: two stages are {split[0].value:.4g} from one, "
        "and agree where it is given to both"
    )
    return _measured(row, split[0], measured, detail)
