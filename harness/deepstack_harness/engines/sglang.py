"""SGLang: the payload is an argument of the text model, which it is written for anew at every visual step.

`embed_mm_inputs` scatters the levels side by side into one tensor (n, levels * hidden), the text model adds
a slice of it after each layer, and the prefill runner captures the text model alone.  How the cut parts are
called is in `sglang_model`, and which runners there were is in `sglang_runners`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from deepstack_harness.binding.argument_files import ArgumentFiles, ClassPart, Writer
from deepstack_harness.binding.cut_model import Way
from deepstack_harness.contract.rules import Rule
from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.sglang_runners import RUNNERS
from deepstack_harness.sources.known_package import KnownPackage

_SRT = "sglang/srt"

_TEXT = Way(
    verbs=MappingProxyType({"get": "forward"}),
    # `batch` is the module layers/layer_boundary/residual/batch.py, imported under another name.
    stand_ins=frozenset({"AuxHiddenStateList", "batch", "get_exec", "PPProxyTensors"}),
    given=frozenset(
        {
            "config",
            "embed_tokens",
            "end_layer",
            "layers",
            "layers_to_capture",
            "norm",
            "pp_group",
            "start_layer",
        }
    ),
    helpers=True,
)
_WRAPPER = Way(
    verbs=MappingProxyType({"set": "separate_deepstack_embeds"}),
    stand_ins=frozenset(),
    given=frozenset({"config", "deepstack_visual_indexes", "num_deepstack_embeddings"}),
    helpers=True,
    init=False,
)
FILES = ArgumentFiles(
    argument="input_deepstack_embeds",
    folder=f"{_SRT}/models",
    text=_TEXT,
    wrapper=ClassPart(f"{_SRT}/models/qwen3_vl.py", "Qwen3VLForConditionalGeneration", _WRAPPER),
    writer=Writer(
        f"{_SRT}/managers/mm_utils.py",
        "embed_mm_inputs",
        stand_ins=frozenset({"Modality", "flatten_nested_list"}),
        # Caches and the vision tower stand behind it.
        given=frozenset({"get_embedding_and_mask"}),
    ),
    replay=RUNNERS,
    slots=f"{_SRT}/model_executor/cuda_graph_buffer_registry.py",
)
_NO_STORAGE = "the payload is an argument: no storage of the engine's stays between calls"
CANNOT_ASK: Mapping[Rule, str] = MappingProxyType(
    {
        Rule.R1: "the payload is read by its effect, which has no structure: a text-only step is given None",
        Rule.R4: f"{_NO_STORAGE}, so that it has no capacity",
        Rule.R6: f"{_NO_STORAGE}, so that it has no address",
    }
)

SGLANG = KnownEngine(
    package=KnownPackage("sglang", "SGLang", mark="sglang/srt", version_file="sglang/_version.py"),
    folder=FILES.folder,
    word=FILES.argument,
    since="0.5.4",
    how="an argument of the text model, written anew at every visual step and read by its effect",
    argument=FILES,
    by_argument={"qwen3_vl": "Qwen3LLMModel", "qwen3_omni_moe_thinker": "Qwen3MoeLLMModel"},
    cannot_ask=CANNOT_ASK,
)
