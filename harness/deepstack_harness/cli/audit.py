"""`audit`: its options, the sources that it judges and compares, and its output.

`--base` has two meanings: for a plugin it is the source whose classes the plugin changes, otherwise
the source whose faults do not count.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from deepstack_harness.audit.audited_source import (
    AuditedSource,
    FindingKey,
    Gate,
    GateResult,
    judge_gate,
    keys_of,
)
from deepstack_harness.cli.arguments import SOURCE_HELP, add_sources
from deepstack_harness.cli.output import Output, write_text
from deepstack_harness.engines.known import (
    engine_of,
    locate_source,
    named_package,
    newest_release,
    open_source,
)
from deepstack_harness.errors import ExitCode, HarnessError, UsageError
from deepstack_harness.sources.request import OVER, names_source, split_over

if TYPE_CHECKING:
    from deepstack_harness.cli.audit_findings import AuditFinding


def with_base(sources: Sequence[str], base: str | None) -> tuple[list[str], str | None]:
    """Return the sources, plugins over the base that `--base` names, and the base of a comparison, if any.

    Raises `UsageError` for what is no source, for a base that no source could have as either, and for one
    that some sources have as the one and some as the other.
    """
    resolved, compared = list(sources), base
    if base is not None and names_source(base):
        package, plugins = _package(base), {text: bare for text in sources if (bare := _changed_by(text))}
        if package in plugins.values():
            _refuse_both(sources, list(plugins), base)
            resolved, compared = (
                [f"{text}{OVER}{base}" if text in plugins else text for text in sources],
                None,
            )
        else:
            _refuse_other(base, package, {_package(text) for text in sources})
    for text in resolved:
        open_source(text)  # misspelt ones cost no import of torch
    return resolved, compared


def _changed_by(text: str) -> str | None:
    """Return the package whose classes a plugin that is named without a base changes."""
    named, base = split_over(text)
    overlay = engine_of(locate_source(named)).overlay if base is None else None
    return overlay.base.package.name if overlay else None


def _package(text: str) -> str:
    return locate_source(split_over(text)[0]).package


def _refuse_both(sources: Sequence[str], plugins: Sequence[str], base: str) -> None:
    package = _package(base)
    same = [text for text in sources if text not in plugins and _package(text) == package]
    if same:
        raise UsageError(
            f"--base '{base}' could have the classes of {plugins[0]}, or be compared with {same[0]}: "
            f"write --source '{plugins[0]}{OVER}{base}' for the first"
        )


def _refuse_other(base: str, package: str, packages: set[str]) -> None:
    if package not in packages:
        raise UsageError(
            f"--base '{base}' is a source of {package}: no --source is one, or changes its classes"
        )


def add_arguments(parser: ArgumentParser) -> None:
    """Add the sources, in the order they are shown, and what turns the exit code to 1."""
    add_sources(parser, "a source to judge; the bare name of a package means its newest release")
    parser.add_argument(
        "--fail-on",
        choices=[gate.value for gate in Gate],
        help="exit with 1 on any fault (any), on those that no catalogue knows (new), on those that default "
        "settings or a flag lead to (flag), or default settings alone (default); a fault of unknown reach "
        "counts as default, and what carries a payload and was not judged always counts; without this "
        "option flag, with --base or --bisect any",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="also show the faults under calls that no engine makes today, which are counted otherwise",
    )
    parser.add_argument(
        "--base",
        metavar="SOURCE|REV",
        help="exit with 1 only on faults that this source does not have, or this commit of the --source; for "
        "a plugin (tpu-inference, vllm-ascend) the vLLM that it changes, by default the release it pins",
    )
    parser.add_argument(
        "--inputs",
        action="store_true",
        help="read the optional inputs of every class that the source compiles, in place of judging rules: "
        "which a warm-up sees as later steps do; exit with 1 where one at risk, driven, breaks a promise",
    )
    parser.add_argument(
        "--sarif", metavar="FILE", help="also write the findings as SARIF 2.1.0, with file and lines"
    )
    parser.add_argument(
        "--annotations",
        action="store_true",
        help="also print the findings as GitHub annotations, beside the lines of a pull request: an error "
        "for each that the exit code counts; those of the base are left out",
    )
    parser.add_argument(
        "--markdown",
        metavar="FILE",
        help='also write the findings as a Markdown table; for a GitHub job summary: "$GITHUB_STEP_SUMMARY"',
    )


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when nothing fails that --fail-on and --base let count, and all could be judged; 1 otherwise."""
    if not args.source:
        raise UsageError(f"audit needs a source, --source {SOURCE_HELP}")
    if args.inputs:
        return _run_inputs(args, output)
    notes: list[str] = []
    args.source = [_one_release(text, notes) for text in args.source]
    args.source, args.base = with_base(args.source, args.base and _one_release(args.base, notes))
    from deepstack_harness.audit.audited_source import audit_source

    try:
        with output.progress("starting") as say:
            base = None if args.base is None else _base(args.base, args.source, say)
            audited = [audit_source(text, say) for text in args.source]
    except HarnessError:
        for note in notes:
            output.line(note)
        raise
    subjects = [verdicts for source in audited for verdicts in source.subjects]
    result = judge_gate(subjects, _gate(args), base, [source.account for source in audited])
    _show(args, audited, output, result, notes)
    _close(args, output, audited, result, base)
    return ExitCode.HOLDS if result.holds else ExitCode.BROKEN


