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
    from deepstack_harness.auditing.source_systems import Beside
    from deepstack_harness.auditing.standing import Standing
    from deepstack_harness.binding.found_classes import Found
    from deepstack_harness.sources.source import Source

SUMMARY = "which rules the deepstack classes of one or more sources keep, and the systems beside them"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the sources, in the order they are shown."""
    add_sources(parser, "a source to judge")


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when no rule is broken, 1 when one is (or a class ended as ERROR)."""
    if not args.source:
        raise UsageError(f"audit needs a source, --source {SOURCE_HELP}")
    import torch

    from deepstack_harness.reporting.terminal.audit_table import AuditTable
    from deepstack_harness.reporting.terminal.source_systems_table import show_beside

    torch.set_num_threads(1)
    judged = _judge(args.source, output)
    if not judged.standings:
        raise UsageError(_all_refused(judged.refused))
    table = AuditTable(output)
    for one in judged.refused:
        table.refuse(one.source.label, one.model_class, one.refusals[-1])
    table.show(judged.standings)
    show_beside(output, judged.beside)
    standings = [*judged.standings, *(standing for one in judged.beside for standing in one.standings)]
    table.close(standings)
    return ExitCode.BROKEN if any(one.broken or one.unjudged for one in standings) else ExitCode.HOLDS


@dataclass(frozen=True)
class _Judged:
    """The classes of all sources, those that could not be driven, and the systems beside them."""

    standings: list[Standing] = field(default_factory=list)
    refused: list[Found] = field(default_factory=list)
    beside: list[Beside] = field(default_factory=list)


def _judge(texts: Sequence[str], output: Output) -> _Judged:
    from deepstack_harness.auditing.classes import judge_class
    from deepstack_harness.auditing.source_systems import judge_beside
    from deepstack_harness.engines.known import open_source

    judged = _Judged()
    for source in map(open_source, texts):
        with output.progress(f"judging {source.label}"):
            for one in _classes(source):
                if one.methods or one.forward:
                    judged.standings.append(judge_class(one))
                else:
                    judged.refused.append(one)
            judged.beside.append(judge_beside(source))
    return judged


def _classes(source: Source) -> list[Found]:
    from deepstack_harness.engines.classes import classes_of
    from deepstack_harness.engines.known import engine_of

    found = classes_of(source)
    if not found:
        engine = engine_of(source)
        raise UsageError(
            f"{source.label} has no class with a deepstack buffer; "
            f"{engine.package.title} has had one since {engine.since}"
        )
    return found


def _all_refused(refused: Sequence[Found]) -> str:
    """Name every class with the reason why it cannot be driven."""
    reasons = [f"{one.model_class} ({one.source.label}): {one.refusals[-1]}" for one in refused]
    return f"no deepstack class can be judged: {'; '.join(reasons)}"
