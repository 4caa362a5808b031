"""The output of a command: text on the terminal, rows of JSON, or both.

JSON is one object per line, written as results come.  Standard streams may be closed, full, or of an encoding
without most characters: `prepare_streams` makes them writable, and the loss of stdout ends a command.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO, TypeVar

from deepstack_harness.document.blocks import Block, Document
from deepstack_harness.document.terminal import columns_here, folded, rendered
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.text import cell, json_line

if TYPE_CHECKING:
    from rich.live import Live

T = TypeVar("T")


class OutputLost(Exception):
    """Stdout cannot be written to; `reason` is None where its reader left, as `| head` does."""

    def __init__(self, error: OSError) -> None:
        self.reason = None if isinstance(error, BrokenPipeError) else error.strerror
        super().__init__(self.reason)


class JsonLines:
    """A sink for objects, opened before anything is measured: a bad path costs no work.  `-` is stdout."""

    def __init__(self, target: str) -> None:
        """Open the file for writing; raises `UsageError` where that cannot be."""
        self._target = target
        if target == "-":
            sys.stdout.flush()
            # The bytes below stdout: JSON is UTF-8, whatever the terminal's encoding is.
            self._stream: BinaryIO = sys.stdout.buffer
        else:
            with refused_target(f"--json file '{target}'"):
                self._stream = Path(target).open("wb")  # noqa: SIM115  # as long as the command

    def write(self, row: object) -> None:
        """Append one object (a dataclass or a dict), and push it out of the process."""
        try:
            self._stream.write(json_line(row))
            self._stream.flush()
        except BrokenPipeError as error:
            raise OutputLost(error) from None
        except OSError as error:
            raise MachineError(
                f"cannot write rows to '{self._target}': {error.strerror}; rows before this one are in it"
            ) from None

    def close(self) -> None:
        """Close a file; stdout stays open."""
        if self._target != "-":
            with contextlib.suppress(OSError):  # what could not be written was reported when it was written
                self._stream.close()


@contextmanager
def refused_target(target: str) -> Iterator[None]:
    """Raise `UsageError` for a file or folder of the user's that cannot be written to."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write to {target}: {error.strerror}") from None


def write_text(target: str, text: str) -> None:
    """Write a whole file; raises `UsageError` where that cannot be."""
    with refused_target(f"'{target}'"):
        Path(target).write_text(text, encoding="utf-8")


def prepare_streams() -> None:
    """Give closed streams a place to write to, and write characters that a stream does not have as escapes.

    Python sets a stream to None that is closed when it starts, as by `>&-` in a shell.
    """
    sys.stdout = _prepared(sys.stdout)
    sys.stderr = _prepared(sys.stderr)


def say(text: str) -> None:
    """Write a sentence to stderr; a stream that cannot be written to must not change an exit code."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{folded(text, columns_here())}\n")
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


_EVERY_S = 10.0
"""Seconds between two lines of progress where no terminal is."""


class _Lines:
    """Progress as lines, the first of them when the work has taken a while."""

    def __init__(self, every_s: float = _EVERY_S) -> None:
        self._last = time.monotonic()
        self._every_s = every_s

    def say(self, text: str) -> None:
        """Write `text`, unless a line was written just before."""
        now = time.monotonic()
        if now - self._last >= self._every_s:
            self._last = now
            say(f"deepstack-harness: {cell(text)}")


class Output:
    """The terminal, as far as `--json` and `--quiet` leave it, and the JSON sink of a document.

    With `progress` every step of the work is a line on stderr, also where nothing is printed on the terminal.
    rich leaves colour out where stdout is not a terminal.
    """

    def __init__(self, json: str | None, *, quiet: bool, progress: bool = False) -> None:
        """Open the JSON file first, so that a bad path costs no work."""
        self._json = JsonLines(json) if json else None
        self._silent = quiet or json == "-"
        self._every_step = progress
        self._is_terminal: bool | None = None
        self._lost: OutputLost | None = None
        self._live: Live | None = None

    @property
    def silent(self) -> bool:
        """True where nothing for people is printed."""
        return self._silent

    def show(self, document: Document[T]) -> T:
        """Print the blocks of a document, write its rows, and return its result.

        Raises `OutputLost` where stdout is full or its reader left.  With a JSON file that is put off until
        `close`: the rows in the file are to be complete.
        """
        _CURRENT.append(self)
        try:
            while True:
                part = next(document)
                try:
                    self.print(part) if isinstance(part, Block) else self._record(part)
                except BaseException as error:  # noqa: BLE001  # the command ends as if it had printed itself
                    document.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            document.close()
            _CURRENT.pop()

    def _record(self, row: object) -> None:
        if self._json is not None:
            self._json.write(row)

    def print(self, block: Block) -> None:
        """Print a block for people."""
        if self._silent:
            return
        if self._is_terminal is None:
            from rich.console import Console

            self._is_terminal = Console().is_terminal
        try:
            with self._without_spinner():
                sys.stdout.write(rendered(block, columns_here(), color=self._is_terminal))
                sys.stdout.flush()
        except OSError as error:
            self._lost, self._silent = OutputLost(error), True
            if self._json is None:
                raise self._lost from None

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show a progress text on stderr; the function that is yielded changes the text.

        A terminal gets a spinner, a pipe or a file a line now and then.
        """
        if self._every_step:
            yield _Lines(every_s=0).say
            return
        if self._silent or self._live is not None:
            yield _unseen
            return
        if not sys.stderr.isatty():
            yield _Lines().say
            return
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner
        from rich.text import Text

        spinner = Spinner("dots", Text(cell(text)))
        # rich would redirect stdout, and with it rows that go to a file, to its own console.
        live = Live(
            spinner, console=Console(stderr=True), refresh_per_second=12.5, transient=True,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        with live:
            self._live = live
            try:
                yield lambda text: spinner.update(text=Text(cell(text)))
            finally:
                self._live = None

    def close(self) -> None:
        """Close the JSON file; raises `OutputLost` where a line could not be printed."""
        if self._json is not None:
            self._json.close()
        if self._lost is not None:
            raise self._lost

    @contextmanager
    def _without_spinner(self) -> Iterator[None]:
        """Take the spinner away while a line is printed: both may go to the same terminal."""
        live = self._live
        if live is None:
            yield
            return
        live.stop()
        try:
            yield
        finally:
            live.start()


_CURRENT: list[Output] = []
"""The outputs of documents that are being shown; the last one is shown now."""


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show a progress text while a document is shown, as `Output.progress` does."""
    with _CURRENT[-1].progress(text) if _CURRENT else nullcontext(_unseen) as say:
        yield say


def _unseen(_: str) -> None:
    """Show no progress: no document is shown."""
