"""Whom an observation is about; no torch."""

from dataclasses import dataclass
from enum import StrEnum


class System(StrEnum):
    """A neighbour of the buffer, with rules of its own."""

    PLACEHOLDER_RANGES = "placeholder_ranges"
    DUAL_STREAM = "dual_stream"


@dataclass(frozen=True)
class Subject:
    """Who is judged.

    `variant` is a name of `deepstack_harness.catalogue.variants`, or the label of an upstream
    source; `model_class` is the class or function that was cut out of that source.
    """

    system: System
    variant: str
    model_class: str | None = None
    source: str | None = None
