"""`python -m deepstack_harness.nightly.untested FOLDER`: which lines of the package no test of ours runs.

Runs the tests of the harness under coverage.py, in the parent, in each child process that ends by itself,
such as a command, and in workers (`count_workers`). The product's cases are left out: they compile for most
of their time, and the tests reach the code around them.
Writes `coverage.json`, `untested.txt`, on each line a file and its lines that never ran and that
`cases/selftest/untested.toml` does not justify, and `stale.txt`, entries there that no longer apply.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deepstack_harness.catalogue.data_files import data
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.nightly.justified import (
    Justification,
    counted_file,
    read_justifications,
    stale,
    unjustified,
)

_PACKAGE = Path(__file__).parents[1]
_PLUGIN = "deepstack_harness.nightly.count_workers"


def settings(folder: Path) -> str:
    """Return the settings of coverage.py: data of each process in `folder`, child processes included."""
    return "\n".join(
        (
            "[run]",
            # `combine` reads each file of the data's folder whose name begins as the data's.
            f"data_file = {folder / 'counted' / 'lines'}",
            f"source = {_PACKAGE}",
            "omit =",
            # Text that becomes a user's program; jinja runs code of its own under the name of the template.
            f"    {_PACKAGE / 'scripts' / 'templates' / '*'}",
            # It is imported before lines are counted.
            f"    {_PACKAGE / 'nightly' / 'count_workers.py'}",
            "disable_warnings = already-imported",
            "parallel = true",
            # A supervisor forks the worker, and ends by os._exit.
            "patch =",
            "    subprocess",
            "    fork",
            "    _exit",
            f"plugins = {_PLUGIN}",
            f"[{_PLUGIN}]",
            f"package = {_PACKAGE}",
            f"dumps = {folder / 'workers'}",
            "[report]",
            "exclude_also =",
            "    if TYPE_CHECKING:",
            "    @overload",
            "    raise NotImplementedError",
            r"    ^\s*\.\.\.$",
            "",
        )
    )


def commands(folder: Path, tests: Sequence[str]) -> Iterator[list[str]]:
    """Yield the commands that run the tests, combine what the processes counted, and write it as JSON."""
    rc = f"--rcfile={folder / 'coverage.ini'}"
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--deepstack-profile", "ci", *tests]
    coverage = [sys.executable, "-m", "coverage"]
    yield [*coverage, "run", rc, *pytest]
    yield [*coverage, "combine", rc, "--quiet", str(folder / "counted")]
    yield [*coverage, "json", rc, "--quiet", "-o", str(folder / "coverage.json")]


def untested(
    report: Mapping[str, Any], entries: Sequence[Justification] = (), package: Path = _PACKAGE
) -> tuple[list[str], list[str]]:
    """Return "path: share of its lines that ran, and the lines that did not" by file, and stale entries.

    The file with the most lines is first. `report` is what `coverage json` writes.
    """
    shares = {
        _inside(name, package): seen["summary"]["percent_covered"] for name, seen in report["files"].items()
    }
    files = [counted_file(_inside(name, package), seen) for name, seen in report["files"].items()]
    found = sorted(unjustified(files, entries), key=lambda file: (-len(file.missing), file.path))
    lines = [f"{file.path}: {shares[file.path]:.0f} % ran, not {_spans(file.missing)}" for file in found]
    return lines, list(stale(files, entries))


def _inside(name: str, package: Path) -> str:
    """Return a path of the report as a path in the package."""
    return Path(os.path.relpath(Path(name).resolve(), package)).as_posix()


def _spans(lines: Sequence[int]) -> str:
    """Return line numbers as text, neighbours joined: `3, 7-9`."""
    spans: list[list[int]] = []
    for line in sorted(lines):
        if spans and line == spans[-1][1] + 1:
            spans[-1][1] = line
        else:
            spans.append([line, line])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in spans)


def _write(folder: Path, report: Mapping[str, Any], entries: Sequence[Justification]) -> str:
    """Write both lists, and return a sentence about each."""
    lines, obsolete = untested(report, entries)
    for name, found in (("untested.txt", lines), ("stale.txt", obsolete)):
        (folder / name).write_text("".join(f"{line}\n" for line in found))
    share = report["totals"]["percent_covered"]
    return (
        f"{share:.1f} % of the lines ran; {len(lines)} files have lines that neither ran nor are justified: "
        f"{folder}/untested.txt\n{len(obsolete)} justifications no longer apply: {folder}/stale.txt"
    )


def main(words: Sequence[str]) -> ExitCode:
    """Measure; BROKEN when a test failed, and the list is written all the same."""
    from deepstack_harness.nightly.count_workers import collect  # coverage is an extra

    if not words:
        raise UsageError(
            "name the folder to write: python -m deepstack_harness.nightly.untested FOLDER [TEST ..]"
        )
    folder, root = Path(words[0]).resolve(), data("pyproject.toml").parent
    entries = read_justifications(root / "cases" / "selftest" / "untested.toml")
    for name in ("counted", "workers"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "coverage.ini").write_text(settings(folder))
    tests = list(words[1:]) or [str(root / "cases" / "selftest")]
    run, *others = commands(folder, tests)
    tested = subprocess.run(run, cwd=root, check=False).returncode
    collect(folder / "workers", folder / "counted")
    for command in others:
        subprocess.run(command, cwd=root, check=True)
    print(_write(folder, json.loads((folder / "coverage.json").read_text()), entries))
    return ExitCode.HOLDS if tested == 0 else ExitCode.BROKEN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
