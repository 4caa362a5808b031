"""The deepstack classes of a source, bound as its engine says."""

from deepstack_harness.binding.found_classes import Found, find_classes
from deepstack_harness.binding.methods_class import MethodsClass, define_methods
from deepstack_harness.engines.cuts import cut_methods_of
from deepstack_harness.engines.known import engine_of
from deepstack_harness.sources.source import Source


def methods_of(source: Source, family: str = "qwen3_vl") -> MethodsClass:
    """Bind the get, set and clear of a family's class; raise what `cut_methods_of` raises.

    Raises `UsageError` too for a class that cannot be run without its package.
    """
    return define_methods(cut_methods_of(source, family))


def classes_of(source: Source) -> list[Found]:
    """Find and bind every deepstack class of a source; raise what `find_cuts` raises."""
    return find_classes(source, engine_of(source).files)
