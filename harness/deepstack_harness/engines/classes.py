"""The deepstack classes of a source, bound as its engine says."""

from collections.abc import Callable, Mapping
from functools import partial

from deepstack_harness.binding.argument_class import ArgumentClass, MakeEngine
from deepstack_harness.binding.argument_files import ArgumentCut
from deepstack_harness.binding.cut_model import ModelCut
from deepstack_harness.binding.discover import FoundCut
from deepstack_harness.binding.found_classes import Found, define_found
from deepstack_harness.binding.methods_class import MethodsClass, define_methods
from deepstack_harness.binding.split_files import SplitCut
from deepstack_harness.binding.splitter import PayloadSplitter
from deepstack_harness.engines.cuts import cut_methods_of, cuts_of
from deepstack_harness.engines.fastdeploy_model import define_fastdeploy
from deepstack_harness.engines.marked_model import KINDS as MARKED_KINDS
from deepstack_harness.engines.marked_model import MarkedEngine, of_lmdeploy, of_transformers
from deepstack_harness.engines.sglang_model import SglangEngine
from deepstack_harness.engines.sglang_runner_stand_ins import RUNNER_KINDS
from deepstack_harness.engines.sglang_stand_ins import KINDS
from deepstack_harness.engines.splitter_model import MegatronSplitter, SwiftSplitter, rehearse
from deepstack_harness.engines.tensorrt_model import KINDS as TENSORRT_KINDS
from deepstack_harness.engines.tensorrt_model import TensorRtEngine
from deepstack_harness.engines.tpu_inference_model import define_patched
from deepstack_harness.engines.vllm_ascend_model import define_wrapped
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source


def methods_of(source: Source, family: str = "qwen3_vl") -> MethodsClass:
    """Bind the get, set and clear of a family's class; raise what `cut_methods_of` raises.

    Raises `UsageError` too for a class that cannot be run without its package.
    """
    return _define(source)(cut_methods_of(source, family))


def classes_of(source: Source) -> list[Found]:
    """Find and bind every deepstack class of a source; raise what `cuts_of` raises."""
    return [define_class(source, found) for found in cuts_of(source)]


def define_class(source: Source, found: FoundCut) -> Found:
    """Define a class in each way in which it was cut, with the engine around it where there is one."""
    overlaid = _OVERLAYS.get(source.package)
    if overlaid is not None:
        return overlaid(source, found)
    cut = found.methods
    if isinstance(cut, SplitCut):
        return _define_splitter(source, found, cut)
    if not isinstance(cut, ArgumentCut):
        return define_found(source, found, _define(source))
    make, kinds = _ARGUMENT_ENGINES[source.package]
    bound = ArgumentClass(cut, make, kinds)
    why = found.forward if isinstance(found.forward, str) else ""
    try:
        graphs = bound.rehearse()
    except UsageError as error:
        return Found(source, found.model_class, found.member, refusals=(why, str(error)))
    return Found(source, found.model_class, found.member, bound, refusals=(why,), graphs=graphs)


def _define_splitter(source: Source, found: FoundCut, cut: SplitCut) -> Found:
    try:
        splitter = _SPLITTERS[source.package](cut)
        rehearse(splitter)
    except UsageError as error:
        return Found(source, found.model_class, found.member, refusals=(str(error),))
    return Found(source, found.model_class, found.member, splits=splitter)


def _define(source: Source) -> Callable[[ModelCut], MethodsClass]:
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
_OVERLAYS: Mapping[str, Callable[[Source, FoundCut], Found]] = {
    "tpu-inference": define_patched,
    "vllm-ascend": define_wrapped,
}
"""Package of a plugin -> what defines a class of its base and patches it."""
