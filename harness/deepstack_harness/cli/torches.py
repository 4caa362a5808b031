"""`run --torch V --torch W`: the same matrix under several torches, and what changed from one to the next.

Each torch has an environment of its own (`deepstack_harness.runs.environments`) and a run of its own, in a
folder below `--out`, which a process under that interpreter plays; so one is resumed without the others.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from io import UnsupportedOperation
from pathlib import Path
from typing import IO, TYPE_CHECKING

from deepstack_harness.cli.arguments import resumable
from deepstack_harness.cli.output import progress
from deepstack_harness.cli.versions import VersionLoop, listed_releases
from deepstack_harness.document.blocks import (
    BLANK,
    Column,
    Document,
    Heading,
    Line,
    TextTable,
    outcome,
    table_line,
)
from deepstack_harness.errors import ExitCode, MachineError
from deepstack_harness.runs.environments import (
    TORCH,
    TorchHome,
    chosen_releases,
    is_interpreter,
    keep_newest,
    make_home,
    named_home,
)
from deepstack_harness.text import one_line, plural
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.supervised import Command, run_command

if TYPE_CHECKING:
    from packaging.version import Version

    from deepstack_harness.runs.torch_changes import VersionTable

_NAME = 40
"""Columns of a name in the table; a longer one goes on below."""
_NO_LIMITS = Limits(call_s=None, output=None)
"""Each case of a run has its own limits."""


def run_torches(args: Namespace, folder: Path) -> Document[ExitCode]:
    """Play the matrix under each torch of `args.torch`, and show what changed from one to the next.

    Exit 1 where a version has something unexpected, or a regression to the one before it; 3 where one could
    not be played.  Raises `UsageError` for what names no torch.
    """
    runs: list[Path] = []

    def play(target: TorchHome | Version) -> Document:
        with progress("making an environment") as say:
            home = target if isinstance(target, TorchHome) else make_home(target, say)
        same = sum(run.name == home.name or run.name.startswith(f"{home.name}-") for run in runs)
        # Two interpreters with one torch get different numbers.
        of_version = folder / (f"{home.name}-{same + 1}" if same else home.name)
        yield BLANK
        yield Heading(f"torch {home.torch} ({home.python}) into {of_version}")
        runs.append(of_version)
        if why := (yield from _play(args, home, of_version)):
            raise MachineError(why)

    loop: VersionLoop[TorchHome | Version, None] = VersionLoop(_targets(args.torch))
    for target in loop.versions:
        yield from loop.judge(target, play(target))
        if target in loop.refused:
            yield Line(f"torch {target}: {loop.refused[target]}", "red")
    good = yield from _show(runs)
    if args.keep is not None:
        for gone in keep_newest(args.keep):
            yield Line(f"removed {gone}")
    yield BLANK
    for target, why in loop.refused.items():
        yield Line(f"not played: torch {target}: {why}", "red")
    yield outcome(f"{plural(len(runs), 'version')} in {folder}", good=good and not loop.refused)
    if loop.refused:
        return ExitCode.MACHINE
    return ExitCode.HOLDS if good else ExitCode.BROKEN


def _targets(texts: Sequence[str]) -> list[TorchHome | Version]:
    """Return an interpreter or a release for each text; the index is queried once, or not for paths."""
    releases: list[Version] = []
    if not all(map(is_interpreter, texts)):
        listed, yanked = listed_releases(TORCH)
        releases = [version for version in listed if version not in yanked]
    # All of them, before anything is made: a mistake in the last one must not cost the first ones.
    homes: list[TorchHome | Version] = []
    for text in texts:
        homes += [named_home(text)] if is_interpreter(text) else chosen_releases([text], releases)
    return list(dict.fromkeys(homes))


def _play(args: Namespace, home: TorchHome, folder: Path) -> Document[str]:
    """Play the matrix under another interpreter; return why it did not come to its end, or nothing."""
    from deepstack_harness.runs.store import read_stored

    with resumable(args, folder.parent, "to play the cases that are left"):
        why = run_under(home, _words(args, folder), None if args.quiet or args.json == "-" else _stdout())
    if not why:
        yield from read_stored(folder).rows
    return why


def run_under(home: TorchHome, words: Sequence[str], stream: IO[bytes] | None = None) -> str:
    """Run a command of this harness in a process under another interpreter; return why it failed, or nothing.

    It prints to `stream`, and nothing without one; a command that judges may end with 1.
    """
    command = [str(home.python), "-m", "deepstack_harness", *words, *([] if stream else ["--quiet"])]
    end = run_command(Command(command, environment=home.environment, output=stream), _NO_LIMITS)
    if end.status in (ExitCode.HOLDS, ExitCode.BROKEN):
        return ""
    return f"{end.reason}{': ' if end.output else ''}{one_line(end.output)[-500:]}"


def _stdout() -> IO[bytes] | None:
    """Return our stdout for another process; None where it is no file, as in a test."""
    sys.stdout.flush()
    try:
        sys.stdout.fileno()
    except (UnsupportedOperation, ValueError):
        return None
    return sys.stdout.buffer


def _words(args: Namespace, folder: Path) -> list[str]:
    """Return the words of `run` for one version: those that were typed, less the versions."""
    words = ["run", *args.selection]
    words += ["--tier", args.tier, "-n", str(args.workers), "--executor", args.executor, "--out", str(folder)]
    words += ["--case-seconds", f"{args.case_seconds:g}", "--memory", f"{args.memory:g}"]
    for option, values in (("--device", args.devices or []), ("--buffer", args.buffers or [])):
        words += [word for value in values for word in (option, value)]
    words += ["--shard", args.shard] if args.shard else []
    flags = {
        "--cheapest-first": args.cheapest_first,
        "--resume": args.resume,
        "--no-sandbox": args.no_sandbox,
    }
    return words + [option for option, is_set in flags.items() if is_set]


def _show(folders: Sequence[Path]) -> Document[bool]:
    """Show the table over runs that are there; return whether nothing is unexpected, worse or missing."""
    from deepstack_harness.contract.verdicts import UNEXPECTED
    from deepstack_harness.runs.compare import RED
    from deepstack_harness.runs.store import read_stored
    from deepstack_harness.runs.torch_changes import version_table

    runs = [read_stored(folder) for folder in folders if (folder / "run.json").exists()]
    good = bool(runs) and not any(row.verdict in UNEXPECTED for run in runs for row in run.rows)
    if len(runs) < 2:
        return good
    table = version_table(runs)
    yield BLANK
    yield from show_versions(table)
    for line in table.lines:
        cells = dict(zip(table.versions, line.cells, strict=True))
        yield {"system": "versions", "section": line.section, "name": line.name.strip(), **cells}
    return good and not any(cause.kind in RED for causes in table.causes for cause in causes)


def show_versions(table: VersionTable) -> Document:
    """Print the table of versions, at most 80 columns wide with up to four of them."""
    yield Heading("What does this torch change? Each version against the one before it.")
    for note in table.notes:
        yield Line(note, "yellow")
    width = max(9, *map(len, table.versions))
    columns = [Column("torch", _NAME), *(Column(version, width, right=True) for version in table.versions)]
    yield BLANK
    yield TextTable(columns)
    section = ""
    for line in table.lines:
        if line.section != section:
            section = line.section
            yield Heading(section)
        style = line.kind.style if line.kind else ""
        if any(line.cells):
            yield table_line(columns, [f"  {line.name}", *line.cells], style)
        else:
            yield Line(f"  {line.name}", style)
    if not table.causes or not any(table.causes):
        yield Line("nothing changed")
