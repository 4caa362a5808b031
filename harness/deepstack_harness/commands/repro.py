"""`repro`: show a fault of the catalogue, side by side with what is right, or look for it in a vLLM."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from deepstack_harness.auditing.places import inside_package
from deepstack_harness.catalogue.decisive import decisive, decisive_of_source
from deepstack_harness.catalogue.incidents import DEEPSTACK, Incident, find
from deepstack_harness.catalogue.matrix import Where, narrow, plan_incident, plan_source
from deepstack_harness.commands.repro_argument import reproduce_in_engine
from deepstack_harness.commands.repro_files import write_files
from deepstack_harness.commands.repro_systems import reproduce
from deepstack_harness.commands.repro_workload import evaluate_workload
from deepstack_harness.commands.source_arguments import add_source
from deepstack_harness.contract.arm_spec import ArmSpec, Backend
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.contract.places import check_device, check_dtype
from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.engines.known import engine_of, open_alone
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.families.variants import check_family
from deepstack_harness.reporting.terminal.case_clock import CaseClock
from deepstack_harness.reporting.terminal.output import Output
from deepstack_harness.reporting.terminal.repro_table import IncidentTitle, ReproTable

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
        "--full",
        action="store_true",
        help="play every trace, arm, revision and family of the incident, instead of the few that decide",
    )
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
        const=True,
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
    parser.add_argument(
        "--upstream-test",
        metavar="FILE",
        help="only write a test for the engine's own suite, which imports the engine and nothing of ours",
    )
    parser.add_argument("--family", metavar="F", help="use only this model family, see 'list families'")
    parser.add_argument(
        "--dtype", default="float32", metavar="D", help="float32 (default), bfloat16, float16 or float64"
    )


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0: shown on the faulty revisions, absent from the fixed ones (or from the source); 1: not so."""
    incident = find(args.incident)
    if incident.system != DEEPSTACK:
        return reproduce(incident, args, output)
    families = _families(incident, args.family)
    _refuse_mixtures(incident, args)
    asked = ReproOptions(
        trace=None if args.trace is None else Trace.parse(args.trace),
        arm=None if args.arm is None else ArmSpec.parse(args.arm),
        source=args.source,
        full=args.full,
    )
    check_dtype(args.dtype)
    check_device(args.device)
    if args.source:
        source = open_alone(args.source)
        if engine_of(source).argument is not None:
            return _exit_code([reproduce_in_engine(incident, families, source, args, output)])
        families = _families_of_sources(incident, families, source)
    if args.script or args.pytest or args.upstream_test:
        return write_files(incident, families[0], args, output)
    _prepare_torch(args)
    places = [Where(family, args.dtype, args.device) for family in families]
    if args.workload is not None:
        return _exit_code(evaluate_workload(incident, where, args, output) for where in places)
    title = IncidentTitle(output, incident)
    if asked.source is not None:
        return _exit_code(_theirs(title, where, asked, asked.source) for where in places)
    chosen = places if asked.chooses_cases else places[:1]
    held = [_ours(title, where, asked) for where in chosen]
    if not asked.chooses_cases:
        _name_the_rest(incident, places, output)
    return _exit_code(held)


def _exit_code(held: Iterable[bool]) -> ExitCode:
    """Return HOLDS where all of them held; all are judged first."""
    return ExitCode.HOLDS if all(list(held)) else ExitCode.BROKEN


def _name_the_rest(incident: Incident, places: Sequence[Where], output: Output) -> None:
    """Print the command that plays everything, and how much that is."""
    every = sum(len(plan_incident(incident, where)) for where in places)
    revisions, families = len(incident.revisions), len(places)
    what = f"{plural(every, 'case')} of {plural(revisions, 'revision')}"
    what += f" and {plural(families, 'family')}" if families > 1 else ""
    output.line(f"all of it, {what}: deepstack-harness repro {incident.id} --full")


def _refuse_mixtures(incident: Incident, args: Namespace) -> None:
    """Raise `UsageError` for options that exclude each other, so that none is ignored silently."""
    if (args.script or args.pytest or args.upstream_test) and (
        args.full or any(given is not None for given in (args.source, args.trace, args.arm, args.workload))
    ):
        raise UsageError(
            "--script, --pytest and --upstream-test show the catalogue's own trace: "
            "leave --full, --source, --trace, --arm and --workload out"
        )
    if args.workload is None:
        return
    if args.full or args.trace is not None or args.arm is not None:
        raise UsageError("--workload brings its own trace and arms: leave --full, --trace and --arm out")
    if Rule.R0 not in incident.rules:
        raise UsageError(
            f"incident {incident.id} does not change outputs (rule R0): leave --workload out, it cannot show"
        )


def _prepare_torch(args: Namespace) -> None:
    """Refuse a device that is not here before anything is printed, and pin torch to one thread."""
    import torch

    from deepstack_harness.devices import parse_device

    parse_device(args.device)
    # A tiny decoder runs 20 times slower on a busy machine with more threads.
    torch.set_num_threads(1)


