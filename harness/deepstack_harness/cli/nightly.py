"""`nightly`: a tier of stages, one after the other, and a report whatever happens.

The tier `full` is everything on every device; the tier `gpu` is what only a GPU can show.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from deepstack_harness.cli.arguments import add_sources, resumable
from deepstack_harness.contract.case import check_device
from deepstack_harness.document.blocks import Column, Document, Line, outcome, table_line
from deepstack_harness.errors import ExitCode, MachineError, UsageError
from deepstack_harness.options import add_options, record_of
from deepstack_harness.runs.night_stages import NightRequest, NightTier, default_workers

if TYPE_CHECKING:
    from deepstack_harness.runs.nights import EndedStage, Stage


_COLUMNS = (Column(width=11), Column(width=9), Column(width=7, right=True), Column())
_STYLES = {"held": "green", "not run": "yellow", "rehearsed": "yellow", "left out": "yellow"}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the tier, folders, devices, sources and limits."""
    add_options(parser, NightRequest, "tier", "rehearse")
    parser.add_argument(
        "--history",
        default="reports/nightly",
        metavar="DIR",
        help="folder of all nights (default reports/nightly)",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="this night's folder (default: a new one in the history)"
    )
    add_options(parser, NightRequest, "devices", "minutes", "fuzz_minutes", "workers")
    add_sources(parser, "a source to audit")
    parser.add_argument(
        "--stage", action="append", default=[], metavar="NAME",
        help="run only this stage of those that --list prints; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--list", action="store_true", dest="lists",
        help="print the stages of this night, and which of them lack a package, and run nothing",
    )  # fmt: skip
    add_options(parser, NightRequest, "resume")


def run(args: Namespace) -> Document[ExitCode]:
    """Exit 0 when all stages held, 1 when one was broken, 3 when the machine could not, 4 when one failed.

    Stages that were rehearsed, or left out for a second GPU, change nothing: they are reported.
    """
    from deepstack_harness.runs.night_stages import has_selftests, stages
    from deepstack_harness.runs.nights import NightlyRun, exit_code, gpu_fault

    if not has_selftests():
        yield Line(
            "the tests of the harness itself are in its checkout only: this night runs the product's cases"
        )
    request = _request(args)
    planned = stages(request, args.stage)
    if args.lists:
        return (yield from _list(planned))
    yield from _check_installed(request, planned)
    earlier = _earlier(request, planned)
    order = [stage.name for stage in stages(request)]
    seconds = None if args.minutes is None else args.minutes * 60
    night = NightlyRun(request.folder, gpu_fault, seconds=seconds)
    left = [stage for stage in planned if stage.name not in earlier]
    ended, lost = [], ""
    for stage in earlier.values():
        yield Line(f"{stage.in_short} before: not run again", "dim")
    with resumable(args, request.folder, "to go on"):
        for stage in night.run(left):
            ended.append(stage)
            why = stage.detail.splitlines()[-1] if stage.detail else ""
            style = _STYLES.get(stage.outcome, "red")
            yield table_line(_COLUMNS, [stage.stage, stage.outcome, f"{stage.seconds:.0f} s", why], style)
            yield stage
            # The report, the last stage, shows the others.
            lost = _write_summary(request.folder, _in_order(order, earlier, ended))
    ended = _in_order(order, earlier, ended)
    if lost:
        yield Line(f"{lost}; only the lines above remain", "red")
    code = exit_code(ended)
    others = ", ".join(stage.in_short for stage in ended if not stage.held)
    held = f"{sum(stage.held for stage in ended)} of {len(ended)} stages held"
    yield outcome(f"{request.folder}: {held}{f'; {others}' if others else ''}", good=code is ExitCode.HOLDS)
    return code


def _list(planned: Sequence[Stage]) -> Document[ExitCode]:
    """Print each stage with what it is about, and what is missing."""
    from deepstack_harness.runs.nights import not_installed

    for stage in planned:
        style = "yellow" if stage.missing else ""
        about = f"{stage.about}; {not_installed(stage.missing)}" if stage.missing else stage.about
        yield table_line([Column(width=11), Column()], [stage.name, about], style)
        yield {"stage": stage.name, "about": stage.about, "missing": stage.missing}
    return ExitCode.HOLDS


