"""`audit`: which rules the classes of sources keep or break, with figure, shortest trace and reach."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deepstack_harness.commands.source_arguments import SOURCE_HELP, add_sources
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.reporting.terminal.output import Output

if TYPE_CHECKING:
    from deepstack_harness.auditing.source_systems import SourceSystems
    from deepstack_harness.auditing.source_worker import AuditedClass, SourceWorker
    from deepstack_harness.auditing.standing import Standing

SUMMARY = "judge the deepstack classes of one or more sources by all rules, and the systems around them"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the sources, in the order they are shown."""
    add_sources(parser, "a source to judge")


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when no rule is broken and nothing is unexpected, 1 otherwise."""
    if not args.source:
        raise UsageError(f"audit needs a source, --source {SOURCE_HELP}")
    from deepstack_harness.reporting.terminal.audit_table import AuditTable
    from deepstack_harness.reporting.terminal.source_systems_table import show_beside

    judged = _judge(args.source, output)
    if not judged.standings:
        raise UsageError(_all_refused(judged.refused))
    table = AuditTable(output)
    for label, found in judged.refused:
        table.refuse(label, found.model_class, found.refusals[-1])
    table.show(judged.standings)
    show_beside(output, judged.beside)
    standings = [*judged.standings, *(standing for one in judged.beside for standing in one.standings)]
    table.close(standings)
    return ExitCode.BROKEN if any(one.broken or one.unexpected for one in standings) else ExitCode.HOLDS


@dataclass(frozen=True)
class _Judged:
    """The classes of all sources, those that could not be driven, and the systems beside them."""

    standings: list[Standing] = field(default_factory=list)
    refused: list[tuple[str, AuditedClass]] = field(default_factory=list)
    beside: list[SourceSystems] = field(default_factory=list)


def _judge(texts: Sequence[str], output: Output) -> _Judged:
    from deepstack_harness.auditing.classes import judge_class
    from deepstack_harness.auditing.controls import unjudged
    from deepstack_harness.auditing.source_systems import judge_systems
    from deepstack_harness.auditing.source_worker import SourceWorker

    judged = _Judged()
    for text in texts:
        with SourceWorker(text) as worker, output.progress(f"judging {worker.source.label}"):
            standings = []
            for found in _classes(worker):
                if found.can_be_judged:
                    standings.append(judge_class(found, worker))
                else:
                    judged.refused.append((worker.source.label, found))
            beside = judge_systems(worker)
            why = worker.failed_control()
        judged.standings.extend(standings if why is None else (unjudged(one, why) for one in standings))
        judged.beside.append(beside if why is None else beside.unjudged(why))
    return judged


def _classes(worker: SourceWorker) -> list[AuditedClass]:
    from deepstack_harness.engines.known import engine_of

    found = worker.classes()
    if not found:
        engine = engine_of(worker.source)
        raise UsageError(
            f"{worker.source.label} has no class with a deepstack buffer; "
            f"{engine.package.title} has had one since {engine.since}"
        )
    return found


def _all_refused(refused: Sequence[tuple[str, AuditedClass]]) -> str:
    """Name every class with the reason why it cannot be driven."""
    reasons = [f"{found.model_class} ({label}): {found.refusals[-1]}" for label, found in refused]
    return f"no deepstack class can be judged: {'; '.join(reasons)}"
