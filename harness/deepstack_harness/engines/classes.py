"""The deepstack classes of a source, bound as its engine says."""

from collections.abc import Mapping

from deepstack_harness.binding.cut_model import BY_METHODS, Model, ModelCut, cut_known
from deepstack_harness.binding.discover import depth_limited
from deepstack_harness.binding.found_classes import Found, find_classes
from deepstack_harness.binding.methods_class import MethodsClass, bind_methods
from deepstack_harness.engines.known import engine_of
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source


def methods_of(source: Source, family: str = "qwen3_vl") -> MethodsClass:
    """Bind the get, set and clear of a family's class; raise what `bind_methods` raises."""
    return bind_methods(source, _model(engine_of(source).by_methods, family))


def cut_methods_of(source: Source, family: str = "qwen3_vl") -> ModelCut:
    """Read and cut the same class without running any of it; raise what `find_cuts` raises."""
    with depth_limited(source):
        return cut_known(source, _model(engine_of(source).by_methods, family), BY_METHODS)


def classes_of(source: Source) -> list[Found]:
    """Find and bind every deepstack class of a source; raise what `find_cuts` raises."""
    return find_classes(source, engine_of(source).files)


def _model(models: Mapping[str, Model], family: str) -> Model:
    # A variant such as `qwen3_vl:2b` changes our decoder and not the engine's class.
    name = family.partition(":")[0]
    if name not in models:
        raise UsageError(f"unknown model '{family}'; known are {', '.join(models)}")
    return models[name]
