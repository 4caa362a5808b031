"""`repro`: show a fault of the catalogue, side by side with what is right, or look for it in a vLLM."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepstack_harness.catalogue.incidents import DEEPSTACK, Incident, find
from deepstack_harness.catalogue.matrix import Where, narrow, plan_incident, plan_source
from deepstack_harness.commands.repro_files import write_files
from deepstack_harness.commands.repro_systems import reproduce
from deepstack_harness.commands.repro_workload import evaluate_workload
from deepstack_harness.commands.source_arguments import add_source
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.engines.known import engine_of, open_source
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.reporting.terminal.output import Output
from deepstack_harness.reporting.terminal.repro_table import ReproTable

if TYPE_CHECKING:
    from deepstack_harness.auditing.family_worker import FamilyWorker
    from deepstack_harness.contract.case import Case
    from deepstack_harness.contract.observation import Observation
    from deepstack_harness.oracles.judged_case import JudgedCase
    from deepstack_harness.sources.source import Source

SUMMARY = "show an incident on known-bad and known-good revisions, or judge a vLLM by it"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the incident and the options that narrow or redirect it."""
    parser.add_argument("incident", help="id, short name or any reference of an incident, such as 43602")
    add_source(parser.add_mutually_exclusive_group(), "judge this source instead of our revisions")
    parser.add_argument(
        "--trace",
        metavar="T",
        help="play this trace instead, such as 'cap 16: profile 16; set 9; forward 16'",
    )
    parser.add_argument("--arm", metavar="A", help="use only this arm, see 'list arms'")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument(
        "--workload",
        nargs="?",
        const="",
        metavar="FILE",
        help="serve a workload instead, and report leaks and how often greedy tokens agree with eager; "
        "FILE is a Parquet file or hub dataset with Geometry3K's columns (default: a workload of ours)",
    )
    parser.add_argument(
        "--script",
        metavar="FILE",
        help="only write a standalone program that shows the fault (needs torch alone)",
    )
    parser.add_argument("--pytest", metavar="FILE", help="only write a pytest file that fails on the fault")
    parser.add_argument("--family", metavar="F", help="use only this model family, see 'list families'")
    parser.add_argument(
        "--dtype", default="float32", metavar="D", help="float32 (default), bfloat16, float16 or float64"
    )


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0: shown on every faulty revision, absent from every fixed one (or from the vLLM); 1: not so."""
    incident = find(args.incident)
    if incident.system != DEEPSTACK:
        return reproduce(incident, args, output)
    families = _families(incident, args.family)
    _refuse_mixtures(incident, args)
    if args.source:
        families = _families_of_sources(incident, families, open_source(args.source))
    if args.script or args.pytest:
        return write_files(incident, families[0], args, output)
    asked = ReproOptions(
        trace=Trace.parse(args.trace) if args.trace else None,
        arm=ArmSpec.parse(args.arm) if args.arm else None,
        source=args.source,
    )
    _prepare_torch(args)
    places = [Where(family, args.dtype, args.device) for family in families]
    held = []
    for where in places:
        if args.workload is not None:
            held.append(evaluate_workload(incident, where, args.workload or None, asked.source, output))
        elif asked.source:
            held.append(_theirs(incident, where, asked, asked.source, output))
        else:
            held.append(_ours(incident, where, asked, output))
    return ExitCode.HOLDS if all(held) else ExitCode.BROKEN


def _refuse_mixtures(incident: Incident, args: Namespace) -> None:
    """Raise `UsageError` for options that exclude each other, so that none is ignored silently."""
    if (args.script or args.pytest) and (args.source or args.trace or args.arm or args.workload is not None):
        raise UsageError(
            "--script and --pytest show the catalogue's own trace: "
            "leave --source, --trace, --arm and --workload out"
        )
    if args.workload is None:
        return
    if args.trace or args.arm:
        raise UsageError("--workload brings its own trace and arms: leave --trace and --arm out")
    if Rule.R0 not in incident.rules:
        raise UsageError(
            f"incident {incident.id} does not change outputs (rule R0): leave --workload out, it cannot show"
        )


def _prepare_torch(args: Namespace) -> None:
    """Refuse a wrong dtype or device before anything is printed, and pin torch to one thread."""
    import torch

    from deepstack_harness.devices import parse_device, parse_dtype

    parse_dtype(args.dtype), parse_device(args.device)
    # A tiny decoder runs 20 times slower on a busy machine with more threads.
    torch.set_num_threads(1)


@dataclass(frozen=True)
class ReproOptions:
    """Options that narrow the runs of an incident, or replace them."""

    trace: Trace | None
    arm: ArmSpec | None
    source: str | None


def _families(incident: Incident, wanted: str | None) -> Sequence[str]:
    if wanted is None:
        return incident.families
    if not incident.has_family(wanted):
        raise UsageError(
            f"incident {incident.id} has no family '{wanted}'; it has {', '.join(incident.families)}"
        )
    return [wanted]


def _families_of_sources(incident: Incident, families: Sequence[str], source: Source) -> Sequence[str]:
    """Return the families whose classes of a source are driven through their get, set and clear."""
    if not incident.about_sources:
        raise UsageError(
            f"incident {incident.id} is a fault of the code around the model class, "
            "which is in no class of a source: leave --source out"
        )
    known = [family for family in families if family.partition(":")[0] in engine_of(source).by_methods]
    if not known:
        raise UsageError(
            f"incident {incident.id} is about {', '.join(families)}, whose class has no get, set "
            "and clear to call alone: 'audit --source SOURCE' calls its embed_input_ids and forward"
        )
    return known


def _ours(incident: Incident, where: Where, asked: ReproOptions, output: Output) -> bool:
    from deepstack_harness.play.play_case import play_case

    plan = narrow(plan_incident(incident, where), asked.trace, asked.arm)
    table = ReproTable(output, incident, plan)
    cases = _play(play_case, plan, table)
    wrong = [judged for judged in cases if not _shown(incident, judged)]
    table.diagnose(cases)
    if wrong:
        table.unexpected(wrong)
    else:
        table.shown(cases)
    return not wrong


def _shown(incident: Incident, judged: JudgedCase) -> bool:
    """Say whether a case is as the catalogue has it, or, on a user's own trace, as its revision promises."""
    if judged.planned.must_break is not None:
        return judged.as_expected
    faulty = judged.case.buffer.name in incident.faulty
    return not judged.unjudged and faulty == bool(judged.broken & set(incident.rules))


