"""Placeholder ranges by name."""

from typing_extensions import TypeIs

from deepstack_harness.catalogue.variants import PLACEHOLDER_RANGES
from deepstack_harness.ranges.placeholder_range import MakeRange


def range_named(name: str) -> MakeRange:
    """Return what makes the placeholder ranges of a variant; raises `UsageError` for an unknown name."""
    return PLACEHOLDER_RANGES.load(name, _makes_ranges, "a class or function that makes ranges")


def _makes_ranges(found: object) -> TypeIs[MakeRange]:
    return callable(found)
