"""Text from outside, made harmless once, where it is read.

Details, diagnoses and outputs come from code under test: they may hold terminal escapes,
characters that XML forbids, or halves of surrogate pairs.
"""

import re
from collections.abc import Mapping

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# What XML 1.0 allows, less the controls 0x7f to 0x9f, which some terminals obey.
_HARMFUL = re.compile(r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(value: object) -> object:
    """`value` with every text in it cleaned, also in lists and mappings."""
    match value:
        case str():
            return _HARMFUL.sub(REPLACEMENT, value.replace("\r\n", "\n"))
        case Mapping():
            return {str(clean(key)): clean(item) for key, item in value.items()}
        case list() | tuple():
            return [clean(item) for item in value]
    return value


def shortened(text: str, most: int) -> str:
    """`text`, or its first `most` characters and how many are left out."""
    return text if len(text) <= most else f"{text[:most]} .. ({len(text) - most:,} characters left out)"


def one_line(text: str) -> str:
    """`text` with every run of white space as one space."""
    return " ".join(text.split())