@dataclass(frozen=True)
class ReproOptions:
    """Options that narrow the runs of an incident, or replace them; `full` asks for all of its cases."""

    trace: Trace | None
    arm: ArmSpec | None
    source: str | None
    full: bool = False

    @property
    def chooses_cases(self) -> bool:
        """Say whether the options say which cases to play, in place of the decisive ones."""
        return self.full or self.trace is not None or self.arm is not None


def _families(incident: Incident, wanted: str | None) -> Sequence[str]:
    if wanted is None:
        return incident.families
    if not incident.has_family(wanted):
        raise UsageError(
            f"incident {incident.id} has no family '{wanted}'; it has {', '.join(incident.families)}"
        )
    check_family(wanted)
    return [wanted]


def _families_of_sources(incident: Incident, families: Sequence[str], source: Source) -> Sequence[str]:
    """Return the families whose classes of a source are driven through their get, set and clear."""
    if not incident.about_sources:
        raise UsageError(
            f"incident {incident.id} is a fault of the code around the model class, "
            "which is in no class of a source: leave --source out"
        )
    engine = engine_of(source)
    if engine.split is not None:
        raise UsageError(f"{source.label} has no buffer: 'audit --source SOURCE' judges its splitter")
    known = [family for family in families if family.partition(":")[0] in engine.by_methods]
    if not known and not engine.by_forward:
        raise UsageError(
            f"incident {incident.id} is about {', '.join(families)}, and {source.label} has a class of "
            f"{', '.join(engine.by_methods)} alone: 'audit --source SOURCE' judges it by every rule"
        )
    if not known:
        raise UsageError(
            f"incident {incident.id} is about {', '.join(families)}, whose class has no get, set "
            "and clear to call alone: 'audit --source SOURCE' calls its embed_input_ids and forward"
        )
    return known


def _ours(title: IncidentTitle, where: Where, asked: ReproOptions) -> bool:
    from deepstack_harness.play.play_case import play_case

    incident = title.incident
    every = plan_incident(incident, where)
    plan = narrow(every, asked.trace, asked.arm) if asked.chooses_cases else decisive(incident, every)
    table = ReproTable(title, plan, where.family)
    cases = _play(play_case, plan, table, table.so_far)
    wrong = [judged for judged in cases if not _shown(incident, judged)]
    if wrong:
        table.unexpected(wrong)
    else:
        table.shown(cases)
    return not wrong


def _shown(incident: Incident, judged: JudgedCase) -> bool:
    """Say whether a case is as the catalogue has it, or, on a user's own trace, as its revision promises."""
    if judged.planned.must_break is not None:
        return judged.as_expected
    faulty = judged.case.subject in incident.faulty
    return not judged.unjudged and faulty == bool(judged.broken & set(incident.rules))


def _theirs(title: IncidentTitle, where: Where, asked: ReproOptions, text: str) -> bool:
    from deepstack_harness.auditing.family_worker import FamilyWorker

    incident = title.incident
    with FamilyWorker(text, where.family) as worker:
        every = plan_source(incident, where, worker.buffer)
        plan = narrow(every, asked.trace, asked.arm) if asked.chooses_cases else decisive_of_source(every)
        table = ReproTable(title, plan, where.family)
        what = f"{worker.source.label}, {worker.model_class}"
        cases = _play(worker.play, plan, table, partial(table.source_so_far, what))
        broken = [each for each in cases if each.broken & set(incident.rules)]
        faulty = [each for each in broken if each.case.buffer == worker.buffer]
        site = _site(worker, faulty)
    unjudged = [each for each in cases if each.unjudged]
    table.source_verdict(what, site, faulty, unjudged)
    return not faulty and not unjudged


def _site(worker: FamilyWorker, faulty: list[JudgedCase]) -> str:
    """Return file (inside the package) and line of the first exception or None answer in the source."""
    module = engine_of(worker.source).package.module
    return inside_package(_first_fault(worker, faulty), module)


def _first_fault(worker: FamilyWorker, faulty: list[JudgedCase]) -> str:
    for judged in faulty:
        for step, facts in zip(judged.case.trace, judged.observation.steps, strict=True):
            if facts.raised and facts.raised.call != "decoder":
                return facts.raised.where or worker.filename
            if facts.answer is not None and facts.answer.structure == "none":
                return worker.where_returned(judged.case, judged.observation, step.tokens)
    return worker.filename


def _play(
    play: Callable[[Case], Observation],
    plan: list[PlannedCase],
    table: ReproTable,
    so_far: Callable[[Sequence[JudgedCase], float], None],
) -> list[JudgedCase]:
    """Play and judge a plan in order.

    `so_far` is told what was judged before Inductor starts, and the seconds that it will take.
    """
    from deepstack_harness.oracles.judged_case import judge_case

    cases: list[JudgedCase] = []
    clock = CaseClock([planned.case for planned in plan])
    with table.output.progress("starting") as say:
        for planned, after in zip_longest(plan, plan[1:]):
            case = planned.case
            say(f"{case.buffer.name} under {case.arm.name} ({clock.begin()})")
            judged = judge_case(planned, play(case))
            clock.end()
            table.add(judged)
            cases.append(judged)
            if after is None or table.block_of(after) != table.block_of(planned):
                table.end_block()
            if after and after.case.arm.backend is Backend.INDUCTOR is not case.arm.backend:
                so_far(cases, clock.seconds_left())
    return cases
