"""The output of a command: text on the terminal, rows of JSON, or both.

JSON is one object per line, written as results come.  Standard streams may be closed, full, or of an encoding
without most characters: `prepare_streams` makes them writable, and the loss of stdout ends a command.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.text import cell, json_line, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live


class OutputLost(Exception):
    """Stdout cannot be written to; `reason` is None where its reader left, as `| head` does."""

    def __init__(self, error: OSError) -> None:
        self.reason = None if isinstance(error, BrokenPipeError) else error.strerror
        super().__init__(self.reason)


_WIDEST = 100
"""Longer lines are hard to read."""


def wrapped(text: str, indent: int = 0) -> list[str]:
    """Return the lines of a text that stands `indent` columns into the terminal, broken at blanks alone."""
    width = min(shutil.get_terminal_size().columns, _WIDEST) - indent
    return textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False) or [""]


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


_EVERY_S = 10.0
"""Seconds between two lines of progress where no terminal is."""

_NARROW = 24
"""Columns below which a cell is not wrapped: a word a line is harder to read than a broken line."""


@dataclass(frozen=True)
class Column:
    """A column of a table that is printed row by row."""

    width: int
    right: bool = False

    def cell(self, text: str) -> str:
        """Return `text` padded to the width; longer text is kept whole."""
        return text.rjust(self.width) if self.right else text.ljust(self.width)


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
    """The terminal, as far as `--json` and `--quiet` leave it, and the JSON sink.

    With `progress` every step of the work is a line on stderr, also where the terminal is left alone.
    rich leaves colour out where stdout is not a terminal.
    """

    def __init__(self, json: str | None, *, quiet: bool, progress: bool = False) -> None:
        """Open the JSON file first, so that a bad path costs no work."""
        self._json = JsonLines(json) if json else None
        self._silent = quiet or json == "-"
        self._every_step = progress
        self._console: Console | None = None
        self._lost: OutputLost | None = None
        self._live: Live | None = None

    def line(self, text: str = "", style: str = "") -> None:
        """Print one line for people, never wrapped.

        Raises `OutputLost` where stdout is full or its reader left.  With a JSON file that is put off until
        `close`: the rows in the file are to be complete.
        """
        if self._silent:
            return
        try:
            with self._without_spinner():
                self._terminal().print(
                    printable(text), style=style or None, markup=False, highlight=False, soft_wrap=True
                )
        except OSError as error:
            self._lost, self._silent = OutputLost(error), True
            if self._json is None:
                raise self._lost from None

    def verdict(self, text: str, *, good: bool) -> None:
        """Print the line that a command ends with."""
        self.line(text, "bold green" if good else "bold red")

    def row(self, columns: Sequence[Column], cells: Sequence[str], style: str = "") -> None:
        """Print one row of a table that grows as results come.

        On a terminal the last cell is wrapped below itself; in a file or pipe a row is one line, for `grep`.
        """
        if self._silent:
            return
        *front, last = (column.cell(cell(text)) for column, text in zip(columns, cells, strict=True))
        lead = "".join(f"{each}  " for each in front)
        for text in self._wrapped(lead, last.rstrip(), sum(column.width + 2 for column in columns[:-1])):
            self.line(text, style)

    def _wrapped(self, lead: str, text: str, indent: int) -> list[str]:
        """Return the lines of a row: `lead`, then `text`, which goes on in column `indent` on a terminal."""
        terminal = self._terminal()
        width = terminal.width
        if not terminal.is_terminal or len(lead) + len(text) <= width or width - indent < _NARROW:
            return [(lead + text).rstrip()]
        begun = [lead.rstrip()] if width - len(lead) < _NARROW else []
        first = " " * (indent if begun else len(lead))
        lines = textwrap.wrap(
            text, width, initial_indent=first, subsequent_indent=" " * indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        return [*begun, *lines] if begun else [lead + lines[0][len(lead) :], *lines[1:]]

    def record(self, row: object) -> None:
        """Write one object for programs."""
        if self._json is not None:
            self._json.write(row)

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show a progress text on stderr; the function that is yielded changes the text.

        A terminal gets a spinner, a pipe or a file a line now and then.
        """
        if self._every_step:
            yield _Lines(every_s=0).say
            return
        if self._silent:
            yield lambda _: None
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

    def step(self, text: str) -> None:
        """Print a line of progress that stays; with `progress` it goes to stderr where stdout is silent."""
        if self._silent and self._every_step:
            say(f"deepstack-harness: {cell(text)}")
        self.line(text)

    @contextmanager
    def rows_alone(self) -> Iterator[None]:
        """Print nothing for a while, and record rows as before."""
        before = self._silent, self._every_step
        self._silent, self._every_step = True, False
        try:
            yield
        finally:
            self._silent, self._every_step = before

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

    def _terminal(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(emoji=False)  # `:x:` in a text is no picture
        return self._console
