"""The deepstack classes of a source, bound as its engine says."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from deepstack_harness.engines.bind import (
    ArgumentClass,
    DrivenClass,
    MakeEngine,
    PayloadSplitter,
    text_family_or_reason,
)
from deepstack_harness.engines.bound_class import MethodsClass, define_methods
from deepstack_harness.engines.cut_model import BY_FORWARD, ModelClass, ModelCut, cut_model
from deepstack_harness.engines.discover import (
    IMPORTED,
    SINCE,
    ArgumentCut,
    DeepstackCut,
    SplitCut,
    collector_paused,
    depth_limited,
)
from deepstack_harness.engines.kinds.fastdeploy_model import define_fastdeploy
from deepstack_harness.engines.kinds.marked_model import (
    KINDS as MARKED_KINDS,
)
from deepstack_harness.engines.kinds.marked_model import (
    MarkedEngine,
    of_lmdeploy,
    of_transformers,
)
from deepstack_harness.engines.kinds.sglang_model import SglangEngine
from deepstack_harness.engines.kinds.sglang_stand_ins import KINDS, RUNNER_KINDS
from deepstack_harness.engines.kinds.splitter_model import MegatronSplitter, SwiftSplitter, rehearse
from deepstack_harness.engines.kinds.tensorrt_model import KINDS as TENSORRT_KINDS
from deepstack_harness.engines.kinds.tensorrt_model import TensorRtEngine
from deepstack_harness.engines.kinds.tpu_inference_model import define_patched
from deepstack_harness.engines.kinds.vllm_ascend_model import define_wrapped
from deepstack_harness.engines.known import (
    cut_named,
    cuts_of,
    engine_of,
    family_class,
    is_imported,
    model_files_of,
    since_stated,
)
from deepstack_harness.engines.load import loaded_of
from deepstack_harness.engines.loaded_class import define_by_methods, define_loaded, made_over
from deepstack_harness.errors import Reason, UsageError, reason_of
from deepstack_harness.sources.source import Source


def methods_of(source: Source, family: str = "qwen3_vl") -> MethodsClass:
    """Bind the get, set and clear of a family's class; raise what `family_class` raises.

    Raises `UsageError` too for a class that cannot be run without its package.
    """
    model, way = family_class(source, family), engine_of(source).methods
    with since_stated(source, model), collector_paused(), depth_limited(source):
        if is_imported(source):
            return define_by_methods(loaded_of(source), model, way)
        return _definer(source)(cut_model(source, model, way))


def classes_of(source: Source) -> list[DrivenClass]:
    """Find and bind every deepstack class of a source; raise what `cuts_of` raises."""
    named = [cut_named(source, each.model_class) for each in cuts_of(source)]
    return [define_class(source, each) for each in named if each]


def define_class(source: Source, class_cut: DeepstackCut) -> DrivenClass:
    """Define a class in each way in which it can be called, with the engine around it where there is one."""
    if is_imported(source):
        return _made_by_import(source, class_cut)
    cut = class_cut.methods
    if isinstance(cut, SplitCut):
        return _define_splitter(source, class_cut, cut)
    if not isinstance(cut, ArgumentCut):
        return _define_methods(source, class_cut)
    make, kinds = _ARGUMENT_ENGINES[source.package]
    bound = ArgumentClass(cut, make, kinds)
    refusals = (class_cut.forward,) if isinstance(class_cut.forward, Reason) else ()
    try:
        graphs = bound.rehearse()
    except UsageError as error:
        return DrivenClass(source, class_cut, refusals=(*refusals, reason_of(error)))
    return DrivenClass(source, class_cut, bound, refusals=refusals, graphs=graphs)


def _made_by_import(source: Source, found: DeepstackCut) -> DrivenClass:
    """Define a class as Python makes it, by importing its package in this process, and patch it.

    Raises what `Source.python_files` raises.
    """
    if isinstance(found.methods, Reason) and found.methods is not IMPORTED:
        return DrivenClass(source, found, refusals=(found.methods,))
    files = model_files_of(source)
    known = {model.class_name: model for model in files.known}
    plain = ModelClass(found.member, found.class_name, SINCE)
    model = replace(known.get(found.class_name, plain), member=found.member, parts=files.parts)
    with collector_paused():
        loaded = loaded_of(source)
        if source.package == "tpu-inference":
            return define_patched(source, found, partial(made_over, loaded, model, BY_FORWARD))
        methods, forward, refusals = define_loaded(loaded, model, files.methods, files.forward)
        text = text_family_or_reason(loaded, forward, found.text)
        driven = DrivenClass(source, found, methods, forward, refusals, text=text)
        return define_wrapped(driven) if source.package == "vllm-ascend" else driven


def _define_splitter(source: Source, class_cut: DeepstackCut, cut: SplitCut) -> DrivenClass:
    try:
        splitter = _SPLITTERS[source.package](cut)
        rehearse(splitter)
    except UsageError as error:
        return DrivenClass(source, class_cut, refusals=(reason_of(error),))
    return DrivenClass(source, class_cut, splits=splitter)


def _define_methods(source: Source, class_cut: DeepstackCut) -> DrivenClass:
    """Define a class by its get, set and clear alone."""
    if not isinstance(class_cut.methods, ModelCut):
        assert isinstance(class_cut.methods, Reason)
        return DrivenClass(source, class_cut, refusals=(class_cut.methods,))
    try:
        return DrivenClass(source, class_cut, _definer(source)(class_cut.methods))
    except UsageError as error:
        return DrivenClass(source, class_cut, refusals=(reason_of(error),))


def _definer(source: Source) -> Callable[[ModelCut], MethodsClass]:
    """Return what defines a class of a source by its get, set and clear."""
    return _BUFFER_ENGINES.get(source.package, define_methods)


_BUFFER_ENGINES: Mapping[str, Callable[[ModelCut], MethodsClass]] = {"fastdeploy": define_fastdeploy}
"""Package -> what defines a class that needs other stand-ins than vLLM's."""
_ARGUMENT_ENGINES: Mapping[str, tuple[MakeEngine, tuple[type, ...]]] = {
    "sglang": (SglangEngine, (*KINDS, *RUNNER_KINDS)),
    "transformers": (partial(MarkedEngine, arguments=of_transformers), MARKED_KINDS),
    "tensorrt-llm": (TensorRtEngine, TENSORRT_KINDS),
    "lmdeploy": (partial(MarkedEngine, arguments=of_lmdeploy), MARKED_KINDS),
}
"""Package -> what makes an engine of it, and its stand-ins."""
_SPLITTERS: Mapping[str, Callable[[SplitCut], PayloadSplitter]] = {
    "ms-swift": SwiftSplitter,
    "mbridge": MegatronSplitter,
    "megatron-bridge": MegatronSplitter,
}
"""Package -> what makes a splitter of its functions."""
