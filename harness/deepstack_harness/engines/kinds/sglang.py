"""SGLang: the payload is an argument of the text model, which is written anew at every visual step.

`embed_mm_inputs` scatters the levels side by side into one tensor (n, levels * hidden), the text model adds
a slice of it after each layer, and the prefill runner captures only the text model. `sglang_model` calls
these parts.

The prefill runners are listed newest first: the class that replays a step, and the arguments of its
methods. The first file that a source has decides, so that a runner that cannot be called is refused, and is
not passed over for an older one.  No version is looked at; the releases below are those that were read.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from deepstack_harness.contract.rules import Rule
from deepstack_harness.engines.discover import ArgumentFiles, ClassPart
from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.model_class import CalledMethods
from deepstack_harness.sources.source import KnownPackage

_EXECUTOR = "sglang/srt/model_executor"
_PREFILL = f"{_EXECUTOR}/runner/prefill_cuda_graph_runner.py"
_BREAKABLE = f"{_EXECUTOR}/breakable_cuda_graph_runner.py"
_PIECEWISE = f"{_EXECUTOR}/piecewise_cuda_graph_runner.py"
_LAYERS = frozenset(
    {
        "attention_layers", "dsa_indexers", "layer_model", "model_runner", "moe_fusions", "moe_layers",
        "quant_config", "raw_num_tokens",
    }
)  # fmt: skip


def _runner(verbs: Mapping[str, str], provided: Collection[str]) -> CalledMethods:
    """Return the methods of a runner that are called; nothing of its `__init__` runs."""
    return CalledMethods(MappingProxyType(verbs), frozenset(provided), init=False)


_BODY = _runner(
    {"get": "_run_forward", "set": "_execute_body_capture"},
    {
        "_capture_pp_proxy_tensors", "_get_layer_model_positions", "_input_embeds_arg_idx",
        "_is_full_backend", "_prefill_forward_context", "_qwen_bcg_hc_sidechannel", "_static_num_tokens",
        "_use_draft_input_embeds", "_uses_eager_prefill_tail", "backend", "buffer_registry",
        "is_dsv41_model", "layer_model", "model_runner",
    },
)  # fmt: skip
_EXECUTE = _runner(
    {"get": "_run_forward", "set": "execute"},
    _LAYERS
    | {
        "_input_embeds_arg_idx", "_is_full_backend", "_static_num_tokens", "backend", "buffer_registry",
        "load_batch", "raw_bs",
    },
)  # fmt: skip
_GRAPHS = _runner(
    {"get": "_run_forward", "set": "replay"},
    _LAYERS
    | {
        "_input_embeds_arg_idx", "_prepare_forward_metadata_for_replay", "buffer_registry",
        "capture_num_tokens", "graphs", "output_buffers", "replay_prepare", "static_extend_prefix_lens",
        "static_extend_seq_lens", "static_extend_start_loc", "static_orig_seq_lens",
        "static_req_pool_indices", "static_seq_lens", "use_input_embeds",
    },
)  # fmt: skip
_COMPILED = _runner({"set": "replay"}, _LAYERS | {"capture_num_tokens", "replay_prepare"})
RUNNERS = (
    ClassPart(_PREFILL, "PrefillCudaGraphRunner", _BODY),  # 0.5.16 to 0.5.23
    ClassPart(  # 0.5.14 to 0.5.15.post1
        _PREFILL, "PrefillCudaGraphRunner", _EXECUTE, settings="--cuda-graph-backend-prefill breakable"
    ),
    ClassPart(  # 0.5.11 to 0.5.13.post1
        _BREAKABLE,
        "BreakableCudaGraphRunner",
        _GRAPHS,
        settings="--enforce-piecewise-cuda-graph with --enable-breakable-cuda-graph",
    ),
    ClassPart(  # up to 0.5.10.post1
        _PIECEWISE,
        "PiecewiseCudaGraphRunner",
        _COMPILED,
        note="it captures nothing around the text model: the graphs lie inside torch.compile, which guards "
        "the model's arguments and is not run here",
    ),
)
"""Runners, newest first. One without the verb `get` has no graph of its own around the text model."""


_SRT = "sglang/srt"

_TEXT = CalledMethods(
    verbs=MappingProxyType({"get": "forward"}),
    provided=frozenset(
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
)
_WRAPPER = CalledMethods(
    verbs=MappingProxyType({"set": "separate_deepstack_embeds"}),
    provided=frozenset({"config", "deepstack_visual_indexes", "num_deepstack_embeddings"}),
    init=False,
)
FILES = ArgumentFiles(
    argument="input_deepstack_embeds",
    folder=f"{_SRT}/models",
    text=_TEXT,
    wrapper=ClassPart(f"{_SRT}/models/qwen3_vl.py", "Qwen3VLForConditionalGeneration", _WRAPPER),
    writer=(f"{_SRT}/managers/mm_utils.py", "embed_mm_inputs"),
    replay=RUNNERS,
    slots=f"{_SRT}/model_executor/cuda_graph_buffer_registry.py",
    by_family={"qwen3_vl": "Qwen3LLMModel", "qwen3_omni_moe_thinker": "Qwen3MoeLLMModel"},
)
_NO_STORAGE = "the payload is an argument: no storage of the engine's stays between calls"
INAPPLICABLE: Mapping[Rule, str] = MappingProxyType(
    {
        Rule.STRUCTURE: (
            "the payload is read by its effect, which has no structure: a text-only step is given None"
        ),
        Rule.CAPACITY: f"{_NO_STORAGE}, so that it has no capacity",
        Rule.ADDRESS: f"{_NO_STORAGE}, so that it has no address",
    }
)

SGLANG = KnownEngine(
    package=KnownPackage("sglang", "SGLang", mark="sglang/srt", version_file="sglang/_version.py"),
    folder=FILES.folder,
    word=FILES.argument,
    since="0.5.4",
    how="an argument of the text model, written anew at every visual step and read by its effect",
    payload=FILES,
    calls="deepstack_harness.engines.kinds.sglang_model:CALLS",
    inapplicable=INAPPLICABLE,
)
