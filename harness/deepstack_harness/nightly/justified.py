"""Lines that the stage `untested` cannot see run, each with its reason: `cases/selftest/untested.toml`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from deepstack_harness.catalogue.versioned import load_toml

VERSION = 1


@dataclass(frozen=True)
class Justification:
    """Entry: lines that run in `runs_in` alone, which the stage leaves out or whose counts are lost.

    `files` are patterns of paths in the package. With `functions`, patterns of qualified names, only those of
    the files are meant; "" is the code of the module itself. `machine` names the machine that the lines need:
    such an entry stays true where a night has that machine.
    """

    files: tuple[str, ...]
    reason: str
    runs_in: tuple[str, ...]
    functions: tuple[str, ...] = ()
    machine: str = ""


@dataclass(frozen=True)
class Justifications:
    """Contents of `untested.toml`."""

    schema_version: int
    justified: tuple[Justification, ...]


@dataclass(frozen=True)
class CountedFile:
    """Lines of one file that did not run, by the qualified name of their function; "" is the module."""

    path: str
    functions: Mapping[str, tuple[int, ...]]

    @property
    def missing(self) -> list[int]:
        """Return the line numbers, in order."""
        return sorted(line for lines in self.functions.values() for line in lines)


def read_justifications(path: Path) -> tuple[Justification, ...]:
    """Read the entries; raises `UsageError` that names the entry that is wrong."""
    return load_toml(path, Justifications, "a list of justified lines", VERSION).justified


def counted_file(path: str, seen: Mapping[str, Any]) -> CountedFile:
    """Return what `coverage json` (7.6 and newer: with its regions `functions`) tells of one file."""
    return CountedFile(path, {name: tuple(one["missing_lines"]) for name, one in seen["functions"].items()})


def unjustified(files: Sequence[CountedFile], entries: Sequence[Justification]) -> Iterator[CountedFile]:
    """Yield each file with lines that neither ran nor are justified, and only these lines."""
    for file in files:
        named = [entry for entry in entries if _matches(file.path, entry.files)]
        left = {
            name: lines
            for name, lines in file.functions.items()
            if lines and not any(_names(entry, name) for entry in named)
        }
        if left:
            yield replace(file, functions=left)


def stale(files: Sequence[CountedFile], entries: Sequence[Justification]) -> Iterator[str]:
    """Yield a sentence for each name in an entry that nothing has, or whose lines all ran."""
    for entry in entries:
        for pattern in entry.files:
            found = [file for file in files if fnmatchcase(file.path, pattern)]
            if not found:
                yield f"{pattern}: no such file; correct its entry"
            for file in found if not entry.functions else ():
                if not file.missing and not entry.machine:
                    yield f"{file.path}: every line ran; remove it from its entry ({entry.reason})"
        mine = [file for file in files if _matches(file.path, entry.files)]
        for name in entry.functions if mine else ():
            yield from _stale_functions(mine, name, entry)


def _stale_functions(files: Sequence[CountedFile], pattern: str, entry: Justification) -> Iterator[str]:
    named = [lines for file in files for name, lines in file.functions.items() if fnmatchcase(name, pattern)]
    where = ", ".join(entry.files)
    if not named:
        yield f"{where}: no function '{pattern}'; correct its entry"
    elif not any(named) and not entry.machine:
        yield f"{where}: every line of '{pattern}' ran; remove it from its entry ({entry.reason})"


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _names(entry: Justification, function: str) -> bool:
    return not entry.functions or _matches(function, entry.functions)
