"""The deepstack classes of a source, defined by the calls of its engine (`KnownEngine.calls`)."""

from deepstack_harness.contract.names import imported
from deepstack_harness.engines.bind import DefinedClass
from deepstack_harness.engines.bound_class import MethodsClass
from deepstack_harness.engines.calls import BufferCalls, EngineCalls
from deepstack_harness.engines.discover import IMPORTED, FoundClass, collector_paused, depth_limited
from deepstack_harness.engines.known import (
    engine_of,
    family_class,
    find_classes,
    found_named,
    since_stated,
)
from deepstack_harness.engines.load import loaded_of
from deepstack_harness.errors import Reason, UsageError
from deepstack_harness.sources.source import Source


def calls_of(source: Source) -> EngineCalls:
    """Return what makes the classes of a source run; raise `UsageError` where the engine's is missing."""
    engine = engine_of(source)
    try:
        calls = imported(engine.calls)
    except (ImportError, AttributeError) as error:
        name = engine.package.name
        raise UsageError(f"engine '{name}': its calls '{engine.calls}' are not there: {error}") from error
    if not isinstance(calls, EngineCalls):
        raise UsageError(f"engine '{engine.package.name}': {engine.calls} has no method 'define'")
    return calls


def methods_of(source: Source, family: str = "qwen3_vl") -> MethodsClass:
    """Bind the get, set and clear of a family's class; raise what `family_class` raises.

    Raises `UsageError` too for a class that cannot be run without its package.
    """
    model = family_class(source, family)
    calls = calls_of(source)
    assert isinstance(calls, BufferCalls)  # of an engine that has model classes by family
    with since_stated(source, model), collector_paused(), depth_limited(source):
        return calls.by_methods(loaded_of(source), model)


def classes_of(source: Source) -> list[DefinedClass]:
    """Find and bind every deepstack class of a source; raise what `find_classes` raises."""
    named = [found_named(source, found.model_class) for found in find_classes(source)]
    return [define_class(source, found) for found in named if found]


def define_class(source: Source, found: FoundClass) -> DefinedClass:
    """Define a class in each way in which it can be called, with the engine around it where there is one."""
    if isinstance(found.methods, Reason) and found.methods is not IMPORTED:
        return DefinedClass(source, found, refusals=(found.methods,))
    with collector_paused():
        return calls_of(source).define(source, found, engine_of(source))
