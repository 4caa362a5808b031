"""Standard streams that may be closed, full, or of an encoding without most characters."""

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO

from deepstack_harness.clean_text import printable


def prepare_streams() -> None:
    """Give closed streams a place to write to, and write characters that a stream lacks as escapes.

    Python sets a stream to None that is closed when it starts, as by `>&-` in a shell.
    """
    sys.stdout = _prepared(sys.stdout)
    sys.stderr = _prepared(sys.stderr)


def say(text: str) -> None:
    """Write cleaned text to stderr; a stream that cannot be written to must not change an exit code."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{printable(text)}\n")
        sys.stderr.flush()


def abandon(stream: TextIO) -> None:
    """Let a stream lead nowhere, so that Python does not fail once more when it ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _prepared(stream: TextIO | None) -> TextIO:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123  # as long as the process
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream
