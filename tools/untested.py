"""`python -m tools.untested FOLDER [TEST ..]`: list the lines of the package that no test of ours runs.

Runs the tests of the harness under coverage.py: in the parent, in each child process that ends by itself,
such as a command, and in workers (`count_workers`). The product's cases are left out: they compile for most
of their time, and the tests reach the code around them.

Writes `coverage.json`; `untested.txt`, on each line a file and its lines that did not run and that no entry
of `cases/selftest/untested.toml` justifies; and `stale.txt`, entries there that no longer apply. An entry is
for lines that these tests cannot run or count, and says why.

With `--by-test` it also writes `needless.txt`: the tests of a second and more that run no line which no other
test runs, with their processor seconds, the most expensive first. All of them can be left to the night
together, and the day runs the same lines. Lines are not all: what fails where such a test alone would see it
has to be caught by day all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

import deepstack_harness
from deepstack_harness.errors import ExitCode
from deepstack_harness.files import DataFile, data
from tools.test_costs import read_table

_PACKAGE = Path(deepstack_harness.__file__).parent
_PLUGIN = "tools.count_workers"


def main(words: Sequence[str]) -> ExitCode:
    """Measure; return BROKEN when a test failed, and write the lists all the same."""
    from tools.count_workers import collect  # coverage is an extra

    parser = argparse.ArgumentParser(prog="python -m tools.untested", description=__doc__)
    parser.add_argument("folder", type=Path, help="is written")
    parser.add_argument("tests", nargs="*", help="default: all of cases/selftest")
    parser.add_argument("--by-test", action="store_true", help="write needless.txt too; takes twice the time")
    options = parser.parse_args(words)
    folder, root = options.folder.resolve(), data("pyproject.toml").parent
    entries = JUSTIFIED.read(root / JUSTIFIED.name)
    for name in ("counted", "workers"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "coverage.ini").write_text(settings(folder, by_test=options.by_test))
    tests = options.tests or [str(root / "cases" / "selftest")]
    run, *others = commands(folder, tests)
    costs = folder / "costs.jsonl"
    if options.by_test:
        costs.unlink(missing_ok=True)
        run += ["-p", "tools.test_costs", f"--costs={costs}"]
    # Each process that is counted imports the plugin, wherever it was started.
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    tested = subprocess.run(run, cwd=root, env=environment, check=False).returncode
    collect(folder / "workers", folder / "counted")
    for command in others:
        subprocess.run(command, cwd=root, env=environment, check=True)
    print(_write(folder, json.loads((folder / "coverage.json").read_text()), entries))
    if options.by_test:
        lines = lines_by_test(folder / "counted" / "lines")
        seconds = {
            test: spent for test, (spent, *_) in read_table(costs.read_text().splitlines(), str).items()
        }
        found = "".join(f"{seconds[test]:6.1f} {test}\n" for test in needless(lines, seconds))
        (folder / "needless.txt").write_text(found)
    return ExitCode.HOLDS if tested == 0 else ExitCode.BROKEN


def settings(folder: Path, *, by_test: bool = False) -> str:
    """Return the settings of coverage.py: data of each process in `folder`, child processes included."""
    return "\n".join(
        (
            "[run]",
            # `combine` reads each file of the data's folder whose name begins as the data's.
            f"data_file = {folder / 'counted' / 'lines'}",
            f"source = {_PACKAGE}",
            "omit =",
            # Text that becomes a user's program; jinja runs code of its own under the name of the template.
            f"    {_PACKAGE / 'catalogue' / 'templates' / '*'}",
            f"    {_PACKAGE / 'models' / 'programs' / '*'}",
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
            *(["by_test = yes"] if by_test else []),
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


def lines_by_test(data: Path) -> dict[str, set[tuple[str, int]]]:
    """Return file and number of the lines that each test ran; those of "" ran in none."""
    from coverage import CoverageData

    counted = CoverageData(str(data))
    counted.read()
    lines = defaultdict[str, set[tuple[str, int]]](set)
    for path in counted.measured_files():
        for number, tests in counted.contexts_by_lineno(path).items():
            for test in tests:
                lines[test].add((path, number))
    return lines


def needless(
    lines: Mapping[str, set[tuple[str, int]]], seconds: Mapping[str, float], least: float = 1.0
) -> list[str]:
    """Return the tests of `least` seconds and more without which the same lines run, the dearest first.

    Of the others, those are retained first that run the most new lines for a second.
    """
    dear = {test for test in lines if seconds.get(test, 0.0) >= least}
    ran = set[tuple[str, int]]().union(*(lines[test] for test in lines.keys() - dear))
    new = {test: lines[test] - ran for test in dear}
    while any(new.values()):
        best = max(sorted(new), key=lambda test: len(new[test]) / seconds[test])
        added = new.pop(best)
        new = {test: own - added for test, own in new.items()}
    return sorted(new, key=lambda test: (-seconds[test], test))


class Justification(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entry: lines that run in `runs_in` alone, which are left out here, or whose counts are lost.

    `files` are patterns of paths in the package. With `functions`, patterns of qualified names, only those of
    the files are meant; "" is the code of the module itself. `machine` names the machine that the lines need:
    such an entry stays true where a night has that machine.
    """

    files: tuple[str, ...]
    reason: str
    runs_in: tuple[str, ...]
    functions: tuple[str, ...] = ()
    machine: str = ""

    def covers(self, path: str) -> bool:
        """Return whether a file of the package is among `files`."""
        return _matches(path, self.files)


