"""`repro`: show a fault of the catalogue, side by side with what is right, or judge a source by it.

`repro --workload` serves the traffic of an evaluation with every revision, or with a source.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from deepstack_harness.catalogue.incidents import (
    DEEPSTACK,
    STEPS,
    Incident,
    cheapest_of_source,
    decisive,
    decisive_of_source,
)
from deepstack_harness.catalogue.plans import Where, narrow, plan_incident, plan_source, plan_workload
from deepstack_harness.catalogue.search import find_or_search
from deepstack_harness.cli.arguments import add_device_and_dtype, add_source
from deepstack_harness.cli.matches import show_matches
from deepstack_harness.cli.output import progress
from deepstack_harness.cli.repro_bisect import bisect_releases, bisect_torches
from deepstack_harness.cli.repro_engine import (
    judge_system,
    refuse_system_options,
    reproduce_in_engine,
    reproduce_system,
    write_files,
)
from deepstack_harness.cli.repro_releases import (
    SourceVerdict,
    add_release_arguments,
    is_compiled_fault,
    judge_classes,
    one_verdict,
    refuse_release_mixtures,
    search_releases,
    show_verdict,
    why_unjudged,
)
from deepstack_harness.cli.repro_steps import reproduce_steps
from deepstack_harness.cli.repro_table import CaseClock, ReproTable, show_titles
from deepstack_harness.contract.arm import ArmSpec, Backend
from deepstack_harness.contract.case import PlannedCase, check_device, check_dtype
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.document.blocks import Document, Line, TextTable, all_of, outcome
from deepstack_harness.engines.discover import ArgumentFiles, SplitFiles
from deepstack_harness.engines.known import engine_of, open_alone
from deepstack_harness.errors import ExitCode, MachineError, UsageError
from deepstack_harness.models.variants import check_family
from deepstack_harness.options import add_options, option, record_of
from deepstack_harness.sources.source import inside_package
from deepstack_harness.text import one_line, plural, shortened

if TYPE_CHECKING:
    from deepstack_harness.audit.source_worker import FamilyWorker
    from deepstack_harness.contract.case import Case
    from deepstack_harness.contract.observation import Observation
    from deepstack_harness.contract.oracles.judge import JudgedCase
    from deepstack_harness.sources.source import Source


def add_arguments(parser: ArgumentParser) -> None:
    """Add the incident and the options that narrow or redirect it."""
    parser.add_argument(
        "incident",
        nargs="+",
        metavar="INCIDENT",
        help="id, short name or any reference of an incident, such as 43602; words only list what fits them",
    )
    add_source(parser.add_mutually_exclusive_group(), "judge this source instead of our revisions")
    add_release_arguments(parser)
    add_options(parser, ReproOptions)
    add_device_and_dtype(parser)
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
        help="only write a standalone program that shows the fault (needs only torch); with --source "
        "one that reads the methods of your copy when it runs",
    )
    parser.add_argument("--pytest", metavar="FILE", help="only write a pytest file that fails on the fault")
    parser.add_argument(
        "--upstream-test",
        metavar="FILE",
        help="only write a test for the engine's own suite, which imports the engine and nothing of ours",
    )
    parser.add_argument("--family", metavar="F", help="use only this model family, see 'list families'")


def run(args: Namespace) -> Document[ExitCode]:
    """Exit 0: shown on the faulty revisions, absent from the fixed ones (or from the source); 1: not so."""
    text = " ".join(args.incident)
    incident = find_or_search(text)
    if isinstance(incident, list):
        yield from show_matches(text, incident)
        best = next((match.command for match in incident if match.command), "deepstack-harness list faults")
        raise UsageError(f"'{shortened(one_line(text), 100)}' names no incident; the best fit: {best}")
    if incident.system == STEPS:
        return (yield from reproduce_steps(incident, args))
    refuse_release_mixtures(args)
    if args.package is not None and args.bisect:
        if args.package == "torch":
            return (yield from bisect_torches(incident, args))
        return (
            yield from bisect_releases(
                incident, args, lambda text: _judge(incident, Namespace(**{**vars(args), "source": text}))
            )
        )
    if args.package is not None:
        return (yield from search_releases(incident, args))
    return (yield from _reproduce(incident, args))


def _reproduce(incident: Incident, args: Namespace) -> Document[ExitCode]:
    if incident.system != DEEPSTACK:
        refuse_system_options(incident, args)
        if args.source is None:
            return (yield from reproduce_system(incident, args))
    else:
        _refuse_combinations(incident, args)
    check_dtype(args.dtype)
    check_device(args.device)
    families = _families(incident, args.family)
    if args.source and (args.script or args.pytest):
        source = open_alone(args.source)
        if isinstance(engine_of(source).payload, ArgumentFiles):
            raise UsageError(
                f"no program can be written for {source.label}: its payload is an argument, and its own "
                f"graphs replay it; 'repro {incident.id} --source SOURCE' judges it"
            )
        families = _families_of_sources(incident, families, source)
        return (yield from write_files(incident, families[0], args, source))
    if args.source and args.workload is None:
        verdict = yield from _judge(incident, args)
        if args.bisect and not verdict.broken and verdict.unjudged:  # it may have it, which is no result
            raise MachineError(
                f"{verdict.name}: incident {incident.id} could not be judged: {verdict.unjudged}"
            )
        return ExitCode.HOLDS if verdict.free else ExitCode.BROKEN
    if args.script or args.pytest or args.upstream_test:
        return (yield from write_files(incident, families[0], args))
    options = record_of(ReproOptions, args)
    if args.workload is not None:
        if args.source:
            families = _families_of_sources(incident, families, open_alone(args.source))
        _prepare_torch(args)
        served = (
            evaluate_workload(incident, Where(family, args.dtype, args.device), args) for family in families
        )
        return ExitCode.HOLDS if all((yield from all_of(served))) else ExitCode.BROKEN
    _prepare_torch(args)
    places = [Where(family, args.dtype, args.device) for family in families]
    chosen = places if options.chooses_cases else places[:1]
    titles = show_titles(incident, families)
    results = yield from all_of(
        _play_revisions(incident, where, options, title) for where, title in zip(chosen, titles, strict=False)
    )
    if not options.chooses_cases:
        yield from _print_full_command(incident, places)
    return ExitCode.HOLDS if all(results) else ExitCode.BROKEN


def _judge(incident: Incident, args: Namespace) -> Document[SourceVerdict]:
    """Judge `args.source` by an incident; under `--bisect` by its cheapest cases in the incident's class.

    Raises `UsageError` for a source that the incident is not about.
    """
    if incident.system != DEEPSTACK:
        return (yield from judge_system(incident, args.source))
    families, options = _families(incident, args.family), record_of(ReproOptions, args)
    source = open_alone(args.source)
    if isinstance(engine_of(source).payload, ArgumentFiles):
        return (yield from reproduce_in_engine(incident, families, source, args))
    families = _families_of_sources(incident, families, source)
    _prepare_torch(args)
    verdicts: list[SourceVerdict] = []
    every_class = is_compiled_fault(incident) and not options.bisect and args.family is None
    if every_class:
        verdicts.append((yield from judge_classes(args.source)))
    for family, title in zip(families, show_titles(incident, families), strict=True):
        where = Where(family, args.dtype, args.device)
        verdicts.append((yield from _play_source(incident, where, options, args.source, title)))
        if options.bisect and verdicts[-1].broken:
            break
    if is_compiled_fault(incident) and not every_class:
        yield Line("other classes of the source were not looked at: leave --family and --bisect out")
    if len(verdicts) > 1:
        yield from show_verdict(incident, source.label, verdicts)
    return one_verdict(verdicts)


def _print_full_command(incident: Incident, places: Sequence[Where]) -> Document:
    """Print the command that plays everything, and how much that is."""
    every = sum(len(plan_incident(incident, where)) for where in places)
    revisions, families = len(incident.revisions), len(places)
    amount = f"{plural(every, 'case')} of {plural(revisions, 'revision')}"
    amount += f" and {plural(families, 'family')}" if families > 1 else ""
    yield Line(f"all of it, {amount}:", command=f"deepstack-harness repro {incident.id} --full")


def _refuse_combinations(incident: Incident, args: Namespace) -> None:
    """Raise `UsageError` for options that exclude each other, so that none is ignored silently."""
    if (args.script or args.pytest or args.upstream_test) and (
        args.full or any(value is not None for value in (args.trace, args.arm, args.workload))
    ):
        raise UsageError(
            "--script, --pytest and --upstream-test show the catalogue's own trace: "
            "leave --full, --trace, --arm and --workload out"
        )
    if args.upstream_test and args.source is not None and not (args.script or args.pytest):
        raise UsageError(
            "--upstream-test is for the suite of whatever engine runs it: leave --source out, or add --script"
        )
    if args.workload is None:
        return
    if args.full or args.trace is not None or args.arm is not None:
        raise UsageError("--workload brings its own trace and arms: leave --full, --trace and --arm out")
    if Rule.OUTPUT not in incident.rules:
        raise UsageError(
            f"incident {incident.id} does not change outputs (rule R0): leave --workload out, it cannot show"
        )


def _prepare_torch(args: Namespace) -> None:
    """Refuse a device that is not here before anything is printed, and pin torch to one thread."""
    import torch

    from deepstack_harness.models.family import parse_device

    parse_device(args.device)
    # A tiny decoder runs 20 times slower on a busy machine with more threads.
    torch.set_num_threads(1)


@dataclass(frozen=True)
class ReproOptions:
    """Options that narrow the runs of an incident, or replace them.

    `full` means all of its cases, `bisect` the cheapest ones, up to the first that shows it.
    """

    full: bool = option(
        "play every trace, arm, revision and family of the incident, instead of the few that decide",
        default=False,
    )
    trace: Trace | None = option(
        "play this trace instead, such as 'cap 16: profile 16; set 9; forward 16'",
        metavar="T",
        parse=Trace.parse,
        default=None,
    )
    arm: ArmSpec | None = option(
        "use only this arm, see 'list arms'", metavar="A", parse=ArmSpec.parse, default=None
    )
    bisect: bool = False

    @property
    def chooses_cases(self) -> bool:
        """Return whether the options choose the cases to play, in place of the decisive ones."""
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
    """Return the families whose classes of a source are called through their get, set and clear."""
    if not incident.about_sources:
        raise UsageError(
            f"incident {incident.id} is a fault of the code around the model class, "
            "which is in no class of a source: leave --source out"
        )
    engine = engine_of(source)
    if isinstance(engine.payload, SplitFiles):
        raise UsageError(f"{source.label} has no buffer: 'audit --source SOURCE' judges its splitter")
    driven = [family for family in families if family.partition(":")[0] in engine.by_methods]
    if not driven and not engine.by_forward:
        raise UsageError(
            f"incident {incident.id} is about {', '.join(families)}, and {source.label} has only a class of "
            f"{', '.join(engine.by_methods)}: 'audit --source SOURCE' judges it by every rule"
        )
    if not driven:
        raise UsageError(
            f"incident {incident.id} is about {', '.join(families)}, whose class has no get, set "
            "and clear that can be called: 'audit --source SOURCE' calls its embed_input_ids and forward"
        )
    return driven


def _play_revisions(
    incident: Incident, where: Where, options: ReproOptions, title: Document
) -> Document[bool]:
    from deepstack_harness.play.play_case import play_case

    every = plan_incident(incident, where)
    plan = narrow(every, options.trace, options.arm) if options.chooses_cases else decisive(incident, every)
    table = ReproTable(incident, plan)
    yield from title
    cases = yield from _play(play_case, plan, table)
    wrong = [result for result in cases if not _is_as_expected(incident, result)]
    if wrong:
        yield from table.unexpected(wrong)
    else:
        yield from table.shown(cases)
    return not wrong


def _is_as_expected(incident: Incident, result: JudgedCase) -> bool:
    """Return whether a case is as the catalogue has it, or, on a user's trace, as its revision promises."""
    if result.planned.must_break is not None:
        return result.as_expected
    faulty = result.case.subject in incident.faulty
    return not result.unjudged and faulty == bool(result.broken & set(incident.rules))


