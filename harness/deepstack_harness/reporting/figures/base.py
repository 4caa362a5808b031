"""A figure: a heading, a table and, where there is one, a plot."""

from collections.abc import Sequence
from dataclasses import dataclass

MOST_ROWS = 400
"""Lines of a table that a page shows; the worst come first, and it says how many there are."""

Value = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Columns by name, rows of texts and figures, the worst first.  None is shown as nothing."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Value, ...]]

    @property
    def shown(self) -> Sequence[tuple[Value, ...]]:
        """As many rows as a page carries."""
        return self.rows[:MOST_ROWS]


@dataclass(frozen=True)
class Figure:
    """`key` is its place in the page, `says` how to read it; `absent` why there is no table.

    `svg` is a plot as an SVG element, every text in it escaped.
    """

    key: str
    title: str
    says: str
    table: Table | None = None
    svg: str | None = None
    absent: str = ""