def _run_inputs(args: Namespace, output: Output) -> ExitCode:
    refused = [name for name in ("base", "fail_on", "all") if getattr(args, name)]
    if refused:
        raise UsageError(f"--inputs judges no rules: leave out --{refused[0].replace('_', '-')}")
    from deepstack_harness.cli.audit_findings import folder_of, input_findings
    from deepstack_harness.cli.audit_inputs import show_inputs

    shown = show_inputs([_one_release(text, []) for text in args.source], output)
    findings = [
        finding
        for text, label, driven in shown.driven
        for finding in input_findings(label, driven, folder_of(text))
    ]
    _write_findings(args, output, findings, shown.answer, good=shown.code is ExitCode.HOLDS)
    return shown.code


def _write_findings(
    args: Namespace, output: Output, findings: Sequence[AuditFinding], answer: str, *, good: bool
) -> None:
    """Write the findings in each form that was asked for; `answer` is the sentence that sums them up."""
    from deepstack_harness.cli.audit_findings import annotations_of, markdown_of, sarif_text

    for path, text in (
        (args.sarif, sarif_text(findings) if args.sarif else ""),
        (args.markdown, markdown_of(findings, answer, good=good) if args.markdown else ""),
    ):
        if path:
            write_text(path, text)
            output.line(f"wrote {path}")
    if args.annotations:
        for line in annotations_of(findings, answer, good=good):
            output.line(line)


def _gate(args: Namespace) -> Gate:
    """Return the gate: a bisection, and a comparison that names none, counts every fault."""
    if args.bisect or (args.fail_on is None and args.base is not None):
        return Gate.ANY
    return Gate.FLAG if args.fail_on is None else Gate(args.fail_on)


def _one_release(text: str, notes: list[str]) -> str:
    """Return the source with a bare name replaced by its newest release, which is noted."""
    package = named_package(text)
    if package is None:
        return text
    release = newest_release(package)
    notes.append(f"'{text}' is the newest release that pip would install: {release}")
    return release


def _show(
    args: Namespace,
    audited: Sequence[AuditedSource],
    output: Output,
    result: GateResult,
    notes: Sequence[str] = (),
) -> None:
    """Print the answer, then the findings, what was not judged, and the tables of all rules."""
    from deepstack_harness.cli.audit_table import (
        AuditTable,
        show_account,
        show_answer,
        show_engine_rules,
    )
    from deepstack_harness.cli.system_table import show_systems

    show_answer(output, audited, result, args.base)
    for note in notes:
        output.line(note)
    table = AuditTable(output)
    for source in audited:
        for reason in source.live_alone:
            table.refuse(source.label, "graphs", reason)
    classes = [verdicts for source in audited for verdicts in source.classes]
    table.show_findings(classes, latent=args.all)
    show_account(output, audited, places=args.all)
    table.show(classes)
    show_systems(output, [source.systems for source in audited])
    show_engine_rules(output, audited)
    table.close([verdicts for source in audited for verdicts in source.subjects])


def _close(
    args: Namespace,
    output: Output,
    audited: Sequence[AuditedSource],
    result: GateResult,
    base: frozenset[FindingKey] | None,
) -> None:
    """Write the findings in the forms that were asked for, and print the last lines."""
    from deepstack_harness.cli.audit_findings import audit_findings, folder_of
    from deepstack_harness.cli.audit_table import answer_of, show_gate, show_summary

    folders = {source.label: folder_of(text) for source, text in zip(audited, args.source, strict=True)}
    findings = audit_findings(audited, base, result, folders)
    _write_findings(args, output, findings, ". ".join(map(answer_of, audited)), good=result.holds)
    if args.bisect and args.fail_on not in (None, Gate.ANY):
        output.line(f"under --bisect every fault counts: --fail-on {args.fail_on} is not used", "yellow")
    if args.fail_on not in (None, Gate.ANY) or base is not None:
        show_gate(output, result, args.base)
    show_summary(output, audited, result)


def _base(text: str, sources: list[str], say: Callable[[str], None]) -> frozenset[FindingKey]:
    from deepstack_harness.audit.audited_source import audit_source, base_of

    with base_of(text, sources) as base:
        commit = "" if base == text else f"{text} of {sources[0]}"
        return keys_of(audit_source(base, say, may_lack_classes=True, known_as=commit).subjects)