JUSTIFIED = DataFile("cases/selftest/untested.toml", "a list of justified lines", "justified", Justification)


@dataclass(frozen=True)
class CountedFile:
    """Lines of one file that did not run, by the qualified name of their function; "" is the module."""

    path: str
    functions: Mapping[str, tuple[int, ...]]

    @property
    def missing(self) -> list[int]:
        """Line numbers, in order."""
        return sorted(line for lines in self.functions.values() for line in lines)


def untested(
    report: Mapping[str, Any], entries: Sequence[Justification] = (), package: Path = _PACKAGE
) -> tuple[list[str], list[str]]:
    """Return "path: share of its lines that ran, and the lines that did not" by file, and stale entries.

    The file with the most lines is first. `report` is what `coverage json` writes (7.6 and newer: with its
    regions `functions`).
    """
    shares: dict[str, float] = {}
    files: list[CountedFile] = []
    for name, counted in report["files"].items():
        path = Path(os.path.relpath(Path(name).resolve(), package)).as_posix()
        shares[path] = counted["summary"]["percent_covered"]
        functions = {name: tuple(one["missing_lines"]) for name, one in counted["functions"].items()}
        files.append(CountedFile(path, functions))
    left = sorted(_unjustified(files, entries), key=lambda file: (-len(file.missing), file.path))
    lines = [f"{file.path}: {shares[file.path]:.0f} % ran, not {_spans(file.missing)}" for file in left]
    return lines, list(_stale(files, entries))


def _unjustified(files: Sequence[CountedFile], entries: Sequence[Justification]) -> Iterator[CountedFile]:
    """Yield each file with lines that neither ran nor are justified, and only these lines."""
    for file in files:
        patterns = [entry.functions or ("*",) for entry in entries if entry.covers(file.path)]
        left = {
            name: lines
            for name, lines in file.functions.items()
            if lines and not any(_matches(name, functions) for functions in patterns)
        }
        if left:
            yield replace(file, functions=left)


def _stale(files: Sequence[CountedFile], entries: Sequence[Justification]) -> Iterator[str]:
    """Yield a sentence for each name in an entry that nothing has, or whose lines all ran."""
    for entry in entries:
        for pattern in entry.files:
            matching = [file for file in files if fnmatchcase(file.path, pattern)]
            if not matching:
                yield f"{pattern}: no such file; correct its entry"
            for file in matching if not entry.functions else ():
                if not file.missing and not entry.machine:
                    yield f"{file.path}: every line ran; remove it from its entry ({entry.reason})"
        covered = [file for file in files if entry.covers(file.path)]
        for pattern in entry.functions if covered else ():
            yield from _stale_functions(covered, pattern, entry)


def _stale_functions(files: Sequence[CountedFile], pattern: str, entry: Justification) -> Iterator[str]:
    named = [lines for file in files for name, lines in file.functions.items() if fnmatchcase(name, pattern)]
    where = ", ".join(entry.files)
    if not named:
        yield f"{where}: no function '{pattern}'; correct its entry"
    elif not any(named) and not entry.machine:
        yield f"{where}: every line of '{pattern}' ran; remove it from its entry ({entry.reason})"


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


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
    lines, stale = untested(report, entries)
    for name, written in (("untested.txt", lines), ("stale.txt", stale)):
        (folder / name).write_text("".join(f"{line}\n" for line in written))
    share = report["totals"]["percent_covered"]
    return (
        f"{share:.1f} % of the lines ran; {len(lines)} files have lines that neither ran nor are justified: "
        f"{folder}/untested.txt\n{len(stale)} justifications no longer apply: {folder}/stale.txt"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
