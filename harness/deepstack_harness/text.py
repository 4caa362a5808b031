"""Cleaned text: labels, details, diagnoses and outputs come from code under test, archives and indexes.

They may hold terminal escapes, characters that XML forbids, overrides of the direction of writing (which show
a line of code or a verdict in another order), halves of surrogate pairs, or megabytes. Whoever shows text
cleans it here: the terminal, the log, reports and written programs.

`parse_python`, `json_line` and `plural` (a number with its noun) are here because every room needs them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from threading import Lock
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    import ast

T = TypeVar("T")

_PARSING = Lock()
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LONGEST = 20_000
"""Characters of a text that is shown whole."""
# Other than XML 1.0 allows, and the controls 0x7f to 0x9f, which some terminals obey.
_CONTROLS = r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
# Marks, embeddings, overrides and isolates of the direction (CVE-2021-42574); separators that some programs
# take for the end of a line; the byte order mark; the invisible letters that nothing displays.
_INVISIBLE = r"[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
_HARMFUL = re.compile(f"{_CONTROLS}|{_INVISIBLE}")


def clean(value: T) -> T:
    """Return `value` with every text in it cleaned, also in lists, mappings and dataclasses."""
    return cast(T, _cleaned(value))


def _cleaned(value: object) -> object:
    match value:
        case Enum():
            return value
        case str():
            return _HARMFUL.sub(REPLACEMENT, value.replace("\r\n", "\n"))
        case Mapping():
            return {_cleaned(key): _cleaned(item) for key, item in value.items()}
        case list():
            return [_cleaned(item) for item in value]
        case tuple():
            return tuple(_cleaned(item) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _cleaned(getattr(value, field.name)) for field in fields(value)})
    return value


def shortened(text: str, most: int) -> str:
    """Return `text`, or its first `most` characters and how many are left out."""
    return text if len(text) <= most else f"{text[:most]} .. ({len(text) - most:,} characters left out)"


def first_line_of(error: Exception) -> str:
    """Return the first line of an error's text, or its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def one_line(text: str) -> str:
    """Return `text` with every run of white space as one space."""
    return " ".join(text.split())


def printable(text: str, most: int = LONGEST) -> str:
    """Return `text` cleaned, and cut to its first `most` characters."""
    # Cut first: a text of gigabytes is not to be searched.
    return clean(shortened(text, most))


def cell(text: str, most: int = LONGEST) -> str:
    """Return `text` as one printable line, so that text of a source cannot look like a row of ours."""
    return re.sub(r"[\t\n]+", " ", printable(text, most))


def parse_python(text: str) -> ast.Module:
    """Parse Python source, in whatever thread; raises what `ast.parse` raises.

    CPython 3.11.7 counts the depth of the tree for all threads together: two that parse at once end with
    "SystemError: AST constructor recursion depth mismatch".
    """
    import ast  # an engine that is watched imports this module, and parses nothing

    with _PARSING:
        return ast.parse(text)


def json_line(row: object) -> bytes:
    """Return an object (a dataclass or a dict) as a line of JSON, cleaned only where JSON cannot hold it."""
    import msgspec  # an engine that is watched imports this module, and may have no msgspec

    try:
        return msgspec.json.encode(row) + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair
        return msgspec.json.encode(clean(row)) + b"\n"


def number(value: float | None, digits: int = 4) -> str:
    """Write a figure for people: no more digits than matter, and words for what is not finite."""
    if value is None:
        return ""
    if abs(value) > 1e300:  # what JSON cannot carry comes as the largest float
        return "not finite"
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.{digits}g}"


_IRREGULAR = {
    "access": "accesses",
    "class": "classes",
    "entry": "entries",
    "family": "families",
    "history": "histories",
    "box": "boxes",
    "process": "processes",
    "is": "are",
    "has": "have",
}


def plural(number: int, noun: str) -> str:
    """Return `1 case`, `2 cases`, `0 classes`; of several words the last one changes."""
    return f"{number:,} {noun if number == 1 else _several(noun)}"


def _several(noun: str) -> str:
    *before, last = noun.split(" ")
    return " ".join([*before, _IRREGULAR.get(last, f"{last}s")])
