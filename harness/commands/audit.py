"""`audit`: which rules the classes of sources keep or break, with figure, shortest trace and reach."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from harness.errors import ExitCode, UsageError
from harness.reporting.output import Output

if TYPE_CHECKING:
    from harness.runner.audit import Standing
    from harness.upstream.discover import Found

SUMMARY = "which rules the deepstack classes of one or more vLLM sources keep"
SOURCE_HELP = (
    "'installed', a release such as 0.22.1, a wheel or sdist file, or a source tree; may be repeated"
)


def add_arguments(parser: ArgumentParser) -> None:
    """Sources, in the order they are shown."""
    parser.add_argument("--vllm", metavar="SOURCE", action="append", required=True, help=SOURCE_HELP)


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when no rule is broken, 1 when one is (or a class ended as ERROR)."""
    import torch

    from harness.reporting.audit_table import AuditTable
    from harness.upstream.discover import find_classes
    from harness.upstream.locate import locate

    torch.set_num_threads(1)
    table = AuditTable(output)
    standings: list[Standing] = []
    for source in map(locate, args.vllm):
        with output.progress(f"judging {source.label}"):
            found = find_classes(source)
            standings += [_stand(one) for one in found if one.buffer is not None]
        if not found:
            raise UsageError(
                f"{source.label} has no class with a deepstack buffer; vLLM has had one since 0.11"
            )
        for one in found:
            if one.buffer is None:
                table.refuse(source.label, one.model_class, one.refusal)
    table.show(standings)
    table.close(standings)
    return ExitCode.BROKEN if any(one.broken or one.unjudged for one in standings) else ExitCode.HOLDS


def _stand(found: Found) -> Standing:
    from harness.known_failures import known_of
    from harness.matrix import Where, plan_audit
    from harness.runner.audit import stand
    from harness.runner.cells import Runner

    assert found.buffer is not None  # the caller chose it so
    label, name = found.buffer.label, found.model_class
    plan = plan_audit(Where("qwen3_vl"), label, name)
    return stand(Runner({label: found.buffer}), label, name, plan, known_of(label, name))
