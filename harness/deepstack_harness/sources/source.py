"""What every kind of vLLM source offers: a label, and the text of its files."""

import importlib.util
from dataclasses import dataclass
from typing import Protocol

from deepstack_harness.errors import UsageError

PACKAGE_MARK = "vllm/model_executor/"


@dataclass(frozen=True)
class SourceFile:
    """The text of one file, and the name under which tracebacks show it."""

    text: str
    filename: str


class Source(Protocol):
    """One vLLM, wherever it lies."""

    @property
    def label(self) -> str:
        """What people call it: `vllm 0.22.1`, or `vllm at PATH (VERSION)`."""
        ...

    def read(self, member: str) -> SourceFile:
        """The file `member`, such as `vllm/sequence.py`.

        Raises `NoSuchMember` when this vLLM has no such file, another
        `UsageError` when the file cannot be read, `MachineError` when it would
        have to come from a package index that cannot be reached.
        """
        ...

    def mentioning(self, folder: str, word: str) -> list[str]:
        """The members right in `folder` (such as `vllm/model_executor/models`) whose text has `word`.

        Raises what `read` raises.
        """
        ...


class NoSuchMember(UsageError):
    """This vLLM has no such file."""

    def __init__(self, label: str, member: str) -> None:
        """`label` is the source's."""
        super().__init__(f"{label} has no {member}")


def decode(data: bytes, filename: str) -> SourceFile:
    """Decode Python source as Python does (PEP 263), or raise `UsageError`."""
    try:
        return SourceFile(importlib.util.decode_source(data), filename)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UsageError(f"{filename} is not Python source: {error}") from error


def read_since(source: Source, member: str, since: str) -> SourceFile:
    """Read `member`; the `UsageError` where it is missing says since which release it exists."""
    try:
        return source.read(member)
    except NoSuchMember as error:
        raise UsageError(f"{error}; it is there from vLLM {since} on") from error
