"""Systems, and the subjects that observations of them are about; no torch."""

from dataclasses import dataclass
from enum import StrEnum


class System(StrEnum):
    """A part of an engine with rules of its own.

    DEEPSTACK is the buffer, which plays traces.  The others play none.
    """

    DEEPSTACK = "deepstack"
    PLACEHOLDER_RANGES = "placeholder_ranges"
    DUAL_STREAM = "dual_stream"


@dataclass(frozen=True)
class SystemSubject:
    """The variant of a system, or the class or function of a source, that was observed.

    `variant` is a name of `deepstack_harness.catalogue.variants`, or the label of a source; `model_class`
    and `engine` are the class or function that was cut out of that source, and its package.
    """

    system: System
    variant: str
    model_class: str | None = None
    engine: str | None = None

    @property
    def source(self) -> str | None:
        """The label of the source; None for our own variants."""
        return self.variant if self.engine else None
