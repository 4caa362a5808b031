"""The table of docs/reference/rows.md: which columns apply to which kind of row."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deepstack_harness.contract.verdicts import Row

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "rows.md"
KINDS = ("case", "class", "steps", "input", "finding", "carrier")
"""The columns of the table, from left to right."""


def stated_columns(kind: str) -> set[str]:
    """Return the columns that the page states for a kind of row, those that only it has included."""
    table = re.findall(r"^\| (`[^|]*`) \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    place = KINDS.index(kind)
    chosen = (names for names, cells in table if cells.split("|")[place].strip() == "yes")
    return {name for names in chosen for name in re.findall(r"`(\w+)`", names)}


def filled_columns(rows: Iterable[Row[Any] | Mapping[str, Any]]) -> set[str]:
    """Return the columns that some row has a value in."""
    plain = (asdict(row) if isinstance(row, Row) else row for row in rows)
    return {name for row in plain for name, value in row.items() if value not in (None, "", [], ())}
