"""vLLM-Omni: its own copy of the Qwen3-Omni thinker, under vLLM's names and in vLLM's call order.

Its files import from the installed vLLM, which a source of vLLM-Omni does not hold: every such name that
the buffer's code uses is replaced here.
"""

from types import MappingProxyType
from typing import Any

from deepstack_harness.engines.engine import KnownEngine, StoredPayload
from deepstack_harness.engines.model_class import EngineParts, ModelClass
from deepstack_harness.sources.source import KnownPackage

_FOLDER = "vllm_omni/model_executor/models/qwen3_omni"


class _NoQuantization:
    """A quantization of single components (vllm_omni/quantization); nothing here is quantized."""


def _merge(inputs_embeds: Any, multimodal_embeddings: Any, is_multimodal: Any) -> Any:  # noqa: ANN401
    """Put visual tensors (N, w) into the marked rows of (n, w) (vllm/model_executor/models/utils.py).

    Raises `ValueError` where they have not as many rows as are marked.
    """
    places = is_multimodal.nonzero().squeeze(1).tolist()
    rows = [row for image in multimodal_embeddings for row in image]
    for place, row in zip(places, rows, strict=True):
        inputs_embeds[place] = row
    return inputs_embeds


_PARTS = EngineParts(
    stand_ins=MappingProxyType(
        {
            "ComponentQuantizationConfig": _NoQuantization,
            "PRE_QUANTIZED_METHODS": frozenset[str](),
            # Only interleaved audio reads the tag (vllm/multimodal/utils.py).
            "set_mm_embedding_modality": lambda *_: None,
            # No step here has audio (vllm/model_executor/models/qwen2_5_omni_thinker.py).
            "check_interleaved_audio_video": lambda *_: False,
            "merge_interleaved_embeddings": None,  # only called where the check above is true
            "_merge_multimodal_embeddings": _merge,
        }
    ),
    settings=MappingProxyType({"quant_config": None, "model_config.multimodal_config": None}),
    output=lambda hidden: (hidden, {}),  # hidden states, and those that were captured for the talker
)

VLLM_OMNI = KnownEngine(
    package=KnownPackage(
        # vLLM's package folder has model_executor/ too, so that is no mark.
        "vllm-omni", "vLLM-Omni", mark="vllm_omni/diffusion", version_file="vllm_omni/_version.py",
    ),
    folder=_FOLDER,
    word="deepstack",
    since="0.14",
    how="a buffer on the thinker, in vLLM's order; get zeroes the rows behind the payload since 0.22",
    payload=StoredPayload(
        {
            "qwen3_omni_moe_thinker": ModelClass(
                f"{_FOLDER}/qwen3_omni_moe_thinker.py",
                "Qwen3OmniMoeThinkerForConditionalGeneration",
                since="0.14.0",
                nested="thinker_config",
                parts=_PARTS,
            )
        },
        parts=_PARTS,
    ),
)  # fmt: skip
