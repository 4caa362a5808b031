"""`repro`: show a fault of the catalogue, side by side with what is right, or look for it in a vLLM."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.arm import ArmSpec
from harness.errors import ExitCode, UsageError
from harness.incidents import Incident, find
from harness.matrix import Planned, Where, arms_of, for_source, plan_custom, plan_incident
from harness.reporting.output import Output
from harness.reporting.repro_table import ReproTable
from harness.trace import Trace

if TYPE_CHECKING:
    from harness.runner.cells import Cell, Runner
    from harness.upstream.bind import BoundClass

SUMMARY = "show an incident on known-bad and known-good revisions, or judge a vLLM by it"
SOURCE_HELP = "'installed', a release such as 0.22.1, a wheel or sdist file, or a source tree"


def add_arguments(parser: ArgumentParser) -> None:
    """The incident, and what narrows or redirects it."""
    parser.add_argument("incident", help="id, short name or any reference of an incident, such as 43602")
    parser.add_argument("--vllm", metavar="SOURCE", help=f"judge this vLLM instead of our revisions: {SOURCE_HELP}")
    parser.add_argument("--trace", metavar="T", help="play this trace instead, as 'cap 16: profile 16; set 9; forward 16'")
    parser.add_argument("--arm", metavar="A", help="this arm only, see 'list arms'")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--family", metavar="F", help="this model family only, see 'list families'")
    parser.add_argument("--dtype", default="float32", metavar="D", help="float32 (default), bfloat16, float16 or float64")


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0: shown on every faulty revision, absent from every fixed one (or from the vLLM); 1: not so."""
    incident = find(args.incident)
    families = _families(incident, args.family)
    plans = [(family, _plan(incident, args, Where(family, args.dtype, args.device))) for family in families]
    held = [_family(incident, args, output, family, plan) for family, plan in plans]
    return ExitCode.HOLDS if all(held) else ExitCode.BROKEN


def _families(incident: Incident, wanted: str | None) -> Sequence[str]:
    if wanted is None:
        return incident.families
    if wanted not in incident.families:
        raise UsageError(f"incident {incident.id} has no family '{wanted}'; it has {', '.join(incident.families)}")
    return [wanted]


def _plan(incident: Incident, args: Namespace, where: Where) -> list[Planned]:
    """From the catalogue where it covers what was asked, else the user's own trace and arm."""
    revisions = incident.faulty[:1] if args.vllm else incident.revisions
    arm = ArmSpec.parse(args.arm) if args.arm else None
    if args.trace is None and (arm is None or arm in arms_of(incident)):
        plan = plan_incident(incident, where, revisions)
        return [planned for planned in plan if arm in (None, planned.case.arm) or planned.note == "control"]
    traces = [Trace.parse(args.trace)] if args.trace else [Trace.parse(incident.run[0].trace)]
    return plan_custom(where, revisions, traces, [arm] if arm else arms_of(incident))


def _family(incident: Incident, args: Namespace, output: Output, family: str, plan: list[Planned]) -> bool:
    import torch

    from harness.runner.cells import Runner

    # One thread: a tiny decoder runs 20 times slower on a busy machine with more.
    torch.set_num_threads(1)
    if args.vllm is None:
        return _ours(incident, output, Runner(), plan)
    from harness.upstream.bind import bind
    from harness.upstream.locate import locate

    bound = bind(locate(args.vllm), family)
    planned = [p if p.note == "control" else for_source(p, bound.label, bound.model_class) for p in plan]
    return _theirs(incident, output, Runner({bound.label: bound}), planned, bound)


def _ours(incident: Incident, output: Output, runner: Runner, plan: list[Planned]) -> bool:
    table = ReproTable(output, incident)
    cells = _play(runner, plan, table)
    wrong = [cell for cell in cells if not _shown(incident, cell)]
    table.diagnose(cells)
    if wrong:
        table.unexpected(wrong)
    else:
        table.shown(cells)
    return not wrong


def _shown(incident: Incident, cell: Cell) -> bool:
    """Whether a cell says what the catalogue says, or, of a user's own trace, what its revision promises."""
    if cell.planned.must_break is not None:
        return cell.as_expected
    faulty = cell.case.revision in incident.faulty
    return not cell.unjudged and faulty == bool(cell.broken & set(incident.rules))


def _theirs(incident: Incident, output: Output, runner: Runner, plan: list[Planned], bound: BoundClass) -> bool:
    table = ReproTable(output, incident)
    cells = _play(runner, plan, table)
    faulty = [cell for cell in cells if cell.broken & set(incident.rules) and cell.planned.must_break is None]
    unjudged = [cell for cell in cells if cell.unjudged]
    table.diagnose(cells)
    table.source_verdict(f"{bound.label}, {bound.model_class}", _site(bound, faulty), faulty, unjudged)
    return not faulty and not unjudged


def _site(bound: BoundClass, faulty: list[Cell]) -> str:
    """File and line of the first exception or None answer in the source."""
    for cell in faulty:
        for step, facts in zip(cell.case.trace, cell.observation.steps, strict=True):
            if facts.raised and facts.raised.call != "decoder":
                return facts.raised.where
            if facts.answer is not None and facts.answer.structure == "none":
                return bound.where_empty(cell.case.trace.capacity, step.tokens)
    return bound.filename


def _play(runner: Runner, plan: list[Planned], table: ReproTable) -> list[Cell]:
    cells = []
    for number, planned in enumerate(plan, 1):
        case = planned.case
        with table.output.progress(f"{case.revision} under {case.arm.name} ({number} of {len(plan)})"):
            cell = runner.play(planned)
        table.add(cell)
        cells.append(cell)
    return cells