def _play_source(
    incident: Incident, where: Where, options: ReproOptions, text: str, title: Document
) -> Document[SourceVerdict]:
    from deepstack_harness.audit.source_worker import FamilyWorker

    wanted = set(incident.rules)
    with FamilyWorker(text, where.family) as worker:
        every = plan_source(incident, where, worker.buffer)
        if options.chooses_cases:
            plan = narrow(every, options.trace, options.arm)
        elif options.bisect:
            plan = cheapest_of_source(incident, where.family, every)
        else:
            plan = decisive_of_source(every)
        table = ReproTable(incident, plan)
        yield from title
        if options.bisect and not options.chooses_cases:
            yield from table.cheapest(len(every), {
                planned.case.arm.name: incident.shown_by(where.family, planned.case.trace, planned.case.arm)
                for planned in plan
            })  # fmt: skip
        name = f"{worker.source.label}, {worker.model_class}"
        enough = wanted if options.bisect else set[Rule]()
        cases = yield from _play(worker.observe, plan, table, name, enough)
        broken = [result for result in cases if result.broken & wanted]
        faulty = [result for result in broken if result.case.buffer == worker.buffer]
        module = engine_of(worker.source).package.module
        place = inside_package(_place_of_first_fault(worker, faulty), module)
    unjudged = [result for result in cases if result.unjudged]
    yield from table.source_verdict(name, place, faulty, unjudged)
    rules = frozenset(rule for result in faulty for rule in result.broken & wanted)
    arm = faulty[0].case.arm.name if faulty else ""
    why = why_unjudged(row for result in unjudged for row in result.rows())
    return SourceVerdict(name, rules, arm, why, (worker.model_class,))


