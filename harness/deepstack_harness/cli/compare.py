"""`compare`: what changed between two runs, and over the runs before them."""

from __future__ import annotations

import textwrap
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from deepstack_harness.cli.arguments import add_removed
from deepstack_harness.cli.output import Column, Output
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.runs.compare import ChangeKind
from deepstack_harness.text import one_line, plural, shortened

if TYPE_CHECKING:
    from deepstack_harness.runs.causes import ChangeCause
    from deepstack_harness.runs.compare import Change
    from deepstack_harness.runs.store import StoredRun


_SLOWEST = 3
_WIDTH = 80


def add_arguments(parser: ArgumentParser) -> None:
    """Add the two runs, and what they are held against."""
    parser.add_argument("old", metavar="OLD", help="the folder of the earlier run")
    parser.add_argument("new", metavar="NEW", help="the folder of the later run")
    parser.add_argument(
        "--history", metavar="DIR",
        help="also look for changes over these runs: a folder of runs, or a hub dataset OWNER/NAME",
    )  # fmt: skip
    parser.add_argument(
        "--all", action="store_true", help="list every change under its cause, consequences too"
    )
    add_removed(parser, "--threshold", "every change is shown; leave some out by reading the rows of --json")


def run(args: Namespace, output: Output) -> ExitCode:
    """Exit 0 when nothing is worse, better or missing (new rows are fine), 1 otherwise, or while NEW runs."""
    from deepstack_harness.runs.causes import findings
    from deepstack_harness.runs.compare import RED, compare
    from deepstack_harness.runs.store import different_settings, read_stored
    from deepstack_harness.runs.torch_changes import version_of, version_table

    old, new = read_stored(args.old), read_stored(args.new)
    for folder, stored in ((args.old, old), (args.new, new)):
        if stored.mixed:
            raise UsageError(
                f"'{folder}' is not one run: {stored.mixed}; a difference would say nothing: play it again "
                "in one environment"
            )
    causes = findings(compare(old, new, _history(args, output, (old, new))), old, new)
    settings = different_settings(old.settings, new.settings) if old.abouts and new.abouts else []
    for finding in causes:
        for change in finding.marked:
            output.record(change)
    summary = _summary(causes)
    if causes:
        output.line(summary, "bold")
    _show_runs(output, old, new)
    for setting in settings:
        _paragraph(output, "     ", f"setting {setting}", "yellow")
    if version_of(old) != version_of(new):
        from deepstack_harness.cli.torches import show_versions

        output.line()
        show_versions(output, version_table([old, new]))
    for finding in causes:
        _show(output, finding, everything=args.all)
    output.line()
    _show_seconds(output, old, new)
    good = not new.unfinished and not any(finding.kind in RED for finding in causes)
    # The last line names the first cause: a night shows no more of this command.
    closing = [summary, *(finding.title for finding in causes[:1] if finding.kind in RED)]
    closing += (
        [f"other settings: {', '.join(each.partition(':')[0] for each in settings)}"] if settings else []
    )
    output.verdict("; ".join([*closing, *(["NEW is unfinished"] if new.unfinished else [])]), good=good)
    return ExitCode.HOLDS if good else ExitCode.BROKEN


def _summary(causes: Sequence[ChangeCause]) -> str:
    """Return the findings by kind, then how many changes in how many cases they are."""
    if not causes:
        return "nothing changed"
    counts = Counter(finding.kind for finding in causes)
    changes = [change for finding in causes for change in finding.marked]
    kinds = ", ".join(_counted(number, kind) for kind, number in counts.items())
    cases = len({change.case for change in changes})
    findings = "" if len(counts) == 1 else f"{plural(len(causes), 'finding')}: "
    return f"{findings}{kinds} ({plural(len(changes), 'change')} in {plural(cases, 'case')})"


def _counted(number: int, kind: ChangeKind) -> str:
    """Return `2 regressions`, `1 improvement`, `3 missing`."""
    nouns = (ChangeKind.REGRESSION, ChangeKind.IMPROVEMENT)
    return plural(number, kind) if kind in nouns else f"{number} {kind}"


