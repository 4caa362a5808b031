"""The blocks of a document: headings, lines, tables and what is folded away, as data."""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

from typing_extensions import TypeVar


class Code(str):
    """A cell that is a trace, a place or a command: Markdown shows it as code."""

    __slots__ = ()


class Link(str):
    """A cell that leads to an address where the output has links."""

    __slots__ = ("address",)
    address: str

    def __new__(cls, text: str, address: str) -> Self:
        """Make a text with an address."""
        link = super().__new__(cls, text)
        link.address = address
        return link


@dataclass(frozen=True)
class Heading:
    """The title of what follows; `level` is 2 for the title of a document, and 3 for one of its parts."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Line:
    """A sentence, or an empty line.

    `lead` is a label: the text begins after it, and continues below its own beginning. `command` is a
    command or a path to copy, which follows the text and is never broken. `style` is a style of rich.

    >>> Line("as often as requested", lead="tested by ")
    Line(text='as often as requested', style='', lead='tested by ', command='')
    """

    text: str = ""
    style: str = ""
    lead: str = ""
    command: str = ""


BLANK = Line()
NOTE = "yellow"
"""The style of a line with what a reader has to know first; Markdown quotes it."""


def outcome(text: str, *, good: bool) -> Line:
    """Return the line that a command ends with."""
    return Line(text, "bold green" if good else "bold red")


@dataclass(frozen=True)
class Column:
    """A column of a table; one without a `width` is as wide as its widest cell, if there is room."""

    head: str = ""
    width: int = 0
    right: bool = False


Cells: TypeAlias = Sequence[str]


@dataclass(frozen=True)
class TextTable:
    """Rows of cells with a style for each row, under the heads of the columns.

    A table that grows as results come is a sequence of tables with the same columns, whose widths are stated:
    the first has heads and no rows, and each of the others (`head=False`) a row.
    """

    columns: Sequence[Column]
    rows: Sequence[tuple[Cells, str]] = ()
    head: bool = True


@dataclass(frozen=True)
class Details:
    """A summary with blocks that a reader may unfold; a terminal shows all of them."""

    summary: Line
    blocks: Sequence["Block"]


Block: TypeAlias = Heading | Line | TextTable | Details

T = TypeVar("T", default=None)
Document: TypeAlias = Generator[object, None, T]
"""What a command yields: blocks; everything else is a row for programs. It may return a value."""


def table_line(columns: Sequence[Column], cells: Cells, style: str = "") -> TextTable:
    """Return one more row of a table that grows."""
    return TextTable(columns, [(cells, style)], head=False)


def rows_of(document: Document[T]) -> Document[T]:
    """Yield the rows of a document without its blocks, and return its result."""
    while True:
        try:
            part = next(document)
        except StopIteration as end:
            result: T = end.value
            return result
        if not isinstance(part, Block):
            yield part


def all_of(documents: Iterable[Document[T]]) -> Document[list[T]]:
    """Show documents one after the other, and return their results."""
    results = []
    for document in documents:
        results.append((yield from document))  # noqa: PERF401  # no comprehension can yield
    return results
