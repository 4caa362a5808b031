"""Rows as JSON, one object per line, written as they come."""

import contextlib
import sys
from pathlib import Path
from typing import BinaryIO

from deepstack_harness.clean_text import json_line
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.reporting.output_lost import OutputLost


class JsonLines:
    """A sink for objects, opened before anything is measured: a bad path costs no work.  `-` is stdout."""

    def __init__(self, target: str) -> None:
        """Open the file for writing; raises `UsageError` where that cannot be."""
        self._target = target
        self._stream = _stdout() if target == "-" else _open(target)

    def write(self, row: object) -> None:
        """Append one object (a dataclass or a dict), and push it out of the process."""
        try:
            self._stream.write(json_line(row))
            self._stream.flush()
        except BrokenPipeError as error:
            raise OutputLost(error) from None
        except OSError as error:
            raise self._cannot(error) from None

    def close(self) -> None:
        """Close a file; stdout stays open."""
        if self._target != "-":
            with contextlib.suppress(OSError):  # what could not be written was reported when it was written
                self._stream.close()

    def _cannot(self, error: OSError) -> MachineError:
        return MachineError(
            f"cannot write rows to '{self._target}': {error.strerror}; rows before this one are kept"
        )


def write_text(target: str, text: str) -> None:
    """Write a whole file; raises `UsageError` where that cannot be."""
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to '{target}': {error.strerror}") from None


def _stdout() -> BinaryIO:
    """Return the bytes below stdout: JSON is UTF-8, whatever the terminal's encoding is."""
    sys.stdout.flush()
    return sys.stdout.buffer


def _open(target: str) -> BinaryIO:
    try:
        return Path(target).open("wb")
    except OSError as error:
        raise UsageError(f"cannot write to --json file '{target}': {error.strerror}") from None
