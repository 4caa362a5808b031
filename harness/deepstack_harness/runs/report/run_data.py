"""A run as reports use it, its summary, and the form of a figure.

`load_run` reads a run's folder with the files of its night and earlier runs, and cleans every text.
`summarise` counts judgements by verdict, and how far the run came. Nothing is written.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from deepstack_harness.contract.case import BufferKind
from deepstack_harness.contract.verdicts import UNEXPECTED, WORST_FIRST, Row, Verdict
from deepstack_harness.errors import UsageError
from deepstack_harness.files import read_regular
from deepstack_harness.runs.causes import ChangeCause, findings
from deepstack_harness.runs.compare import compare
from deepstack_harness.runs.nights import EndedStage, read_summary
from deepstack_harness.runs.records import About, CaseRecord
from deepstack_harness.runs.store import (
    StoredRun,
    different_settings,
    read_nights,
    read_rows,
    read_stored,
)
from deepstack_harness.runs.torch_changes import VersionTable, version_table
from deepstack_harness.text import clean, plural, shortened

MOST_FILES = 10_000
"""Files of a fuzz folder that are looked at."""


@dataclass(frozen=True)
class Changes:
    """Causes of the differences from the run before this one in the history, which is named `since`.

    `settings` are those that differ, a sentence for each.
    """

    since: str
    findings: tuple[ChangeCause, ...]
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunData:
    """Everything that a report shows.

    `about` has one `run.json` per shard; `stages` are those of the night that the run is part of.
    Files that a folder does not have are None.  `notes` are what was left out, and why.

    >>> run = RunData("mine", about=(), rows=(), cases={}, notes=("nothing was run",))
    >>> run.kernels is None, run.notes
    (True, ('nothing was run',))
    """

    name: str
    about: tuple[About, ...]
    rows: tuple[Row, ...]
    cases: Mapping[str, CaseRecord]
    started: str = ""
    kernels: tuple[Mapping[str, Any], ...] | None = None
    audit: tuple[Row, ...] | None = None
    fuzz: tuple[str, ...] | None = None
    stages: tuple[EndedStage, ...] | None = None
    notes: tuple[str, ...] = ()
    history: tuple["RunData", ...] | None = None
    changes: "Changes | None" = None
    versions: VersionTable | None = None
    """What changed from the run that it is held against to this one, as a table."""
    mixed: str = ""
    """Why the rows are not of one environment (`StoredRun.mixed`); empty where they are."""

    @property
    def finished(self) -> bool:
        """Return whether every shard that is here came to its end."""
        return all(about.finished for about in self.about)

    @property
    def planned(self) -> int:
        """The number of cases that the shards here were to play."""
        return sum(about.planned.cases for about in self.about)

    @property
    def when(self) -> str:
        """`started` for people: 2026-11-20 02:00 UTC."""
        try:
            began = datetime.fromisoformat(self.started)
        except ValueError:
            return self.started or "at an unknown time"
        return began.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def load_run(folder: Path, history: Path | None = None, against: Sequence[Path] = ()) -> RunData:
    """Load the run in `folder`, finished or killed, with the runs in the folders of `history`.

    The runs of `against` are of other versions, as a rule of torch, the oldest first.

    Raises `UsageError` for a folder without a run, and for a file that does not read.
    """
    stored = read_stored(folder)
    stages = _stages(folder)
    notes = [*stored.notes]
    for stage in stages or ():
        if not stage.held:
            why = f"; {shortened(stage.why, 300)}" if stage.why else ""
            notes.append(f"stage {stage.stage} of the night: {stage.outcome}{why}")
    earlier = None if history is None else _earlier(stored, history, notes)
    before = [run for run in earlier or () if run.started < stored.started]
    audit = folder / "audit.jsonl"
    return replace(
        _run_data(stored),
        kernels=_json_lines(folder / "kernels.jsonl"),
        audit=clean(read_rows(audit)) if audit.exists() else None,
        fuzz=_file_names(folder / "fuzz"),
        stages=stages,
        notes=clean(tuple(notes)),
        history=None if earlier is None else tuple(_with_stages(night, history) for night in earlier),
        changes=_changes(before[-1], stored) if before else None,
        versions=clean(version_table([*map(read_stored, against), stored])) if against else None,
    )


def _changes(before: StoredRun, now: StoredRun) -> Changes:
    return Changes(
        clean(before.name),
        clean(tuple(findings(compare(before, now), before, now))),
        clean(tuple(different_settings(before.settings, now.settings))),
    )


def _run_data(stored: StoredRun) -> RunData:
    """Return a stored run with all its text cleaned, without the other files of its folder."""
    # Workers end in any order: the same cases are to give the same report.
    cases = {case.case: case for case in sorted(clean(stored.cases), key=attrgetter(*_ORDER))}
    order = {name: place for place, name in enumerate(cases)}
    rows = tuple(sorted(clean(stored.rows), key=lambda row: order[row.case]))
    return RunData(
        clean(stored.name),
        clean(stored.abouts),
        rows,
        cases,
        clean(stored.started),
        mixed=clean(stored.mixed),
    )


def _with_stages(stored: StoredRun, history: Path | None) -> RunData:
    """Return an earlier run with the stages of its night, where they can be read.

    Its rows and cases are counted and never shown, so that their texts are not cleaned: of thirty nights
    that took a minute.
    """
    texts = clean(replace(stored, rows=(), cases=()))
    cases = {case.case: case for case in stored.cases}
    run = RunData(texts.name, texts.abouts, stored.rows, cases, texts.started, mixed=clean(stored.mixed))
    stages = None
    with suppress(UsageError):
        stages = _stages(history / stored.name) if history else None
    return replace(run, stages=stages)


_ORDER = ("family", "arm", "device", "subject", "dtype", "trace", "case")
"""Fields by which cases are sorted."""


def _stages(folder: Path) -> tuple[EndedStage, ...] | None:
    """Return the stages of the night that this run is part of; None where it is part of none."""
    return tuple(clean(read_summary(folder))) if (folder / "nightly.json").exists() else None


def _earlier(stored: StoredRun, history: Path, notes: list[str]) -> list[StoredRun]:
    """Return the other runs in a folder, oldest first; those that do not read are named in `notes`."""
    if not history.is_dir():
        raise UsageError(f"'{history}' is not a folder; --history takes a folder that holds folders of runs")
    runs, left_out = read_nights(history)
    notes += left_out
    return [run for run in runs if run.started != stored.started]


def _json_lines(path: Path) -> tuple[Mapping[str, Any], ...] | None:
    """Decode JSON lines; None without a file.  A torn last line, as that of a killed run, is ignored."""
    if not path.exists():
        return None
    lines = read_regular(path).splitlines(keepends=True)
    whole = [line for line in lines if line.strip() and (line.endswith(b"\n") or line != lines[-1])]
    try:
        return tuple(clean(msgspec.json.decode(line, type=dict[str, Any])) for line in whole)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"{path} is not a file of JSON lines: {error}") from None


def _file_names(folder: Path) -> tuple[str, ...] | None:
    if not folder.is_dir():
        return None
    # Bounded: a link may lead to a folder of any size.
    files = sorted(path for path in islice(folder.rglob("*"), MOST_FILES) if path.is_file())
    return tuple(clean(path.relative_to(folder).as_posix()) for path in files)


@dataclass(frozen=True)
class Summary:
    """Judgements by verdict, cases played of those planned, and whether the run came to its end."""

    counts: dict[Verdict, int]
    cases: int
    planned: int
    finished: bool
    stages: tuple[str, ...] = ()
    """Stages of the night that did not hold, each with its outcome."""
    mixed: bool = False
    """True where the rows are not of one environment."""

    @property
    def unexpected(self) -> int:
        """The number of judgements that somebody has to look at."""
        return sum(self.counts[verdict] for verdict in UNEXPECTED)

    @property
    def good(self) -> bool:
        """Return whether nothing is unexpected, nothing is left to play, and the whole night held."""
        return not self.unexpected and self.finished and self.cases > 0 and not self.stages and not self.mixed

    @property
    def headline(self) -> str:
        """One line: unexpected judgements, the progress, and the stages of its night that did not hold."""
        counted = [
            f"{self.counts[verdict]} {verdict}"
            for verdict in WORST_FIRST
            if verdict in UNEXPECTED and self.counts[verdict]
        ]
        text = f"{self.unexpected} unexpected: {', '.join(counted)}" if counted else "nothing unexpected"
        if not self.finished:
            text = f"{self.progress}; {text} in them"
        if self.mixed:
            text = f"{text}; not one environment"
        return f"the night: {', '.join(self.stages)}; the run: {text}" if self.stages else text

    @property
    def progress(self) -> str:
        """The number of cases that were played, in words."""
        if self.finished:
            return plural(self.cases, "case")
        return f"stopped before its end, {self.cases} of {self.planned} cases were played"

    @property
    def expected(self) -> str:
        """Expected judgements in words; what does not apply is only in the matrix."""
        return f"{self.counts[Verdict.PASS]:,} kept, {self.counts[Verdict.XFAIL]:,} broken as expected"


def tested(run: RunData) -> str:
    """Return what was tested, in a sentence: buffers and sources, families, arms, versions, device, when."""
    cases, rows = list(run.cases.values()), (*run.rows, *(run.audit or ()))
    ours = [case.buffer.name for case in cases if case.buffer.kind is not BufferKind.SOURCE]
    what = [f"the buffers {_some(ours)}"] if ours else []
    if sources := [row.source for row in rows if row.source]:
        what.append(f"classes of {_some(sources)}")
    if not what:
        return f"Tested {run.when}: nothing."
    arms = plural(len({case.arm for case in cases}), "arm")
    machines = [name for about in run.about for name in about.environment.device or (about.environment.cpu,)]
    versions = " and ".join(dict.fromkeys(", ".join(about.versions) for about in run.about))
    families = _some(case.family.partition(":")[0] for case in cases)
    return (
        f"Tested {run.when}: {' and '.join(what)}; {families} under {arms} on "
        f"{_some(case.device for case in cases)} ({_some(machines)}); with {versions or 'unknown versions'}."
    )


_MOST_NAMES = 6
"""Names that a sentence lists; it counts the others."""


def _some(names: Iterable[str]) -> str:
    """Return the first names, each once, and how many more there are."""
    each = list(dict.fromkeys(filter(None, names)))
    more = f" and {len(each) - _MOST_NAMES} more" if len(each) > _MOST_NAMES else ""
    return (", ".join(each[:_MOST_NAMES]) or "none") + more


def summarise(run: RunData) -> Summary:
    """Count the judgements of a run."""
    counts = Counter(row.verdict for row in run.rows)
    stages = tuple(stage.in_short for stage in run.stages or () if stage.wrong)
    return Summary(
        {verdict: counts[verdict] for verdict in Verdict}, len(run.cases), run.planned, run.finished, stages,
        mixed=bool(run.mixed),
    )  # fmt: skip


MOST_ROWS = 400
"""Lines of a table that a page shows; the worst come first, and it counts all."""

Value = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Columns by name, rows of texts and figures, the worst first.  None is shown as nothing.

    >>> Table(("case", "seconds"), [("a", 1.5), ("b", None)]).columns
    ('case', 'seconds')
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[Value, ...]]

    @property
    def shown(self) -> Sequence[tuple[Value, ...]]:
        """The rows that a page has room for."""
        return self.rows[:MOST_ROWS]


@dataclass(frozen=True)
class Figure:
    """`key` is its place in the page, `says` how to read it; `absent` why there is no table.

    `svg` is a plot as an SVG element, every text in it escaped.

    >>> table = Table(("case", "seconds"), [("a", 1.5), ("b", None)])
    >>> Figure("times", "Times", "Seconds of each case.", table).absent
    ''
    """

    key: str
    title: str
    says: str
    table: Table | None = None
    svg: str | None = None
    absent: str = ""