def _earlier(request: NightRequest, planned: Sequence[Stage]) -> dict[str, EndedStage]:
    """Return the stages that are not run again, of a night that was ended; a new night has none.

    Those came to their end, or are not planned now.  Makes the folder of a new night.  Raises `UsageError`
    for a new night in a folder that holds anything, and for one to continue in a folder without a night.
    """
    from deepstack_harness.runs.nights import read_summary

    if not request.resume:
        _make_folder(request.folder)
        return {}
    begun = ("nightly.json", *(f"{stage.name}.log" for stage in planned))
    if not any((request.folder / name).exists() for name in begun):
        raise UsageError(f"'{request.folder}' holds no night to continue: leave --resume out to begin one")
    last = {stage.name: stage.last for stage in planned}
    return {
        ended.stage: ended
        for ended in read_summary(request.folder)
        if ended.stage not in last or (ended.judged and not last[ended.stage])
    }


def _in_order(
    order: Sequence[str], earlier: Mapping[str, EndedStage], ended: Sequence[EndedStage]
) -> list[EndedStage]:
    """Return the stages that ended before and now, in the order of the night, the look at the GPU first."""
    both = {**earlier, **{now.stage: now for now in ended}}
    return sorted(both.values(), key=lambda each: order.index(each.stage) if each.stage in order else -1)


def _check_installed(request: NightRequest, planned: Sequence[Stage]) -> Document:
    """Print which stages cannot run for want of a package; raise `MachineError` where a night needs it.

    A GPU's machine may have no index to install from: what can run there runs.
    """
    from deepstack_harness.runs.nights import not_installed

    for stage in planned:
        if stage.missing and not stage.optional and request.tier is NightTier.FULL:
            raise MachineError(
                f"{not_installed(stage.missing)} (in a checkout: '.[{','.join(stage.missing)}]'), or name "
                f"stages other than {stage.name} with --stage"
            )
    for stage in planned:
        if stage.missing:
            yield Line(f"{stage.name} will not run: {not_installed(stage.missing)}", "yellow")


def _request(args: Namespace) -> NightRequest:
    """Return what was chosen; raises `UsageError` for what does not go together, `MachineError` as below.

    The tier gpu is refused on a machine without a GPU, before anything is written.
    """
    for name, minutes in (("--minutes", args.minutes), ("--fuzz-minutes", args.fuzz_minutes)):
        if minutes is not None and minutes <= 0:
            raise UsageError(f"{name} {minutes:g} must be above 0")
    if args.workers is not None and args.workers < 1:
        raise UsageError(f"-n {args.workers} must be above 0")
    by_gpu = args.tier == NightTier.GPU
    devices = args.devices or (["cuda"] if by_gpu else ["cpu"])
    for device in devices:
        check_device(device)
    if by_gpu:
        _check_gpu_tier(args, devices)
    elif args.rehearse:
        raise UsageError("--rehearse is for --tier gpu: every other stage runs on the CPU anyway")
    if args.resume and not args.out:
        raise UsageError("--resume continues the night in a folder: name it with --out DIR")
    history = Path(args.history).resolve()
    folder = Path(args.out).resolve() if args.out else history / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}"
    workers = default_workers(NightTier.GPU if by_gpu else NightTier.FULL)
    return record_of(
        NightRequest, args, folder=folder, history=history, devices=devices, sources=args.source,
        workers=args.workers or workers,
    )  # fmt: skip


def _check_gpu_tier(args: Namespace, devices: Sequence[str]) -> None:
    """Refuse other devices and sources, and a machine without a GPU unless it is a rehearsal."""
    from deepstack_harness.runs.machine import visible_gpus

    if list(devices) != ["cuda"]:
        raise UsageError(
            f"--tier gpu takes --device cuda, not {', '.join(devices)}; CUDA_VISIBLE_DEVICES chooses a GPU"
        )
    if args.source:
        raise UsageError("--tier gpu audits no source: leave --source out")
    if args.rehearse:
        return
    try:
        visible_gpus()
    except MachineError as error:
        why = str(error).removesuffix("; use --device cpu")
        raise MachineError(f"{why}; 'nightly --tier gpu --rehearse' tries its stages without one") from None


def _make_folder(folder: Path) -> None:
    """Make the folder; raise `UsageError` for one that holds anything: nothing is overwritten."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        full = any(folder.iterdir())
    except OSError as error:
        raise MachineError(f"cannot write to '{folder}': {error.strerror}") from None
    if full:
        raise UsageError(f"'{folder}' is not empty: choose another --out folder")


def _write_summary(folder: Path, ended: list[EndedStage]) -> str:
    """Write the summary; return why it could not be written, empty where it was."""
    from deepstack_harness.runs.nights import write_summary

    try:
        write_summary(folder, ended)
    except OSError as error:
        return f"cannot write '{folder / 'nightly.json'}': {error.strerror}"
    return ""
