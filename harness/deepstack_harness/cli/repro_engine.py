"""`repro` where no revision of ours plays a trace over a decoder.

Three cases: a source whose payload is an argument, which is judged under the graphs of the engine's own
runner; an incident of a system other than the buffer, which judges variants of ours or those of a source; and
the programs that `--script`, `--pytest` and `--upstream-test` write for an upstream issue.
"""

from __future__ import annotations

import ast
import builtins
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from deepstack_harness.catalogue.incidents import EngineRun, Incident
from deepstack_harness.cli.arguments import options_in_use
from deepstack_harness.cli.output import progress, write_text
from deepstack_harness.cli.repro_releases import SourceVerdict, one_verdict, why_unjudged
from deepstack_harness.cli.repro_table import show_incident
from deepstack_harness.contract.rules import Rule, names_of
from deepstack_harness.contract.verdicts import FaultKind, Row
from deepstack_harness.document.blocks import BLANK, Document, Heading, Line, TextTable, all_of, outcome
from deepstack_harness.engines.discover import ArgumentFiles
from deepstack_harness.engines.known import engine_of, open_source
from deepstack_harness.errors import ExitCode, UsageError, unknown_name
from deepstack_harness.text import parse_python

if TYPE_CHECKING:
    from deepstack_harness.audit.source_worker import AuditedClass
    from deepstack_harness.catalogue.scripts import ProgramBuffer
    from deepstack_harness.contract.oracles.judge import JudgedCase
    from deepstack_harness.sources.source import Source


_OPTIONS_OF_OURS: Mapping[str, object] = MappingProxyType(
    {"full": False, **dict.fromkeys(("trace", "arm", "workload", "script", "pytest", "upstream_test"))}
)
"""Options about our decoders, or about programs of ours."""


def reproduce_in_engine(
    incident: Incident, families: Iterable[str], source: Source, args: Namespace
) -> Document[SourceVerdict]:
    """Judge the text model of each family by an incident; return the verdict on all of them.

    Raises `UsageError` where the incident, the source or its graphs cannot be judged.
    """
    run = _engine_run(incident, source, args)
    models = _text_models(source, families)
    from deepstack_harness.audit.classes import judge_replayed
    from deepstack_harness.audit.source_worker import SourceWorker, failed_control

    with SourceWorker(args.source) as worker, progress("starting") as say:
        say(f"looking for classes in {source.label}")
        classes = {audited.model_class: audited for audited in worker.classes()}
        driven = [_driven_class(name, classes, source) for name in models]
        results = [(audited, judge_replayed(audited, run.traces, worker)) for audited in driven]
        why = failed_control(worker)
    if why is not None:
        raise UsageError(f"{source.label} cannot be judged: {why}")
    yield from show_incident(incident)
    every = (_print_verdict(audited, cases, run, incident, source) for audited, cases in results)
    return one_verdict((yield from all_of(every)))


def _engine_run(incident: Incident, source: Source, args: Namespace) -> EngineRun:
    if options := options_in_use(args, _OPTIONS_OF_OURS):
        raise UsageError(f"{source.label} runs its own writer, text model and graphs: leave {options} out")
    run = next((run for run in incident.engine if run.package == source.package), None)
    if run is None:
        raise UsageError(
            f"incident {incident.id} is about a buffer, and the payload of {source.package} is an argument: "
            "'audit --source SOURCE' judges it by every rule"
        )
    return run


def _text_models(source: Source, families: Iterable[str]) -> list[str]:
    """Return the text models of the families, each once."""
    payload = engine_of(source).payload
    by_family = payload.by_family if isinstance(payload, ArgumentFiles) else {}
    names = [by_family[name] for family in families if (name := family.partition(":")[0]) in by_family]
    if not names:
        raise UsageError(f"{source.label} has a text model of {', '.join(by_family)} alone")
    return list(dict.fromkeys(names))


def _driven_class(name: str, classes: dict[str, AuditedClass], source: Source) -> AuditedClass:
    if name not in classes:
        raise unknown_name(f"text model of {source.label}", name, classes)
    audited = classes[name]
    if not audited.can_be_judged:
        raise UsageError(f"{name} of {source.label} cannot be called: {audited.ways.refusals[-1]}")
    if audited.ended is None and not audited.replayed_at:
        why = f": {audited.ways.no_graphs}" if audited.ways.no_graphs else ""
        raise UsageError(f"{name} of {source.label}: its graphs cannot be replayed{why}")
    return audited


