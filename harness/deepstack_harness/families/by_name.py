"""Families by name: `FAMILY`, or `FAMILY:VARIANT` with more variants behind plus signs."""

from typing import TYPE_CHECKING

from deepstack_harness.catalogue.registry import FAMILIES, resolve
from deepstack_harness.families.family import TinyFamily

if TYPE_CHECKING:
    from deepstack_harness.contract.protocols import Family


def family_named(text: str) -> "Family":
    """The family that `qwen3_vl` or `granite4_vision:payload_first+opaque` stands for.

    Raises `UsageError` that lists the known ones for an unknown family or variant,
    and for variants that contradict each other.
    """
    base, colon, variants = text.partition(":")
    found = resolve("family", FAMILIES, base)
    assert isinstance(found, TinyFamily), base
    return found.variant(variants) if colon else found
