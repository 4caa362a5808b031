"""transformers and LMDeploy: text models that are given a mask of visual tokens, and a list of levels.

Both add level i to the marked rows after layer i. Mask and levels are made by the outer model's forward,
which needs its vision tower: here they are passed as that forward passes them.
"""

from collections.abc import Mapping
from types import MappingProxyType

from deepstack_harness.contract.rules import Rule
from deepstack_harness.engines.discover import ArgumentFiles
from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.model_class import CalledMethods
from deepstack_harness.sources.source import KnownPackage

_ARGUMENT = "deepstack_visual_embeds"
_PROVIDED = frozenset(
    {
        "config", "embed_tokens", "embedding_multiplier", "gradient_checkpointing", "has_sliding_layers",
        "layers", "norm", "rotary_emb", "training",
    }
)  # fmt: skip
_NO_STORAGE = "the payload is an argument: no storage of the engine's stays between calls"
_HOW = "a mask and a list of levels, arguments of the text model, read by their effect"
INAPPLICABLE: Mapping[Rule, str] = MappingProxyType(
    {
        Rule.STRUCTURE: (
            "the payload is read by its effect, which has no structure: a text-only step is given None"
        ),
        Rule.CAPACITY: f"{_NO_STORAGE}, so that it has no capacity",
        Rule.ADDRESS: f"{_NO_STORAGE}, so that it has no address",
        Rule.REJECTION: (
            "mask and levels come from one forward, so that the engine makes no call with wrong ones"
        ),
    }
)


_TEXT_MODEL = CalledMethods(MappingProxyType({"get": "forward"}), _PROVIDED, init=False)
"""The way to call a text model's forward."""


TRANSFORMERS = KnownEngine(
    package=KnownPackage(
        "transformers", "transformers", mark="transformers/models", version_file="transformers/__init__.py"
    ),
    folder="transformers/models",
    word=_ARGUMENT,
    since="4.57",
    how=_HOW,
    payload=ArgumentFiles(
        argument=_ARGUMENT,
        folder="transformers/models",
        members=(
            "transformers/models/qwen3_vl/modeling_qwen3_vl.py",
            "transformers/models/qwen3_vl_moe/modeling_qwen3_vl_moe.py",
            "transformers/models/qwen3_omni_moe/modeling_qwen3_omni_moe.py",
            "transformers/models/cohere_compass/modeling_cohere_compass.py",
            "transformers/models/granite_docling/modeling_granite_docling.py",
        ),
        text=_TEXT_MODEL,
        replay="its graphs are those of the user's own torch.compile",
        by_family={"qwen3_vl": "Qwen3VLTextModel", "qwen3_omni_moe_thinker": "Qwen3OmniMoeThinkerTextModel"},
    ),
    calls="deepstack_harness.engines.kinds.marked_model:TRANSFORMERS_CALLS",
    inapplicable=INAPPLICABLE,
)  # fmt: skip

LMDEPLOY = KnownEngine(
    package=KnownPackage("lmdeploy", "LMDeploy", mark="lmdeploy/pytorch", version_file="lmdeploy/version.py"),
    folder="lmdeploy/pytorch/models",
    word=_ARGUMENT,
    since="0.11",
    how=_HOW,
    payload=ArgumentFiles(
        argument=_ARGUMENT,
        folder="lmdeploy/pytorch/models",
        text=_TEXT_MODEL,
        replay="it captures decode steps alone, which have no payload",
        by_family={"qwen3_vl": "Qwen3VLTextModel", "qwen3_omni_moe_thinker": "Qwen3VLMoeTextModel"},
    ),
    calls="deepstack_harness.engines.kinds.marked_model:LMDEPLOY_CALLS",
    inapplicable=INAPPLICABLE,
)
