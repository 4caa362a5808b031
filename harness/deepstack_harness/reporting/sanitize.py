"""Sanitised text: details, diagnoses and outputs come from code under test.

They may hold terminal escapes, characters that XML forbids, or halves of surrogate pairs.  Reports
clean every text once, where they read it.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import TypeVar, cast

T = TypeVar("T")

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# What XML 1.0 allows, less the controls 0x7f to 0x9f, which some terminals obey.
_HARMFUL = re.compile(r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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


def one_line(text: str) -> str:
    """Return `text` with every run of white space as one space."""
    return " ".join(text.split())
