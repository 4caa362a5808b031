"""Families by name: `FAMILY`, or `FAMILY:VARIANT` with more variants after plus signs."""

from typing import TYPE_CHECKING, Any

from typing_extensions import TypeIs

from deepstack_harness.catalogue.registry import FAMILIES
from deepstack_harness.contract.protocols import Family, FamilyWithVariants
from deepstack_harness.errors import UsageError
from deepstack_harness.families.family import TinyFamily

if TYPE_CHECKING:
    # The config of a family is known only after its name was looked up.
    AnyTinyFamily = TinyFamily[Any]

_MEMBERS = ("name", "hidden", "levels", "routed", "build", "positions")


def family_named(text: str) -> Family:
    """Return the family that `qwen3_vl` or `granite4_vision:payload_first+opaque` stands for.

    Raises `UsageError` that lists the known names for an unknown family or variant, and for
    variants that contradict each other.
    """
    base, colon, variants = text.partition(":")
    found = FAMILIES.load(base, _is_family, f"a family: an object with {', '.join(_MEMBERS)}")
    if not colon:
        return found
    if not _has_variants(found):
        raise UsageError(f"family '{base}' has no variants, so there is no '{text}'")
    return found.variant(variants)


def tiny_family_named(text: str) -> "AnyTinyFamily":
    """Return the family as `family_named` does; raises `UsageError` also for one without a config."""
    found = family_named(text)
    if not isinstance(found, TinyFamily):
        raise UsageError(f"family '{text}' has fixed sizes: it is not built on {TinyFamily.__qualname__}")
    return found


def _is_family(found: object) -> TypeIs[Family]:
    return all(hasattr(found, member) for member in _MEMBERS)


def _has_variants(found: Family) -> TypeIs[FamilyWithVariants]:
    return hasattr(found, "variant")