def _theirs(incident: Incident, where: Where, asked: ReproOptions, text: str, output: Output) -> bool:
    from deepstack_harness.auditing.family_worker import FamilyWorker

    with FamilyWorker(text, where.family) as worker:
        plan = narrow(plan_source(incident, where, worker.buffer), asked.trace, asked.arm)
        table = ReproTable(output, incident, plan)
        cases = _play(worker.play, plan, table)
        broken = [each for each in cases if each.broken & set(incident.rules)]
        faulty = [each for each in broken if each.case.buffer == worker.buffer]
        site = _site(worker, faulty)
    unjudged = [each for each in cases if each.unjudged]
    table.diagnose(cases)
    table.source_verdict(f"{worker.source.label}, {worker.model_class}", site, faulty, unjudged)
    return not faulty and not unjudged


def _site(worker: FamilyWorker, faulty: list[JudgedCase]) -> str:
    """Return file and line of the first exception or None answer in the source."""
    for judged in faulty:
        for step, facts in zip(judged.case.trace, judged.observation.steps, strict=True):
            if facts.raised and facts.raised.call != "decoder":
                return facts.raised.where or worker.filename
            if facts.answer is not None and facts.answer.structure == "none":
                return worker.where_returned(judged.case, judged.observation, step.tokens)
    return worker.filename


def _play(
    play: Callable[[Case], Observation], plan: list[PlannedCase], table: ReproTable
) -> list[JudgedCase]:
    from deepstack_harness.oracles.judged_case import judge_case

    cases = []
    for number, planned in enumerate(plan, 1):
        case = planned.case
        with table.output.progress(f"{case.buffer.name} under {case.arm.name} ({number} of {len(plan)})"):
            judged = judge_case(planned, play(case))
        table.add(judged)
        cases.append(judged)
    return cases
