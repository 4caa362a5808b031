"""`python -m deepstack_harness.nightly.untested FOLDER`: which lines of the package no test of ours runs.

Runs the tests of the harness under coverage.py, in the parent and in each child process that ends by itself,
such as a command. `Worker.close` kills its worker, which loses what it counted. Tests that compile are left
out: tracing makes Dynamo and Inductor several times slower, and other tests reach the code around them.
Writes `coverage.json` and `untested.txt`, on each line a file and its lines that never ran.
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

_PACKAGE = Path(__file__).parents[1]
COMPILING = ("arms", "families", "kernels", "probes", "scripts", "torch_compat")
"""Packages whose tests compile, and are run by the stage `tests` alone."""


def settings(folder: Path) -> str:
    """Return the settings of coverage.py: data of each process in `folder`, child processes included."""
    return "\n".join(
        (
            "[run]",
            f"data_file = {folder / 'coverage'}",
            f"source = {_PACKAGE}",
            "parallel = true",
            # A supervisor forks the worker, and ends by os._exit.
            "patch =",
            "    subprocess",
            "    fork",
            "    _exit",
            "[report]",
            "exclude_also =",
            "    if TYPE_CHECKING:",
            "    @overload",
            r"    ^\s*\.\.\.$",
            "",
        )
    )


def commands(folder: Path, root: Path, tests: Sequence[str]) -> Iterator[list[str]]:
    """Yield the commands that run the tests, combine what the processes counted, and write it as JSON."""
    rc = f"--rcfile={folder / 'coverage.ini'}"
    left_out = [f"--ignore={root / 'cases' / 'selftest' / name}" for name in COMPILING]
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--deepstack-profile", "ci", *left_out, *tests]
    coverage = [sys.executable, "-m", "coverage"]
    yield [*coverage, "run", rc, *pytest]
    yield [*coverage, "combine", rc, "--quiet", str(folder)]
    yield [*coverage, "json", rc, "--quiet", "-o", str(folder / "coverage.json")]


def untested(report: Mapping[str, Any], package: Path = _PACKAGE) -> list[str]:
    """Return "path: share of its lines that ran, and the lines that did not" for each file, the worst first.

    `report` is what `coverage json` writes.
    """
    found = []
    for name, seen in report["files"].items():
        missing: list[int] = seen["missing_lines"]
        if missing:
            path = Path(os.path.relpath(Path(name).resolve(), package)).as_posix()
            share = seen["summary"]["percent_covered"]
            found.append((-len(missing), f"{path}: {share:.0f} % ran, not {_spans(missing)}"))
    return [line for _, line in sorted(found)]


def _spans(lines: Sequence[int]) -> str:
    """Return line numbers as text, neighbours joined: `3, 7-9`."""
    spans: list[list[int]] = []
    for line in sorted(lines):
        if spans and line == spans[-1][1] + 1:
            spans[-1][1] = line
        else:
            spans.append([line, line])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in spans)


def main(words: Sequence[str]) -> ExitCode:
    """Measure; BROKEN when a test failed, and the list is written all the same."""
    if not words:
        raise UsageError(
            "name the folder to write: python -m deepstack_harness.nightly.untested FOLDER [TEST ..]"
        )
    folder, root = Path(words[0]).resolve(), data("pyproject.toml").parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "coverage.ini").write_text(settings(folder))
    tests = list(words[1:]) or [str(root / "cases" / "selftest")]
    run, *others = commands(folder, root, tests)
    tested = subprocess.run(run, cwd=root, check=False).returncode
    for command in others:
        subprocess.run(command, cwd=root, check=True)
    report = json.loads((folder / "coverage.json").read_text())
    lines = untested(report)
    (folder / "untested.txt").write_text("".join(f"{line}\n" for line in lines))
    share = report["totals"]["percent_covered"]
    print(
        f"{share:.1f} % of the lines ran; {len(lines)} files have lines that did not: {folder}/untested.txt"
    )
    return ExitCode.HOLDS if tested == 0 else ExitCode.BROKEN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
