"""The output of a command: the terminal, a JSON file, or both."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepstack_harness.clean_text import cell, printable
from deepstack_harness.reporting.json_lines import JsonLines
from deepstack_harness.reporting.output_lost import OutputLost
from deepstack_harness.reporting.terminal.standard_streams import say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

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

    def __init__(self) -> None:
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        """Write `text`, unless a line was written just before."""
        now = time.monotonic()
        if now - self._last >= _EVERY_S:
            self._last = now
            say(f"deepstack-harness: {cell(text)}")


class Output:
    """The terminal, as far as `--json` and `--quiet` leave it, and the JSON sink.

    rich leaves colour out where stdout is not a terminal.
    """

    def __init__(self, json: str | None, *, quiet: bool) -> None:
        """Open the JSON file first, so that a bad path costs no work."""
        self._json = JsonLines(json) if json else None
        self._silent = quiet or json == "-"
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