def _print_verdict(
    audited: AuditedClass,
    cases: Sequence[JudgedCase],
    run: EngineRun,
    incident: Incident,
    source: Source,
) -> Document[SourceVerdict]:
    """Print what each trace showed; return the verdict on one text model."""
    yield BLANK
    yield Heading(f"{source.label}, {audited.model_class}, under the graphs of its own runner")
    broken: set[Rule] = set()
    rows: list[Row] = []
    for result in cases:
        rules = result.broken & set(run.rules)
        wrong = [row for row in result.rows() if row.rule in rules]
        rows += wrong
        details = "; ".join(row.detail for row in wrong)
        yield Line(f"'{result.case.trace}': {details or 'every row that was set is there'}")
        for row in result.rows():
            where = audited.replayed_at if row.rule in rules else None
            yield replace(row, incident=incident.id, where=where)
        broken |= rules
    unjudged = [result for result in cases if result.unjudged & set(run.rules)]
    name = f"{source.label}, {audited.model_class}"
    yield from _print_place(audited, broken=bool(broken))
    if broken:
        silent = any(row.shape != FaultKind.RAISED for row in rows)
        has = "HAS incident" if silent else "raises, and does not lose rows silently as in incident"
        yield outcome(f"{name}: {has} {incident.id}, breaks {names_of(broken)}", good=False)
    elif unjudged:
        yield outcome(f"{name}: incident {incident.id} could not be judged", good=False)
    else:
        yield outcome(f"{name}: free of incident {incident.id}", good=True)
    arm = next((result.case.arm.name for result in cases if result.broken & broken), "")
    why = why_unjudged(row for result in unjudged for row in result.rows() if row.rule in run.rules)
    return SourceVerdict(name, frozenset(broken), arm, "" if broken else why)


def _print_place(audited: AuditedClass, *, broken: bool) -> Document:
    """Print which lines were judged, what they lose, and what else is known of the runner."""
    yield Line(f"{'where' if broken else 'judged'}: {audited.replayed_at}")
    if broken and audited.ways.lost:
        yield Line(f"why: {audited.ways.lost}")
    if audited.runner and audited.runner.settings:
        yield Line(f"reached with: {audited.runner.settings}")
    if audited.runner and audited.runner.note:
        yield Line(f"note: {audited.runner.note}")


_PROVIDED = frozenset({"torch", "IntermediateTensors", *dir(builtins)})
_NEEDED = ("get", "set", "clear")


def _program_buffer(source: Source, family: str) -> tuple[ProgramBuffer, str]:
    """Return the class of a source that a program can read, and the name of its file on this machine.

    Raises `UsageError` where methods are missing, or need more of their package than a program has.
    """
    from deepstack_harness.catalogue.scripts import ProgramBuffer

    model = engine_of(source).by_methods[family.partition(":")[0]]
    file = source.read(model.member)
    try:
        tree = parse_python(file.text)
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{file.filename} is not Python source: {error}") from None
    cannot = f"no program can be written for {model.class_name} of {source.label}"
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == model.class_name]
    methods = [node for owner in classes for node in owner.body if isinstance(node, ast.FunctionDef)]
    kept = {node.name: node for node in methods if "_deepstack_input_embeds" in node.name}
    missing = [verb for verb in _NEEDED if f"_{verb}_deepstack_input_embeds" not in kept]
    if missing:
        raise UsageError(
            f"{cannot}: {model.member} has no {', '.join(missing)} in it; 'audit' judges the class"
        )
    if others := sorted({name for node in kept.values() for name in _free_names(node)} - _PROVIDED):
        raise UsageError(
            f"{cannot}: its methods need {', '.join(others)} of their package, and a program has only "
            "torch; 'repro' without --script judges them"
        )
    read, stored = _attributes(kept.values())
    if others := sorted(read - stored - _STATE - set(kept)):
        raise UsageError(
            f"{cannot}: its methods read self.{', self.'.join(others)}, which no program knows how to set; "
            "'repro' without --script judges them"
        )
    return ProgramBuffer(model.class_name, model.member), file.filename


_STATE = frozenset(
    {
        "config",
        "thinker_config",
        "deepstack_num_level",
        "deepstack_input_embeds",
        "deepstack_input_embeds_num_tokens",
    }
)
"""Attributes that a program sets, `catalogue/templates/parts/their_methods.jinja`."""


def _attributes(methods: Iterable[ast.FunctionDef]) -> tuple[set[str], set[str]]:
    """Return the attributes of `self` that methods read, and those that they store."""
    nodes = [
        node
        for method in methods
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    ]
    read = {node.attr for node in nodes if isinstance(node.ctx, ast.Load)}
    return read, {node.attr for node in nodes} - read


def _free_names(method: ast.FunctionDef) -> set[str]:
    """Return the names that a method reads and does not bind; annotations are not evaluated."""
    bare = ast.parse(ast.unparse(method)).body[0]
    for node in ast.walk(bare):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    names = [node for node in ast.walk(bare) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in ast.walk(bare) if isinstance(node, ast.arg)}
    return {node.id for node in names} - bound


