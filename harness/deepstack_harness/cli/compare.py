"""`compare`: what changed between two runs, and over the runs before them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepstack_harness.cli.arguments import add_removed
from deepstack_harness.document.blocks import BLANK, Column, Document, Heading, Line, TextTable, outcome
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.runs.compare import ChangeKind
from deepstack_harness.text import one_line, plural, shortened

if TYPE_CHECKING:
    from deepstack_harness.runs.causes import ChangeCause
    from deepstack_harness.runs.store import StoredRun


_SLOWEST = 3
"""Cases that are listed of those that became slower; the sums are over all."""


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


def run(args: Namespace) -> Document[ExitCode]:
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
    history: list[StoredRun] = []
    if args.history:
        from deepstack_harness.runs.frames import read_history

        runs, notes = read_history(args.history)
        for note in notes:
            yield Line(note, "yellow")
        history = [run for run in runs if run.started not in (old.started, new.started)]
    causes = findings(compare(old, new, history), old, new)
    settings = different_settings(old.settings, new.settings) if old.abouts and new.abouts else []
    for finding in causes:
        yield from finding.marked
    summary = _summary(causes)
    if causes:
        yield Heading(summary)
    yield from _show_runs(old, new)
    for setting in settings:
        yield Line(f"setting {setting}", "yellow", lead="     ")
    if version_of(old) != version_of(new):
        from deepstack_harness.cli.torches import show_versions

        yield BLANK
        yield from show_versions(version_table([old, new]))
    for finding in causes:
        yield from _show(finding, everything=args.all)
    yield BLANK
    yield from _show_seconds(old, new)
    good = not new.unfinished and not any(finding.kind in RED for finding in causes)
    # The last line names the first cause: a night shows no more of this command.
    closing = [summary, *(finding.title for finding in causes[:1] if finding.kind in RED)]
    closing += (
        [f"other settings: {', '.join(setting.partition(':')[0] for setting in settings)}"]
        if settings
        else []
    )
    yield outcome("; ".join([*closing, *(["NEW is unfinished"] if new.unfinished else [])]), good=good)
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


def _show_runs(old: StoredRun, new: StoredRun) -> Document:
    """Print what each run was measured with, and how far it came where it did not come to its end."""
    both = len({case.case for case in old.cases} & {case.case for case in new.cases})
    for name, stored in (("OLD", old), ("NEW", new)):
        same = stored is new and new.versions == old.versions and new.versions
        versions = "the same versions" if same else "; ".join(stored.versions) or "no versions are stored"
        yield Line(f"{stored.name}: {versions}", lead=f"{name}  ")
        if stored.unfinished:
            others = {case.case for case in (new if stored is old else old).cases}
            missing = len(others - {case.case for case in stored.cases})
            which = "old" if stored is old else "new"
            rest = f"the {which} run did not get to {plural(missing, 'case')}, which are not compared"
            yield Line(f"unfinished: {stored.unfinished}; {rest}", "yellow", lead="     ")
    yield Line(f"     {plural(both, 'case')} in both")


def _show(finding: ChangeCause, *, everything: bool) -> Document:
    """Print a cause with its shortest trace, and its consequences as numbers, or each change."""
    from deepstack_harness.runs.report.tables import rerun_command

    yield BLANK
    yield Line(f"{finding.kind}: {finding.title}", finding.kind.style)
    subjects = ", ".join(
        f"{subject} {number}" if len(finding.subjects) > 1 else subject
        for subject, number in finding.subjects.items()
    )
    where = f"of {subjects}; arms {', '.join(finding.arms)}" if subjects else ""
    yield Line(f"{plural(len(finding.cases), 'case')} {where}", lead="  in        ")
    histories = {change.since for change in finding.changes} - {"OLD"}
    if histories:
        yield Line(", ".join(sorted(histories)), lead="  since     ")
    if finding.shortest:
        yield Line(f"'{finding.shortest.trace}'", lead="  shortest  ")
        if finding.detail:
            label = "before" if finding.kind is ChangeKind.IMPROVEMENT else "seen"
            yield Line(shortened(one_line(finding.detail), 300), lead=f"  {label:<8}  ")
    consequences = []
    for kind, counts in finding.counted().items():
        metrics = ", ".join(f"{metric} {number}" for metric, number in counts.items())
        consequences.append(f"{_counted(sum(counts.values()), kind)} ({metrics})")
    if consequences:
        listed = "" if everything else "; --all lists them"
        yield Line(f"{'; '.join(consequences)}{listed}", lead="  with it   ")
    command = rerun_command(finding.shortest) if finding.shortest else ""
    if command and finding.kind not in (ChangeKind.NEW, ChangeKind.BEHAVIOUR):
        yield Line(lead="  play it   ", command=one_line(command))
    if everything:
        rows = []
        for change in finding.marked:
            since = "" if change.since == "OLD" else f" (since {change.since})"
            cells = [change.kind, change.metric, f"{change.before} -> {change.after}", change.where + since]
            rows.append((cells, "dim" if change.consequence else ""))
        yield TextTable([Column("change"), Column("of"), Column("before -> now"), Column("where")], rows)


def _show_seconds(old: StoredRun, new: StoredRun) -> Document:
    from deepstack_harness.runs.compare import seconds

    both = seconds(old, new)
    before, now = sum(earlier for _, earlier, _ in both), sum(later for *_, later in both)
    if before:
        yield Line(f"time, not judged: {now:.1f} s for {len(both)} cases in both runs, {before:.1f} s before")
    for where, earlier, later in both[:_SLOWEST]:
        if later > earlier:
            yield Line(f"  {later:.2f} s, before {earlier:.2f} s: {where}", "dim")
