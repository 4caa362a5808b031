"""vllm-ascend: a plugin that wraps vLLM's get of Qwen3-VL, so that each rank gets its share of the rows.

Under sequence parallelism a rank has the hidden states of its own tokens, and the wrap returns
`chunk(ranks)[rank]` of each level (patch/worker/patch_qwen3vl.py).  The runner pads a step to a multiple of
the ranks first (`_pad_for_sequence_parallelism`).  Qwen3-Omni and Granite are not wrapped.
"""

from types import MappingProxyType

from deepstack_harness.engines.engine import KnownEngine, Overlay
from deepstack_harness.engines.kinds.vllm import VLLM
from deepstack_harness.engines.model_class import Patch
from deepstack_harness.sources.source import KnownPackage

_FOLDER = "vllm_ascend/patch/worker"

VLLM_ASCEND = KnownEngine(
    package=KnownPackage(
        "vllm-ascend", "vllm-ascend", mark="vllm_ascend/patch", version_file="vllm_ascend/_version.py"
    ),
    folder=_FOLDER,
    word="deepstack",
    since="0.13",
    how="a plugin over vLLM's Qwen3-VL (the pinned release, or --base): each rank gets its share of the rows",
    payload=Overlay(
        base=VLLM,
        patches=MappingProxyType({"Qwen3VLForConditionalGeneration": Patch(f"{_FOLDER}/patch_qwen3vl.py")}),
        pinned_in=("Dockerfile",),
        splits=True,
        base_storage=True,
    ),
    calls="deepstack_harness.engines.kinds.vllm_ascend_model:CALLS",
)