def _show_runs(output: Output, old: StoredRun, new: StoredRun) -> None:
    """Print what each run was measured with, and how far it came where it did not come to its end."""
    both = len({case.case for case in old.cases} & {case.case for case in new.cases})
    for name, stored in (("OLD", old), ("NEW", new)):
        same = stored is new and new.versions == old.versions and new.versions
        versions = "the same versions" if same else "; ".join(stored.versions) or "no versions are stored"
        _paragraph(output, f"{name}  ", f"{stored.name}: {versions}")
        if stored.unfinished:
            others = {case.case for case in (new if stored is old else old).cases}
            missing = len(others - {case.case for case in stored.cases})
            which = "old" if stored is old else "new"
            rest = f"the {which} run did not get to {plural(missing, 'case')}, which are not compared"
            _paragraph(output, "     ", f"unfinished: {stored.unfinished}; {rest}", "yellow")
    output.line(f"     {plural(both, 'case')} in both")


def _show(output: Output, finding: ChangeCause, *, everything: bool) -> None:
    """Print a cause with its shortest trace, and its consequences as numbers, or each change."""
    from deepstack_harness.runs.report.tables import rerun_command

    output.line()
    style = {"regression": "red", "missing": "red", "improvement": "yellow"}.get(finding.kind, "")
    _paragraph(output, "", f"{finding.kind}: {finding.title}", style)
    subjects = ", ".join(
        f"{subject} {number}" if len(finding.subjects) > 1 else subject
        for subject, number in finding.subjects.items()
    )
    where = f"of {subjects}; arms {', '.join(finding.arms)}" if subjects else ""
    _paragraph(output, "  in        ", f"{plural(len(finding.cases), 'case')} {where}")
    histories = {change.since for change in finding.changes} - {"OLD"}
    if histories:
        _paragraph(output, "  since     ", ", ".join(sorted(histories)))
    if finding.shortest:
        _paragraph(output, "  shortest  ", f"'{finding.shortest.trace}'")
        if finding.detail:
            label = "before" if finding.kind is ChangeKind.IMPROVEMENT else "seen"
            _paragraph(output, f"  {label:<8}  ", shortened(one_line(finding.detail), 300))
    if with_it := "; ".join(_consequences(finding)):
        _paragraph(output, "  with it   ", with_it + ("" if everything else "; --all lists them"))
    command = rerun_command(finding.shortest) if finding.shortest else ""
    if command and finding.kind not in (ChangeKind.NEW, ChangeKind.BEHAVIOUR):
        output.line(f"  play it   {one_line(command)}")
    if everything:
        _show_changes(output, list(finding.marked))


def _consequences(finding: ChangeCause) -> Iterator[str]:
    """Iterate over the consequences by kind: `3 missing (R5 2, R7 1)`."""
    for kind, counts in finding.counted().items():
        metrics = ", ".join(f"{metric} {number}" for metric, number in counts.items())
        yield f"{_counted(sum(counts.values()), kind)} ({metrics})"


def _paragraph(output: Output, lead: str, text: str, style: str = "") -> None:
    """Print text that goes on below its beginning, at most 80 columns wide."""
    indent = " " * len(lead)
    for line in textwrap.wrap(
        text, _WIDTH, initial_indent=lead, subsequent_indent=indent or "  ", break_long_words=False,
        break_on_hyphens=False,
    ):  # fmt: skip
        output.line(line, style)


def _show_changes(output: Output, changes: Sequence[Change]) -> None:
    columns = [Column(11), Column(11), Column(24), Column(0)]
    output.row(columns, ["change", "of", "before -> now", "where"], "dim")
    for change in changes:
        since = "" if change.since == "OLD" else f" (since {change.since})"
        cells = [change.kind, change.metric, f"{change.before} -> {change.after}", change.where + since]
        output.row(columns, cells, "dim" if change.consequence else "")


def _history(args: Namespace, output: Output, pair: Sequence[StoredRun]) -> list[StoredRun]:
    """Return the runs of the history but for the two that are compared."""
    if not args.history:
        return []
    from deepstack_harness.runs.frames import read_history

    runs, notes = read_history(args.history)
    for note in notes:
        output.line(note, "yellow")
    return [run for run in runs if run.started not in {stored.started for stored in pair}]


def _show_seconds(output: Output, old: StoredRun, new: StoredRun) -> None:
    from deepstack_harness.runs.compare import seconds

    both = seconds(old, new)
    before, now = sum(earlier for _, earlier, _ in both), sum(later for *_, later in both)
    if before:
        output.line(
            f"time, not judged: {now:.1f} s for {len(both)} cases in both runs, {before:.1f} s before"
        )
    for where, earlier, later in both[:_SLOWEST]:
        if later > earlier:
            output.line(f"  {later:.2f} s, before {earlier:.2f} s: {where}", "dim")