def _place_of_first_fault(worker: FamilyWorker, faulty: list[JudgedCase]) -> str:
    for result in faulty:
        for step, facts in zip(result.case.trace, result.observation.steps, strict=True):
            if facts.raised and facts.raised.call != "decoder":
                return facts.raised.where or worker.filename
            if facts.answer is not None and facts.answer.structure == "none":
                return worker.where_returned(result.case, result.observation, step.tokens)
    return worker.filename


def _play(
    play: Callable[[Case], Observation],
    plan: list[PlannedCase],
    table: ReproTable,
    source: str = "",
    enough: Collection[Rule] = (),
) -> Document[list[JudgedCase]]:
    """Play and judge a plan in order, up to the first case that breaks a rule of `enough`.

    Before Inductor starts, what is known so far is printed, of `source` where one is judged.
    """
    from deepstack_harness.contract.oracles.judge import judge_cases

    cases: list[JudgedCase] = []
    clock = CaseClock([planned.case for planned in plan])
    with progress("starting") as say:

        def play_and_say(case: Case) -> Observation:
            say(f"{case.buffer.name} under {case.arm.name} ({clock.begin()})")
            observation = play(case)
            clock.end()
            return observation

        for result, after in zip_longest(judge_cases(plan, play_and_say), plan[1:]):
            yield from table.add(result)
            cases.append(result)
            shown = bool(result.broken & set(enough))
            if shown or after is None or table.block_of(after) != table.block_of(result.planned):
                yield from table.end_block()
            if shown or after is None:
                break
            if after.case.arm.backend is Backend.INDUCTOR is not result.case.arm.backend:
                yield from table.so_far(cases, clock.seconds_left(), source)
    return cases


