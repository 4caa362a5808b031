"""`audit`: which rules the classes of sources keep or break, with figure, shortest trace and reach."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.reporting.terminal.output import Output

if TYPE_CHECKING:
    from deepstack_harness.auditing.source_systems import SourceSystems
    from deepstack_harness.auditing.standing import Standing

SUMMARY = "which rules the deepstack classes of one or more vLLM sources keep, and what stands beside them"
SOURCE_HELP = (
    "'installed', a release such as 0.22.1, a wheel or sdist file, or a source tree; may be repeated"
)


def add_arguments(parser: ArgumentParser) -> None:
    """Sources, in the order they are shown."""
    parser.add_argument("--vllm", metavar="SOURCE", action="append", required=True, help=SOURCE_HELP)


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when no rule is broken and nothing is unexpected, 1 otherwise."""
    import torch

    from deepstack_harness.auditing.classes import judge_class
    from deepstack_harness.auditing.source_systems import judge_systems
    from deepstack_harness.binding.discover import find_classes
    from deepstack_harness.reporting.terminal.audit_table import AuditTable
    from deepstack_harness.reporting.terminal.source_systems_table import show_beside
    from deepstack_harness.sources.locate import locate

    torch.set_num_threads(1)
    table = AuditTable(output)
    standings: list[Standing] = []
    beside: list[SourceSystems] = []
    for source in map(locate, args.vllm):
        with output.progress(f"judging {source.label}"):
            found = find_classes(source)
            standings += [judge_class(one) for one in found if one.buffer or one.driven]
            beside.append(judge_systems(source))
        if not found:
            raise UsageError(
                f"{source.label} has no class with a deepstack buffer; vLLM has had one since 0.11"
            )
        for one in found:
            if not one.buffer and not one.driven:
                table.refuse(source.label, one.model_class, one.refusals[-1])
    table.show(standings)
    show_beside(output, beside)
    standings += [standing for one in beside for standing in one.standings]
    table.close(standings)
    return ExitCode.BROKEN if any(one.broken or one.unexpected for one in standings) else ExitCode.HOLDS
