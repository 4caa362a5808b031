"""`repro` on a source whose payload is an argument: under the graphs of the engine's own runner."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from deepstack_harness.catalogue.incidents import EngineRun, Incident
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule, names_of
from deepstack_harness.engines.known import engine_of
from deepstack_harness.errors import UsageError, unknown_name
from deepstack_harness.reporting.terminal.output import Output
from deepstack_harness.reporting.terminal.repro_table import show_incident

if TYPE_CHECKING:
    from deepstack_harness.auditing.source_worker import AuditedClass
    from deepstack_harness.oracles.judged_case import JudgedCase
    from deepstack_harness.sources.source import Source

_CALLS = "calls"
"""Unit of rows that count calls that raised."""
_ELSEWHERE = ("full", "trace", "arm", "workload", "script", "pytest", "upstream_test")
"""Options about our decoders, or about programs of ours."""


def reproduce_in_engine(
    incident: Incident, families: Iterable[str], source: Source, args: Namespace, output: Output
) -> bool:
    """Judge the text model of each family by an incident; return True where all are free of it.

    Raises `UsageError` where the incident, the source or its graphs cannot be asked.
    """
    run = _run_of(incident, source, args)
    models = _models(source, families)
    from deepstack_harness.auditing.argument_classes import judge_replayed
    from deepstack_harness.auditing.source_worker import SourceWorker

    with SourceWorker(args.source) as worker, output.progress("starting") as say:
        say(f"looking for classes in {source.label}")
        found = {one.model_class: one for one in worker.classes()}
        asked = [_drivable(name, found, source) for name in models]
        judged = [(one, judge_replayed(one, run.traces, worker)) for one in asked]
        why = worker.failed_control()
    if why is not None:
        raise UsageError(f"{source.label} cannot be judged: {why}")
    show_incident(output, incident)
    shown = [_show(one, cases, run, incident, source, output) for one, cases in judged]
    return all(shown)


def _run_of(incident: Incident, source: Source, args: Namespace) -> EngineRun:
    given = [f"--{name.replace('_', '-')}" for name in _ELSEWHERE if getattr(args, name) not in (None, False)]
    if given:
        raise UsageError(
            f"{source.label} runs its own writer, text model and graphs: leave {', '.join(given)} out"
        )
    run = next((one for one in incident.engine if one.package == source.package), None)
    if run is None:
        raise UsageError(
            f"incident {incident.id} is about a buffer, and the payload of {source.package} is an argument: "
            "'audit --source SOURCE' judges it by every rule"
        )
    return run


def _models(source: Source, families: Iterable[str]) -> list[str]:
    """Return the text models of the families, each once."""
    known = engine_of(source).by_argument
    names = [known[name] for family in families if (name := family.partition(":")[0]) in known]
    if not names:
        raise UsageError(f"{source.label} has a text model of {', '.join(known)} alone")
    return list(dict.fromkeys(names))


def _drivable(name: str, found: dict[str, AuditedClass], source: Source) -> AuditedClass:
    if name not in found:
        raise unknown_name(f"text model of {source.label}", name, found)
    one = found[name]
    if not one.can_be_judged:
        raise UsageError(f"{name} of {source.label} is not driven: {one.refusals[-1]}")
    if one.ended is None and not one.replayed_at:
        raise UsageError(f"{name} of {source.label}: {one.lost}")
    return one


def _show(
    found: AuditedClass,
    cases: Sequence[JudgedCase],
    run: EngineRun,
    incident: Incident,
    source: Source,
    output: Output,
) -> bool:
    """Print what each trace showed; return True for a text model that is free of the incident."""
    output.line()
    output.line(f"{source.label}, {found.model_class}, under the graphs of its own runner", "bold")
    broken: set[Rule] = set()
    rows: list[Row] = []
    for judged in cases:
        mine = judged.broken & set(run.rules)
        told = [row.detail for row in judged.rows() if row.rule in mine]
        rows += [row for row in judged.rows() if row.rule in mine]
        output.line(f"'{judged.case.trace}': {'; '.join(told) or 'every row that was set is there'}")
        for row in judged.rows():
            where = found.replayed_at if row.rule in mine else None
            output.record(replace(row, incident=incident.id, where=where))
        broken |= mine
    unjudged = [one.unjudged for one in cases if one.unjudged & set(run.rules)]
    what = f"{source.label}, {found.model_class}"
    _place(found, output, broken=bool(broken))
    if broken:
        silent = any(row.unit != _CALLS for row in rows)
        has = "HAS incident" if silent else "raises, and does not lose rows silently as in incident"
        output.verdict(f"{what}: {has} {incident.id}, breaks {names_of(broken)}", good=False)
    elif unjudged:
        output.verdict(f"{what}: incident {incident.id} could not be judged", good=False)
    else:
        output.verdict(f"{what}: free of incident {incident.id}", good=True)
    return not broken and not unjudged


def _place(found: AuditedClass, output: Output, *, broken: bool) -> None:
    """Print which lines were asked, what they lose, and what else is known of the runner."""
    output.line(f"{'where' if broken else 'asked'}: {found.replayed_at}")
    if broken and found.lost:
        output.line(f"why: {found.lost}")
    if found.graphs_settings:
        output.line(f"reached with: {found.graphs_settings}")
    if found.graphs_note:
        output.line(f"note: {found.graphs_note}")
