"""Blocks as lines of text for a terminal, a pipe or a file: at most 80 columns, but for commands to copy."""

import os
import shutil
from collections.abc import Iterator, Sequence
from io import StringIO

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from deepstack_harness.document.blocks import Block, Column, Details, Heading, Line, TextTable
from deepstack_harness.text import cell, printable

_WIDEST = 80
"""Columns; longer lines are hard to read, and are cut or broken in mails, logs and comments."""
_LAST_CELL = 7
"""Columns that the last cell of a growing table needs; wider columns before it become narrower."""
_GAP = 2
"""Columns between two cells."""
_INDENT = 2
"""Columns by which the inside of a block is indented."""


def columns_here() -> int:
    """Return the width of the output: COLUMNS where it is set, else that of the terminal, at most 80."""
    if os.environ.get("COLUMNS", "").isdecimal():
        return max(int(os.environ["COLUMNS"]), 20)
    return max(min(shutil.get_terminal_size().columns, _WIDEST), 20)


def rendered(block: Block, width: int, *, color: bool = False) -> str:
    """Return the lines of a block, without trailing blanks, each with a line end."""
    if isinstance(block, Details):
        inner = "".join(rendered(part, width - _INDENT, color=color) for part in block.blocks)
        summary = rendered(block.summary, width, color=color)
        return summary + "".join(f"{' ' * _INDENT}{line}\n" for line in inner.splitlines())
    console = Console(
        file=StringIO(), width=width, emoji=False, markup=False, highlight=False, force_terminal=color,
        no_color=None if color else True,
    )  # fmt: skip
    with console.capture() as captured:
        match block:
            case TextTable():
                console.print(_table(block, width))
            case Heading(text):
                _print_line(console, Line(text, "bold"), width)
            case Line():
                _print_line(console, block, width)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().split("\n")[:-1])


def folded(text: str, width: int) -> str:
    """Return a sentence as lines of at most `width` columns, the later ones indented."""
    return rendered(Line(text), width).rstrip("\n")


def _print_line(console: Console, line: Line, width: int) -> None:
    parts = [part for text in printable(line.text).split("\n") for part in _parts(console, line, text, width)]
    if line.command:
        indent = line.lead or " " * (len(line.text) - len(line.text.lstrip()))
        if not line.text.strip():
            parts = [f"{indent}{line.command}"]
        elif len(parts[-1]) + len(line.command) < width:
            parts[-1] += f" {line.command}"
        else:
            parts.append(f"{' ' * (len(indent) + 2)}{line.command}")
    for part in parts:
        console.print(Text(part, line.style or ""), soft_wrap=True)


def _parts(console: Console, line: Line, text: str, width: int) -> Iterator[str]:
    """Yield the lines of one line of text: after its lead, or after its own indentation."""
    body = text.lstrip(" ")
    first = line.lead or " " * (len(text) - len(body))
    below = " " * len(first) if line.lead else f"{first}  "
    wrapped = Text(body).wrap(console, width - len(below)) if len(first) + len(body) > width else [Text(body)]
    for number, part in enumerate(wrapped):
        yield f"{below if number else first}{part.plain.rstrip()}"


def _table(table: TextTable, width: int) -> RichTable:
    shown = RichTable(
        box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=table.head, header_style="dim"
    )
    for column, columns in zip(table.columns, _widths(table.columns, width), strict=True):
        shown.add_column(
            column.head, justify="right" if column.right else "left", width=columns or None, overflow="fold"
        )
    for cells, style in table.rows:
        shown.add_row(*(Text(cell(text)) for text in cells), style=style or None)
    return shown


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """Return the stated widths, the widest of them narrower where the last cell would have no room."""
    widths = [column.width for column in columns]
    if all(widths[:-1]):
        room = width - (0 if widths[-1] else _LAST_CELL) - _GAP * (len(widths) - 1)
        while sum(widths) > room:
            widths[widths.index(max(widths))] -= 1
        widths[-1] = widths[-1] or width - sum(widths[:-1]) - _GAP * (len(widths) - 1)
    return widths
