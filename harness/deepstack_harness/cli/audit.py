"""`audit`: its options, the sources that it judges and compares, and its output.

`--base` has two meanings: for a plugin it is the source whose classes the plugin changes, otherwise
the source whose faults do not count.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from deepstack_harness.audit.audited_source import AuditedSource, AuditScope
from deepstack_harness.audit.gate import Base, Gate, GateResult, judge_gate
from deepstack_harness.cli.arguments import SOURCE_HELP, add_sources
from deepstack_harness.cli.output import progress, write_text
from deepstack_harness.document.blocks import Document, Line
from deepstack_harness.engines.known import (
    engine_of,
    locate_source,
    named_package,
    newest_release,
    open_source,
)
from deepstack_harness.errors import ExitCode, HarnessError, UsageError
from deepstack_harness.sources.request import OVER, ReleaseRequest, names_source, parse_source, split_over

if TYPE_CHECKING:
    from deepstack_harness.document.findings import ReportedRow


def with_base(sources: Sequence[str], base: str | None) -> tuple[list[str], str | None]:
    """Return the sources, plugins over the base that `--base` names, and the base of a comparison, if any.

    Raises `UsageError` for what is no source, for a base that no source could have as either, and for one
    that some sources have as the one and some as the other.
    """
    resolved, compared = list(sources), base
    if base is not None and names_source(base):
        package, plugins = _package(base), {text: bare for text in sources if (bare := _changed_by(text))}
        if package in plugins.values():
            same = [text for text in sources if text not in plugins and _package(text) == package]
            if same:
                plugin = next(iter(plugins))
                raise UsageError(
                    f"--base '{base}' could have the classes of {plugin}, or be compared with {same[0]}: "
                    f"write --source '{plugin}{OVER}{base}' for the first"
                )
            resolved, compared = (
                [f"{text}{OVER}{base}" if text in plugins else text for text in sources],
                None,
            )
        elif package not in {_package(text) for text in sources}:
            raise UsageError(
                f"--base '{base}' is a source of {package}: no --source is one, or changes its classes"
            )
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


def add_arguments(parser: ArgumentParser) -> None:
    """Add the sources, in the order they are shown, and what turns the exit code to 1."""
    add_sources(parser, "a source to judge; the bare name of a package means its newest release")
    parser.add_argument(
        "--fail-on",
        choices=[gate.value for gate in Gate],
        help="exit with 1 on any fault (any), on those that --base does not have or, without it, that no "
        "catalogue knows (new), on those that default settings or a flag lead to (flag), or only default "
        "settings (default); with --base only on new and worse ones; a fault of unknown reach counts as "
        "default, and what carries a payload and was not judged always counts; without this option flag, "
        "with --bisect any",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="also show the faults under calls that no engine makes today, which are counted otherwise",
    )
    parser.add_argument(
        "--base",
        metavar="SOURCE|REV",
        help="judge only what is other than in this source, or in this commit of the --source, and exit with "
        "1 only on what is new or worse; for a plugin (tpu-inference, vllm-ascend) the vLLM that it changes, "
        "by default the release it pins",
    )
    parser.add_argument(
        "--class",
        dest="classes",
        metavar="NAME",
        action="append",
        default=[],
        help="judge only this class, and no other carriers and systems; may be given several times",
    )
    parser.add_argument(
        "--as",
        dest="release",
        metavar="VERSION",
        help="the release that a source tree is of, such as 0.33.0: what is known of it is known of the tree",
    )
    parser.add_argument(
        "--inputs",
        action="store_true",
        help="read the optional inputs of every class that the source compiles, in place of judging rules: "
        "which a warm-up sees as later steps do; exit with 1 where one at risk breaks a promise",
    )
    parser.add_argument(
        "--construct",
        action="store_true",
        help="make each class that has a tiny configuration by its own __init__, compiled by the engine's "
        "own decorator, and judge R0 of it and of the furnished class, in place of all else; exit with 1 "
        "where the two differ; for vLLM",
    )
    parser.add_argument(
        "--sarif", metavar="FILE", help="also write the findings as SARIF 2.1.0, with file and lines"
    )
    parser.add_argument(
        "--annotations",
        action="store_true",
        help="also print the findings as GitHub annotations, next to the lines of a pull request: an error "
        "for each that the exit code counts; those of the base are left out",
    )
    parser.add_argument(
        "--markdown",
        metavar="FILE",
        help='also write the findings as a Markdown table; for a GitHub job summary: "$GITHUB_STEP_SUMMARY"',
    )


def run(args: Namespace) -> Document[ExitCode]:
    """Exit 0 when nothing fails that --fail-on and --base let count, and all could be judged; 1 otherwise."""
    if not args.source:
        raise UsageError(f"audit needs a source, --source {SOURCE_HELP}")
    if args.inputs:
        return (yield from _run_inputs(args))
    if args.construct:
        refused = ("base", "fail_on", "all", "release", "sarif", "markdown")
        _refuse_options(args, refused, "--construct is a second opinion on R0 alone")
        from deepstack_harness.cli.audit_constructed import show_constructed

        return (yield from show_constructed([_one_release(text, []) for text in args.source], args.classes))
    notes: list[str] = []
    args.source = [_one_release(text, notes) for text in args.source]
    args.source, args.base = with_base(args.source, args.base and _one_release(args.base, notes))
    from deepstack_harness.audit.audited_source import audit_source
    from deepstack_harness.audit.base import audit_change

    stated = _stated(args.release)
    if args.base is not None and len(args.source) != 1:
        raise UsageError(f"--base is compared with one --source, and there are {len(args.source)}")
    base = None
    try:
        with progress("starting") as say:
            if args.base is None:
                scope = AuditScope()
                if args.classes:
                    scope = AuditScope(lambda name, _: name in args.classes, systems=False, account=False)
                # A class that is not there is refused with the names of those that are.
                lacking = bool(args.classes)
                audited = [
                    audit_source(text, say, scope, stated=stated, may_be_empty=lacking)
                    for text in args.source
                ]
            else:
                change, base = audit_change(args.source[0], args.base, say, args.classes, stated=stated)
                audited = [change]
    except HarnessError:
        for note in notes:
            yield Line(note)
        raise
    _refuse_unknown(args.classes, audited)
    result = judge_gate(audited, _gate(args), base)
    yield from _show(args, audited, result, base, notes)
    return ExitCode.HOLDS if result.holds else ExitCode.BROKEN


def _stated(text: str | None) -> Version | None:
    try:
        return None if text is None else Version(text)
    except InvalidVersion:
        raise UsageError(f"--as {text} is no version: write one such as 0.33.0") from None


def _refuse_unknown(names: Sequence[str], audited: Sequence[AuditedSource]) -> None:
    """Raise `UsageError` for a class that no source has."""
    judged = {verdicts.model_class for source in audited for verdicts in source.classes}
    known = {member for source in audited for member in source.members} | judged
    for name in names:
        if name not in known:
            there = f"; there are {', '.join(sorted(known))}" if known else ""
            raise UsageError(f"--class {name}: no source has such a class that can be judged{there}")


def _refuse_options(args: Namespace, names: Sequence[str], why: str) -> None:
    """Raise `UsageError` for the first of some options that was given."""
    for name in names:
        if getattr(args, name):
            option = {"classes": "class", "release": "as"}.get(name, name.replace("_", "-"))
            raise UsageError(f"{why}: leave out --{option}")


def _run_inputs(args: Namespace) -> Document[ExitCode]:
    _refuse_options(args, ("base", "fail_on", "all", "classes", "release"), "--inputs judges no rules")
    from deepstack_harness.audit.findings import folder_of, input_findings
    from deepstack_harness.cli.audit_inputs import show_inputs

    answer, at_risk, good = yield from show_inputs([_one_release(text, []) for text in args.source])
    findings = [finding for text, judged in at_risk for finding in input_findings(judged, folder_of(text))]
    yield from _write_findings(args, findings, answer, good=good)
    return ExitCode.HOLDS if good else ExitCode.BROKEN


def _write_findings(args: Namespace, findings: Sequence[ReportedRow], answer: str, *, good: bool) -> Document:
    """Write the findings in each form that was chosen, under the sentence that sums them up."""
    from deepstack_harness.document.findings import annotations_of, markdown_of, sarif_text

    for path, text in (
        (args.sarif, sarif_text(findings) if args.sarif else ""),
        (args.markdown, markdown_of(findings, answer, good=good) if args.markdown else ""),
    ):
        if path:
            write_text(path, text)
            yield Line("wrote", command=path)
    if args.annotations:
        for command in annotations_of(findings, answer, good=good):
            yield Line(command=command)


def _gate(args: Namespace) -> Gate:
    """Return the gate: a bisection counts every fault."""
    return Gate.ANY if args.bisect else Gate(args.fail_on or Gate.FLAG)


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
    result: GateResult,
    base: Base | None = None,
    notes: Sequence[str] = (),
) -> Document:
    """Print the result and the findings, and write them in the forms that were chosen; the result is last."""
    from deepstack_harness.audit.findings import audit_findings, folder_of
    from deepstack_harness.cli.audit_table import answer_of, outcome_of, show_change, show_summary

    folders = {source.label: folder_of(text) for source, text in zip(audited, args.source, strict=True)}
    findings = audit_findings(audited, result, folders, base.changed if base else ())
    if base is None:
        yield from _show_tables(args, audited, result, notes)
        answer = ". ".join(map(answer_of, audited))
    else:
        for note in notes:
            yield Line(note)
        answer = outcome_of(result)
    yield from _write_findings(args, findings, answer, good=result.holds)
    if args.bisect and args.fail_on not in (None, Gate.ANY):
        yield Line(f"under --bisect every fault counts: --fail-on {args.fail_on} is not used", "yellow")
    if base is None:
        yield from show_summary(audited, result)
    else:
        yield from show_change(audited, result, findings)


def _show_tables(
    args: Namespace,
    audited: Sequence[AuditedSource],
    result: GateResult,
    notes: Sequence[str] = (),
) -> Document:
    """Print the result, then the findings, what was not judged, and the tables of all rules."""
    from deepstack_harness.cli.audit_table import (
        show_account,
        show_answer,
        show_end,
        show_engine_rules,
        show_findings,
        show_gate,
        show_groups,
    )
    from deepstack_harness.cli.system_table import show_systems

    yield from show_answer(audited, result)
    for note in notes:
        yield Line(note)
    for source in audited:
        for name, lacked in source.loaded.items():
            yield Line(f"{name} of {source.label} was made by importing its package: {lacked}")
    classes = [verdicts for source in audited for verdicts in source.classes]
    yield from show_findings(classes, latent=args.all)
    yield from show_account(audited, places=args.all)
    yield from show_groups(classes, audited)
    yield from show_systems(audited)
    yield from show_engine_rules(audited)
    for text in args.source:
        if isinstance(parse_source(split_over(text)[0]), ReleaseRequest):
            yield Line("its incidents:", command=f"deepstack-harness affected {split_over(text)[0]}")
    yield from show_end([verdicts for source in audited for verdicts in source.subjects])
    if args.fail_on not in (None, Gate.ANY):
        yield from show_gate(result)