REQUESTS = 200
"""How many rows of a workload are served: enough for 400 steps and 100 token counts."""


def evaluate_workload(incident: Incident, where: Where, args: Namespace) -> Document[bool]:
    """Return True if every fixed revision (or the source) agrees with eager, and no faulty one does.

    `args.workload` is True for the workload of ours.
    """
    trace = yield from _workload_trace(None if args.workload is True else args.workload)
    if args.source is None:
        from deepstack_harness.play.play_case import play_case

        return (yield from _evaluate(incident, plan_workload(incident, where, trace), play_case))
    from deepstack_harness.audit.source_worker import FamilyWorker

    with FamilyWorker(args.source, where.family) as worker:
        plan = plan_workload(incident, where, trace, worker.buffer)
        return (yield from _evaluate(incident, plan, worker.observe, source=True))


def _evaluate(
    incident: Incident,
    plan: list[PlannedCase],
    play: Callable[[Case], Observation],
    *,
    source: bool = False,
) -> Document[bool]:
    from deepstack_harness.cli.repro_table import evaluation_columns, show_evaluation
    from deepstack_harness.contract.oracles.outputs import evaluate

    columns = evaluation_columns([(planned.case.buffer.name, planned.case.arm.name) for planned in plan])
    yield TextTable(columns)
    agreements = []
    for planned in plan:
        steps = len(planned.case.trace.steps)
        with progress(f"serving {steps} operations to {planned.case.buffer.name}"):
            observation = play(planned.case)
        evaluation = evaluate(planned.case, observation)
        yield from show_evaluation(columns, planned.case, observation.graphs, evaluation)
        # Faulty revisions have to be seen where guards are dropped: torch's own guards recompile.
        right = evaluation.agreement == 1 and not evaluation.died
        faulty = planned.case.subject in incident.faulty and planned.case.arm.guards == "drop_all"
        agreements.append(right != faulty)
    good = all(agreements)
    words = (
        ("agrees", "does not agree")
        if source
        else ("as the catalogue expects", "not as the catalogue expects")
    )
    yield outcome(words[not good] + (" with eager" if source else ""), good=good)
    return good


def _workload_trace(workload: str | None) -> Document[Trace]:
    from deepstack_harness.catalogue.geometry3k import load_workload
    from deepstack_harness.catalogue.workload import serve, to_trace

    requests = load_workload(workload)[:REQUESTS]
    steps = serve(requests)
    visual, counts = sum(step.visual for step in steps), len({step.tokens for step in steps})
    yield Line(
        f"{len(requests)} requests, {len(steps)} steps ({visual} with visual tokens), "
        f"{counts} token counts; chunked prefill, 512 tokens and 4 slots a step, not padded"
    )
    # Unpadded, as without captured graphs: the counts vary most, and pr40145 does not die of padding.
    return to_trace(steps)
