"""The deepstack classes of a source, bound as its engine says."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from deepstack_harness.engines.argument_parts import Hosts, load_parts
from deepstack_harness.engines.bind import (
    ArgumentClass,
    DrivenClass,
    MakeEngine,
    PayloadSplitter,
    text_family_or_reason,
)
from deepstack_harness.engines.bound_class import MethodsClass
from deepstack_harness.engines.discover import (
    IMPORTED,
    SINCE,
    ArgumentModel,
    FoundClass,
    FoundSplitter,
    collector_paused,
    depth_limited,
)
from deepstack_harness.engines.kinds.fastdeploy_model import BUFFER as FASTDEPLOY_BUFFER
from deepstack_harness.engines.kinds.marked_model import HOSTS as MARKED_HOSTS
from deepstack_harness.engines.kinds.marked_model import KINDS as MARKED_KINDS
from deepstack_harness.engines.kinds.marked_model import (
    MarkedEngine,
    of_lmdeploy,
    of_transformers,
)
from deepstack_harness.engines.kinds.sglang_model import HOSTS as SGLANG_HOSTS
from deepstack_harness.engines.kinds.sglang_model import SglangEngine
from deepstack_harness.engines.kinds.sglang_stand_ins import KINDS, RUNNER_KINDS
from deepstack_harness.engines.kinds.splitter_model import MegatronSplitter, SwiftSplitter, rehearse
from deepstack_harness.engines.kinds.tensorrt_model import HOSTS as TENSORRT_HOSTS
from deepstack_harness.engines.kinds.tensorrt_model import KINDS as TENSORRT_KINDS
from deepstack_harness.engines.kinds.tensorrt_model import TensorRtEngine
from deepstack_harness.engines.kinds.tpu_inference_model import define_patched
from deepstack_harness.engines.kinds.vllm_ascend_model import STAND_INS as ASCEND_STAND_INS
from deepstack_harness.engines.known import (
    family_class,
    find_classes,
    found_named,
    model_files_of,
    since_stated,
)
from deepstack_harness.engines.load import LoadedSource, loaded_of
from deepstack_harness.engines.loaded_class import (
    VLLM_BUFFER,
    BufferEngine,
    define_by_methods,
    define_loaded,
)
from deepstack_harness.engines.model_class import ModelClass
from deepstack_harness.errors import Reason, UsageError, reason_of
from deepstack_harness.sources.source import Source


def methods_of(source: Source, family: str = "qwen3_vl") -> MethodsClass:
    """Bind the get, set and clear of a family's class; raise what `family_class` raises.

    Raises `UsageError` too for a class that cannot be run without its package.
    """
    model = family_class(source, family)
    with since_stated(source, model), collector_paused(), depth_limited(source):
        return define_by_methods(loaded_of(source), model, _buffer_engine(source))


def classes_of(source: Source) -> list[DrivenClass]:
    """Find and bind every deepstack class of a source; raise what `find_classes` raises."""
    named = [found_named(source, each.model_class) for each in find_classes(source)]
    return [define_class(source, each) for each in named if each]


def define_class(source: Source, found: FoundClass) -> DrivenClass:
    """Define a class in each way in which it can be called, with the engine around it where there is one."""
    of = found.methods
    if isinstance(of, FoundSplitter):
        return _define_splitter(source, found, of)
    if isinstance(of, ArgumentModel):
        return _define_argument(source, found, of)
    return _define_buffer(source, found)


def _define_argument(source: Source, found: FoundClass, of: ArgumentModel) -> DrivenClass:
    make, kinds, hosts = _ARGUMENT_ENGINES[source.package]
    refusals = (found.forward,) if isinstance(found.forward, Reason) else ()
    try:
        with collector_paused():
            loaded = loaded_of(source)
            bound = ArgumentClass(load_parts(loaded, of, hosts), make, kinds)
            with loaded.without_stubs():
                graphs = bound.rehearse()
    except UsageError as error:
        return DrivenClass(source, found, refusals=(*refusals, reason_of(error)))
    return DrivenClass(source, found, bound, refusals=refusals, graphs=graphs)


def _define_buffer(source: Source, found: FoundClass) -> DrivenClass:
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
            return define_patched(source, found, loaded, model)
        if found.patch is not None:
            try:
                loaded.module(found.patch.of.member)
            except UsageError as error:
                return DrivenClass(source, found, refusals=(reason_of(error),))
            raised = tuple(loaded.raised({found.patch.of.member}, frozenset({found.class_name})))
            if raised:
                return DrivenClass(source, found, refusals=raised)
            model = replace(model, parts=replace(model.parts, stand_ins=ASCEND_STAND_INS))
        methods, forward, refusals = define_loaded(loaded, model, files.forward, _buffer_engine(source))
        text = text_family_or_reason(loaded, forward, found.text)
        return DrivenClass(source, found, methods, forward, refusals, text=text)


def _define_splitter(source: Source, found: FoundClass, of: FoundSplitter) -> DrivenClass:
    try:
        with collector_paused():
            loaded = loaded_of(source)
            splitter = _SPLITTERS[source.package](loaded, of)
            with loaded.without_stubs():
                rehearse(splitter)
    except UsageError as error:
        return DrivenClass(source, found, refusals=(reason_of(error),))
    return DrivenClass(source, found, splits=splitter)


def _buffer_engine(source: Source) -> BufferEngine:
    return FASTDEPLOY_BUFFER if source.package == "fastdeploy" else VLLM_BUFFER


_ARGUMENT_ENGINES: Mapping[str, tuple[MakeEngine, tuple[type, ...], Hosts]] = {
    "sglang": (SglangEngine, (*KINDS, *RUNNER_KINDS), SGLANG_HOSTS),
    "transformers": (partial(MarkedEngine, arguments=of_transformers), MARKED_KINDS, MARKED_HOSTS),
    "tensorrt-llm": (TensorRtEngine, TENSORRT_KINDS, TENSORRT_HOSTS),
    "lmdeploy": (partial(MarkedEngine, arguments=of_lmdeploy), MARKED_KINDS, MARKED_HOSTS),
}
"""Package -> what makes an engine of it, its stand-ins, and the hosts of its parts."""
_SPLITTERS: Mapping[str, Callable[[LoadedSource, FoundSplitter], PayloadSplitter]] = {
    "ms-swift": SwiftSplitter,
    "mbridge": MegatronSplitter,
    "megatron-bridge": MegatronSplitter,
}
"""Package -> what makes a splitter of its functions."""
