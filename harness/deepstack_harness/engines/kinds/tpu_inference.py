"""tpu-inference: a plugin that stores vLLM's payloads in a dict of the model, for steps that JAX compiles.

Its patches set attributes of a model object (models/vllm/experimental/).  Qwen3-VL's packs all levels after
the embeddings, an argument of the jitted step, and its forward unpacks them; Qwen3-Omni's reads the dict
inside the step.  A step with visual or audio embeddings is embedded outside of the jitted function, a step of
text passes its token ids (runner/tpu_runner.py `_get_input_ids_embeds` in 0.32.0).
"""

from collections.abc import Mapping
from types import MappingProxyType

from deepstack_harness.contract.rules import Rule
from deepstack_harness.engines.engine import KnownEngine, Overlay
from deepstack_harness.engines.kinds.vllm import VLLM
from deepstack_harness.engines.model_class import Patch
from deepstack_harness.sources.source import KnownPackage

_FOLDER = "tpu_inference/models/vllm/experimental"
INAPPLICABLE: Mapping[Rule, str] = MappingProxyType(
    {Rule.ADDRESS: "a payload is a JAX array, which has no address: a jitted step is given its arguments"}
)

TPU_INFERENCE = KnownEngine(
    package=KnownPackage(
        "tpu-inference",
        "tpu-inference",
        mark="tpu_inference/models",
        version_file="tpu_inference/_version.py",
    ),
    folder=_FOLDER,
    word="deepstack",
    since="0.19",
    how=(
        "a plugin over vLLM's classes (--base vllm==X): a dict on the model, which Qwen3-VL packs behind the "
        "embeddings of a jitted step"
    ),
    payload=Overlay(
        base=VLLM,
        patches=MappingProxyType(
            {
                "Qwen3VLForConditionalGeneration": Patch(
                    f"{_FOLDER}/qwen3_vl_patcher.py", "apply_qwen3_vl_patches", "_patched_forward"
                ),
                "Qwen3OmniMoeThinkerForConditionalGeneration": Patch(
                    f"{_FOLDER}/qwen3_omni_patcher.py",
                    "apply_qwen3_omni_patches",
                    "_patched_qwen3_omni_forward",
                    audio=True,
                ),
            }
        ),
        reads_too=frozenset({"config", "deepstack_num_level", "use_deepstack", "visual_dim"}),
        pinned_in=("requirements.txt",),
    ),
    calls="deepstack_harness.engines.kinds.tpu_inference_model:CALLS",
    inapplicable=INAPPLICABLE,
)  # fmt: skip
