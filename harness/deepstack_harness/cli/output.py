"""The output of a command: text on the terminal, rows of JSON, or both.

JSON is one object per line, written as results come.  Standard streams may be closed, full, or of an encoding
without most characters: `prepare_streams` makes them writable, and the loss of stdout ends a command.
"""

from __future__ import annotations

import contextlib
import os
import re
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
    return _filled(text, max(width, 20), "", "")


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


def make_folder(target: str) -> None:
    """Make a folder to write into, unless it is there; raises `UsageError` where that cannot be."""
    try:
        Path(target).mkdir(parents=True, exist_ok=True)
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

_NARROW = 30
"""Columns that the last cell of a row needs beside the others; with fewer it stands below them."""


_INDENT = 4
"""Columns by which a line that goes on stands further right, and the indent of a cell that needs a line."""
_COMMAND = re.compile(r"(?<![\w./-])(?:deepstack-harness|python3? -m) \S.*")
"""A command in a text, up to the end of its line."""


def _folded_line(line: str, width: int) -> list[str]:
    """Return the lines of one line of prose: broken at blanks, and never inside of a command at its end."""
    if len(line) <= width:
        return [line]
    indent = len(line) - len(line.lstrip())
    below = " " * (indent + 2)
    command = _COMMAND.search(line)
    if command is None:
        return _filled(line.strip(), width, " " * indent, below)
    prose = line[: command.start()].strip()
    lines = _filled(prose, width, " " * indent, below) if prose else []
    if lines and len(lines[-1]) + 1 + len(command[0]) <= width:
        return [*lines[:-1], f"{lines[-1]} {command[0]}"]
    return [*lines, f"{below if lines else ' ' * indent}{command[0]}"]


def _filled(text: str, width: int, first: str, below: str) -> list[str]:
    """Return `text` broken at blanks: the first line begins with `first`, the others with `below`."""
    room = " " * len(first)
    lines = textwrap.wrap(
        text, width, initial_indent=room, subsequent_indent=below,
        break_long_words=False, break_on_hyphens=False,
    ) or [""]  # fmt: skip
    return [(first + lines[0][len(first) :]).rstrip(), *lines[1:]]


def _packed(cells: Sequence[str], width: int) -> list[str]:
    """Return lines of padded cells, as many in each as fit; the second and later lines are indented."""
    lines: list[str] = []
    for text in cells:
        if lines and len(lines[-1]) + 2 + len(text) <= width:
            lines[-1] += f"  {text}"
        else:
            lines.append(" " * _INDENT + text.strip() if lines else text)
    return lines


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

    @property
    def silent(self) -> bool:
        """True where nothing for people is printed."""
        return self._silent

    def line(self, text: str = "", style: str = "") -> None:
        """Print one line for people; a terminal gets it folded at blanks, below its own indent.

        A command that stands in it is left whole, so that it can be copied. A file or pipe gets one line.
        Raises `OutputLost` where stdout is full or its reader left.  With a JSON file that is put off until
        `close`: the rows in the file are to be complete.
        """
        if self._silent:
            return
        try:
            with self._without_spinner():
                for part in self._folded(printable(text)):
                    self._terminal().print(
                        part, style=style or None, markup=False, highlight=False, soft_wrap=True
                    )
        except OSError as error:
            self._lost, self._silent = OutputLost(error), True
            if self._json is None:
                raise self._lost from None

    def paragraph(self, lead: str, text: str, style: str = "") -> None:
        """Print text after `lead`, in lines that begin below each other and fit the terminal."""
        first, *others = wrapped(text, len(lead))
        for line in (lead + first, *(" " * len(lead) + other for other in others)):
            self.line(line, style)

    def verdict(self, text: str, *, good: bool) -> None:
        """Print the line that a command ends with."""
        self.line(text, "bold green" if good else "bold red")

    def row(self, columns: Sequence[Column], cells: Sequence[str], style: str = "") -> None:
        """Print one row of a table that grows as results come.

        On a terminal the last cell is wrapped below itself; in a file or pipe a row is one line, for `grep`.
        """
        if self._silent:
            return
        texts = [column.cell(cell(text)) for column, text in zip(columns, cells, strict=True)]
        for text in self._rows(texts, sum(column.width + 2 for column in columns[:-1])):
            self.line(text, style)

    def _rows(self, texts: list[str], indent: int) -> list[str]:
        """Return the lines of a row; on a terminal its last cell goes on in column `indent`.

        Cells that do not fit beside each other go on in the next line, each of them whole.
        """
        whole = "  ".join(texts).rstrip()
        terminal = self._terminal()
        width = terminal.width
        if not terminal.is_terminal or len(whole) <= width:
            return [whole]
        *front, last = texts
        lines = _packed(front, width)
        needed = max(_NARROW, *map(len, last.split()), 0)
        lead = f"{lines[-1]}  " if lines else ""
        if width - max(indent, len(lead)) >= needed:
            return [*lines[:-1], *_filled(last.strip(), width, lead, " " * indent)]
        if lead and width - len(lead) >= len(last.strip()):
            return [*lines[:-1], lead + last.strip()]
        below = " " * (_INDENT + 2)
        return [*(line.rstrip() for line in lines), *_filled(last.strip(), width, below, below)]

    def _folded(self, text: str) -> list[str]:
        """Return the lines that a terminal gets for a text, which may have lines of its own."""
        terminal = self._terminal()
        if not terminal.is_terminal:
            return [text]
        return [part for line in text.split("\n") for part in _folded_line(line, terminal.width)]

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
