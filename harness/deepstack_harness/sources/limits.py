"""Limits on what is read from trees and archives that nobody vouches for.

Every limit can be raised by an environment variable, and every message names it.
"""

import os
from dataclasses import dataclass

from deepstack_harness.errors import UsageError


@dataclass(frozen=True)
class Limit:
    """An upper bound, and the environment variable that replaces it."""

    variable: str
    default: int
    unit: str

    def value(self) -> int:
        """Return the bound in force; raise `UsageError` for a variable that is no count above 0."""
        text = os.environ.get(self.variable, "").strip()
        if not text:
            return self.default
        if not text.isdecimal() or int(text) == 0:
            raise UsageError(f"{self.variable} is '{text}', but has to be a count above 0 ({self.unit})")
        return int(text)

    @property
    def advice(self) -> str:
        """The sentence that tells how to raise the bound."""
        return f"the limit is {self.value():,} {self.unit}, {self.variable} raises it"


FILE_MIB = Limit("DEEPSTACK_HARNESS_MAX_FILE_MIB", 16, "MiB")
"""One file.  The largest model file of vLLM 0.33.0 has 0.2 MiB."""

MEMBERS = Limit("DEEPSTACK_HARNESS_MAX_MEMBERS", 200_000, "files")
"""Files in one archive or folder.  The wheel of vLLM 0.33.0 has 5,000."""

UNPACKED_MIB = Limit("DEEPSTACK_HARNESS_MAX_UNPACKED_MIB", 4096, "MiB")
"""Everything that is unpacked to read one archive, or read to search one folder."""

MIB = 1 << 20
