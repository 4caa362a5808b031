"""Limits on what is read from trees and archives that nobody vouches for.

Every limit can be raised by an environment variable, and every message names it.
"""

from dataclasses import dataclass

from deepstack_harness.workers.limits import from_environment


@dataclass(frozen=True)
class Limit:
    """An upper bound, and the environment variable that replaces it."""

    variable: str
    default: int
    unit: str

    def value(self) -> int:
        """Return the bound in force; raise `UsageError` for a variable that is no count above 0."""
        given = from_environment(self.variable, self.unit)
        return self.default if given is None else given

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

DEPTH = Limit("DEEPSTACK_HARNESS_MAX_DEPTH", 1000, "levels")
"""Nested expressions and chains of bases.  Released classes have up to 12 bases."""
MOST_DEPTH = 10_000
"""`DEPTH` cannot be raised further: Python's parser and compiler use the stack, which has 8 MiB."""