def write_files(
    incident: Incident, family: str, args: Namespace, source: Source | None = None
) -> Document[ExitCode]:
    """Write the files that were chosen, and how to run those that read the class of a source.

    `family` is empty where the incident has none.  Raises `UsageError` where the class, or the incident, is
    none of which such a program can be written.
    """
    from deepstack_harness.catalogue.scripts import UPSTREAM_PLACES, render_upstream_test

    every = [] if source is None else [*_programs_of_source(incident, family, args, source)]
    if source is None:
        from deepstack_harness.catalogue.scripts import render_pytest, render_script

        if args.script:
            every.append((args.script, render_script(incident, family), []))
        if args.pytest:
            every.append((args.pytest, render_pytest(incident, family), []))
    if args.upstream_test:
        text = render_upstream_test(incident)
        every.append((args.upstream_test, text, [f"in the engine it is {UPSTREAM_PLACES[incident.id]}"]))
    for path, text, notes in every:  # all can be written before one is
        write_text(path, text)
        yield Line("wrote", command=path)
        for note in notes:
            yield Line(note)
    return ExitCode.HOLDS


def _programs_of_source(
    incident: Incident, family: str, args: Namespace, source: Source
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the path, the text and how to run it of each program that reads the class of a source."""
    from deepstack_harness.catalogue.scripts import (
        SOURCE_VARIABLE,
        SourceProgram,
        render_source_script,
    )

    buffer, filename = _program_buffer(source, family)
    program = SourceProgram(buffer, engine_of(source).package.title, source.label)
    heading = f"run it with a copy of {program.title}, such as"
    if args.script:
        run = f"  python {args.script} {filename}"
        yield args.script, render_source_script(incident, family, program), [heading, run]
    if args.pytest:
        run = f"  {SOURCE_VARIABLE}={filename} python -m pytest {args.pytest}"
        yield args.pytest, render_source_script(incident, family, program, "test"), [heading, run]


_TRACE_OPTIONS = {
    "trace": None,
    "arm": None,
    "workload": None,
    "family": None,
    "dtype": "float32",
    "device": "cpu",
}
"""Options of a decoder that plays a trace, and what they are where nobody gave them."""


def reproduce_system(incident: Incident, args: Namespace) -> Document[ExitCode]:
    """Exit 0: every faulty variant of ours shows it and no other; 1: not so."""
    refuse_system_options(incident, args)
    if args.script or args.pytest or args.upstream_test:
        return (yield from write_files(incident, "", args))
    import torch

    from deepstack_harness.audit.systems import system_of
    from deepstack_harness.cli.system_table import show_as_expected, show_subject, system_columns

    torch.set_num_threads(1)
    columns = system_columns(incident.revisions)
    yield from show_incident(incident)
    yield BLANK
    yield TextTable(columns)
    variants = []
    for variant in system_of(incident).ours(incident):
        yield from show_subject(variant, columns)
        variants.append(variant)
    yield from show_as_expected(incident, variants)
    return ExitCode.HOLDS if all(variant.as_expected for variant in variants) else ExitCode.BROKEN


def refuse_system_options(incident: Incident, args: Namespace) -> None:
    """Raise `UsageError` for options that an incident of a system other than the buffer does not have."""
    if options := options_in_use(args, _TRACE_OPTIONS):
        raise UsageError(
            f"incident {incident.id} plays no trace over a decoder (system {incident.system}): "
            f"leave {options} out"
        )
    if args.source and (args.script or args.pytest or args.upstream_test):
        raise UsageError("--script, --pytest and --upstream-test show a variant of ours: leave --source out")


def judge_system(incident: Incident, text: str) -> Document[SourceVerdict]:
    """Judge a source by an incident of a system other than the buffer.

    Raises `UsageError` for an engine without such systems.
    """
    from deepstack_harness.audit.source_worker import SourceWorker
    from deepstack_harness.audit.systems import system_of
    from deepstack_harness.cli.system_table import show_source_verdict, show_subject, system_columns

    source = open_source(text)
    if not engine_of(source).systems:
        raise UsageError(
            f"{source.label} has nothing of incident {incident.id}: no engine but vLLM is judged by it"
        )
    with SourceWorker(text) as worker:
        parts = list(system_of(incident).theirs(incident, worker))
    label, columns = worker.source.label, system_columns([part.model_class for part in parts])
    yield from show_incident(incident)
    yield BLANK
    yield TextTable(columns)
    verdicts = []
    for part in parts:
        yield from show_subject(part, columns)
        why = "" if part.broken else why_unjudged(part.rows)
        verdicts.append(SourceVerdict(f"{label}, {part.model_class}", part.broken, part.model_class, why))
    yield from show_source_verdict(incident, label, engine_of(worker.source).package.module, parts)
    return one_verdict(verdicts)
