"""`audit`: which rules the classes of sources keep or break, with figure, shortest trace and reach."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from deepstack_harness.auditing.gates import Gate, GateResult, judge_gate, keys_of
from deepstack_harness.commands.audit_base import with_base
from deepstack_harness.commands.source_arguments import SOURCE_HELP, add_sources
from deepstack_harness.engines.newest import named_package, newest_release
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.reporting.json_lines import write_text
from deepstack_harness.reporting.terminal.output import Output

if TYPE_CHECKING:
    from deepstack_harness.auditing.audited_source import AuditedSource
    from deepstack_harness.auditing.gates import FindingKey

SUMMARY = "judge the deepstack classes of one or more sources by all rules, and the systems around them"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the sources, in the order they are shown, and what turns the exit code to 1."""
    add_sources(parser, "a source to judge; the bare name of a package means its newest release")
    parser.add_argument(
        "--fail-on",
        default=Gate.ANY.value,
        choices=[gate.value for gate in Gate],
        help="exit with 1 on any fault (default), on those that no catalogue knows (new), on those that "
        "default settings or a flag lead to (flag), or default settings alone (default); a fault of unknown "
        "reach counts as default; under --bisect any fault counts",
    )
    parser.add_argument(
        "--base",
        metavar="SOURCE|REV",
        help="exit with 1 only on faults that this source does not have, or this commit of the --source; for "
        "a plugin (tpu-inference, vllm-ascend) the vLLM that it changes, by default the release it pins",
    )
    parser.add_argument(
        "--sarif", metavar="FILE", help="also write the findings as SARIF 2.1.0, with file and lines"
    )


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when nothing fails that --fail-on and --base let count, and all could be judged; 1 otherwise."""
    if not args.source:
        raise UsageError(f"audit needs a source, --source {SOURCE_HELP}")
    args.source = [_one_release(text, output) for text in args.source]
    args.source, args.base = with_base(args.source, args.base and _one_release(args.base, output))
    from deepstack_harness.auditing.audited_source import audit_source

    with output.progress("starting") as say:
        base = None if args.base is None else _base(args.base, args.source, say)
        audited = [audit_source(text, say) for text in args.source]
    if not any(one.classes for one in audited):
        raise UsageError(_all_refused(audited))
    _show(audited, output)
    gate = Gate.ANY if args.bisect else Gate(args.fail_on)
    standings = [standing for one in audited for standing in one.standings]
    result = judge_gate(standings, gate, base)
    _close(args, output, audited, result, base)
    return ExitCode.HOLDS if result.holds else ExitCode.BROKEN


def _one_release(text: str, output: Output) -> str:
    """Return the source with a bare name replaced by its newest release, which is said."""
    package = named_package(text)
    if package is None:
        return text
    found = newest_release(package)
    output.line(f"'{text}' is the newest release that pip would install: {found}")
    return found


def _show(audited: Sequence[AuditedSource], output: Output) -> None:
    from deepstack_harness.reporting.terminal.audit_table import AuditTable
    from deepstack_harness.reporting.terminal.engine_rules_table import show_engine_rules
    from deepstack_harness.reporting.terminal.source_systems_table import show_beside

    table = AuditTable(output)
    for one in audited:
        for refused in one.refused:
            table.refuse(one.label, refused.model_class, refused.refusals[-1])
        for why in one.live_alone:
            table.refuse(one.label, "graphs", why.partition(": ")[2])
    table.show([standing for one in audited for standing in one.classes])
    show_beside(output, [one.beside for one in audited])
    show_engine_rules(output, audited)
    table.close([standing for one in audited for standing in one.standings])


def _close(
    args: Namespace,
    output: Output,
    audited: Sequence[AuditedSource],
    result: GateResult,
    base: frozenset[FindingKey] | None,
) -> None:
    """Write the SARIF file, and print the last lines."""
    from deepstack_harness.reporting.sarif import sarif_text
    from deepstack_harness.reporting.terminal.audit_summary import show_gate, show_summary

    if args.sarif:
        write_text(args.sarif, sarif_text(audited, base))
        output.line(f"wrote {args.sarif}")
    if args.bisect and args.fail_on != Gate.ANY:
        output.line(f"under --bisect every fault counts: --fail-on {args.fail_on} is not used", "yellow")
    if result.gate is not Gate.ANY or base is not None:
        show_gate(output, result, args.base)
    show_summary(output, audited, result)


def _base(text: str, sources: list[str], say: Callable[[str], None]) -> frozenset[FindingKey]:
    from deepstack_harness.auditing.audited_source import audit_source, base_of

    with base_of(text, sources) as base:
        return keys_of(audit_source(base, say, may_lack_classes=True).standings)


def _all_refused(audited: Sequence[AuditedSource]) -> str:
    """Name every class with the reason why it cannot be driven."""
    reasons = [
        f"{found.model_class} ({one.label}): {found.refusals[-1]}" for one in audited for found in one.refused
    ]
    return f"no deepstack class can be judged: {'; '.join(reasons)}"
