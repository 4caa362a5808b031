"""The surroundings of a vLLM model, for one rank on a CPU: settings, groups, the context of a step.

The engine's own layers, its registry and its decorator that compiles are what runs.  Attention needs a
cache, and experts need kernels; neither changes what becomes of a payload.  Attention returns its query, and
experts return their input.
"""

import importlib
import inspect
import os
import sys
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from deepstack_harness.engines.load import LoadedSource
from deepstack_harness.engines.tiny import HIDDEN, Config, Inputs, Tiny

_CONFIG = "vllm/config/compilation.py"
_NEEDED = (
    _CONFIG,
    "vllm/forward_context.py",
    "vllm/distributed/parallel_state.py",
    "vllm/model_executor/models/registry.py",
)
_ATTENTION = (
    "vllm/attention/__init__.py",
    "vllm/attention/layer.py",
    "vllm/model_executor/layers/attention/attention.py",
    "vllm/model_executor/layers/attention/encoder_only_attention.py",
    "vllm/model_executor/layers/attention/cross_attention.py",
    "vllm/model_executor/layers/attention/mm_encoder_attention.py",
)
_CHECKED = (
    "transformers.CohereConfig",
    "transformers.models.gemma3n.configuration_gemma3n.Gemma3nTextConfig",
)
"""Classes of a configuration that models check by isinstance."""
_EXPERTS = "vllm/model_executor/layers/fused_moe/__init__.py"
_ENVIRONMENT = {
    "VLLM_USE_AOT_COMPILE": "0", "VLLM_USE_BYTECODE_HOOK": "0", "VLLM_LOGGING_LEVEL": "ERROR",
}  # fmt: skip
"""Compile when a model is called, and drop its guards only by the filter of the decorator."""
_GROUPS = ("_TP", "_PP", "_DP", "_EP", "_WORLD", "_DCP", "_PCP", "_EPLB")


class EngineSettings(SimpleNamespace):
    """Settings that models read: one that nobody gave is None, a method that nobody gave returns None."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return (lambda *_, **__: None) if name.startswith(("get_", "_get_", "try_get_", "is_")) else None


class _Config(EngineSettings):
    """`VllmConfig`, as far as models read it."""

    def with_hf_config(self, hf_config: Any, architectures: object = None, **_: object) -> "_Config":  # noqa: ANN401
        """Return the settings of a model inside this one."""
        if architectures:
            hf_config.architectures = architectures
        inner = {"hf_config": hf_config, "hf_text_config": hf_config, "architectures": architectures}
        return _Config(
            **{**vars(self), "model_config": EngineSettings(**{**vars(self.model_config), **inner})}
        )


class _Group:
    """A parallel group of one rank."""

    world_size = 1
    rank_in_group = rank = local_rank = 0
    is_first_rank = is_last_rank = True
    ranks = (0,)
    device_communicator = None
    device_group = cpu_group = SimpleNamespace(size=lambda: 1, rank=lambda: 0)

    def all_reduce(self, value: object, *_: object, **__: object) -> object:
        return value

    all_gather = reduce_scatter = all_gatherv = all_reduce


class _Native:
    """The order of implementations of each operation: the one in Python."""

    def __getattr__(self, _: str) -> list[str]:
        return ["native"]


class _Attention(nn.Module):
    """Attention that returns its query."""

    def __init__(self, *_: object, **__: object) -> None:
        nn.Module.__init__(self)  # it becomes that of another class

    def forward(self, query: Tensor, *_: object, **__: object) -> Tensor:
        return query.flatten(1)

    def cross(self, query: Tensor, _: object, value: Tensor | None, *__: object) -> Tensor:
        """Add the mean of an encoder's values (m, ..) to the query (n, ..)."""
        return query if value is None else query + value.mean(0)


class _Streams(nn.Module):
    """Parallel residual streams: a block reads their mean, and its output is added to each of them.

    vLLM's own are Triton kernels.
    """

    def __init__(self, config: Any, *_: object, **__: object) -> None:  # noqa: ANN401  # of the engine
        super().__init__()
        self._streams: int = config.hc_count

    def mix(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean = streams.reshape(len(streams), self._streams, -1).mean(-2)
        return streams, mean, mean

    def combine(self, streams: Tensor, block: Tensor, _: Tensor) -> Tensor:
        return streams + block.repeat(1, self._streams)

    def combine_and_mix(
        self, streams: Tensor, block: Tensor | None, injection: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self.mix(streams if block is None else self.combine(streams, block, injection))


class _Experts(nn.Module):
    """Experts that return their input."""

    is_internal_router = False

    def __init__(self, *_: object, **__: object) -> None:
        nn.Module.__init__(self)

    def forward(self, hidden_states: Tensor, *_: object, **__: object) -> Tensor:
        return hidden_states


class _Tower(nn.Module):
    """A vision or audio tower without layers."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()
        self.out_hidden_size = self.d_model = HIDDEN
        self.spatial_merge_size = 2
        self.deepstack_visual_indexes = (0, 1, 2)

    @classmethod
    def from_config(cls, *_: object, **__: object) -> "_Tower":
        """Return a tower, as `AutoModel` does."""
        return cls()


class VllmSurroundings:
    """The surroundings of `engines.construct` for vLLM."""

    def prepare(self, loaded: LoadedSource, tiny: Tiny) -> None:
        """Import the module of a class and replace its towers, its attention and its experts."""
        os.environ.update(_ENVIRONMENT)
        loaded.absent.values.update(dict.fromkeys(_CHECKED, Config))
        module = loaded.module(tiny.member)
        for member in _NEEDED:
            loaded.module(member)
        _replace_layers(loaded)
        parts = {"GatedResidual": _Streams, **dict.fromkeys(tiny.towers, _Tower)}
        for imported in loaded.modules():  # a base in another file finds its towers there
            for name in parts.keys() & vars(imported).keys():
                setattr(imported, name, parts[name])
        for name in tiny.towers:  # one of a library that is not there
            setattr(module, name, _Tower)
        if hasattr(module, "cached_tokenizer_from_config"):
            setattr(module, "cached_tokenizer_from_config", lambda *_: None)  # noqa: B010  # not of ModuleType

    def build(
        self, loaded: LoadedSource, tiny: Tiny, model_class: str, capacity: int, *, compiled: bool
    ) -> nn.Module:
        """Make an object of the class with a `vllm_config` and random weights."""
        module = loaded.module(tiny.member)
        config = _settings(loaded, tiny.config(module), capacity, compiled=compiled)
        _surround(loaded, config)
        inner = torch.tensor
        # Pinned memory needs a GPU: releases up to 0.11 pin placeholders.
        unpinned: Any = lambda *values, **options: inner(*values, **{**options, "pin_memory": False})  # noqa: E731
        setattr(torch, "tensor", unpinned)  # noqa: B010  # mypy knows it as a function
        try:
            make = getattr(module, model_class.rpartition(".")[2])
            model: nn.Module = make(vllm_config=config, prefix="").eval()
        finally:
            setattr(torch, "tensor", inner)  # noqa: B010
        torch.manual_seed(0)
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if not value.is_floating_point() or "cos_sin" in name:  # tables of sines and cosines
                continue
            if value.dim() > 1:
                value.data.normal_(0, 0.3)
            else:  # such as the scale of a norm
                value.data.fill_(1.0)
        return model

    def profile(self, tiny: Tiny, model: nn.Module, tokens: int) -> None:
        """Run the model on token ids of zeros, or on embeddings of zeros, as `_dummy_run` does."""
        ids = torch.zeros(tokens, dtype=torch.long)
        self._call(model, ids, tiny.inputs or _embedded, None)

    def step(self, tiny: Tiny, model: nn.Module, tokens: int, payload: Tensor | None) -> Tensor:
        """Embed tokens with a payload (tokens, width), one media item; run the model -> (tokens, hidden)."""
        out = self._call(model, torch.arange(tokens) % 8 + 3, tiny.inputs or _embedded, payload)
        hidden: Tensor = out[0] if isinstance(out, tuple) else out
        return hidden.clone()

    def _call(self, model: Any, ids: Tensor, inputs: Inputs, payload: Tensor | None) -> Any:  # noqa: ANN401
        config: Any = getattr(model, "config", None)
        text, positions = getattr(config, "text_config", config), torch.arange(len(ids))
        if "mrope_section" in (getattr(text, "rope_parameters", None) or ()):  # of three axes
            positions = positions.expand(3, len(ids)).contiguous()
        given = {"input_ids": ids, "positions": positions, **inputs(model, ids, payload)}
        # No step with outputs of an encoder is compiled (v1/worker/gpu_model_runner.py).
        vars(sys.modules["vllm.forward_context"])["_forward_context"].skip_compiled = bool(
            given.get("encoder_outputs")
        )
        return model(**given)


def _embedded(model: Any, ids: Tensor, payload: Tensor | None) -> Mapping[str, object]:  # noqa: ANN401
    """Return embeddings of the tokens, all of them media where there is a payload."""
    embed = getattr(model, "embed_input_ids", None) or model.get_input_embeddings
    if not ids.any():
        embeddings = torch.zeros(len(ids), HIDDEN)
    elif payload is None:
        embeddings = embed(ids)
    else:
        mask = {"is_multimodal": torch.ones(len(ids), dtype=torch.bool)}
        named = mask if "is_multimodal" in inspect.signature(embed).parameters else {}
        embeddings = embed(torch.ones_like(ids), [payload], **named)
    return {"input_ids": None, "inputs_embeds": embeddings}


def _replace_layers(loaded: LoadedSource) -> None:
    """Replace attention and experts."""
    for member in _ATTENTION:
        if member not in loaded.files:
            continue
        for attention in vars(loaded.module(member)).copy().values():
            if isinstance(attention, type) and attention.__name__.endswith("Attention"):
                setattr(attention, "__init__", _Attention.__init__)  # noqa: B010
                is_cross = attention.__name__ == "CrossAttention"
                forward = _Attention.cross if is_cross else _Attention.forward
                setattr(attention, "forward", forward)  # noqa: B010
    if _EXPERTS not in loaded.files:
        return
    fused = getattr(loaded.module(_EXPERTS), "FusedMoE", None)
    if isinstance(fused, type):
        setattr(fused, "__init__", _Experts.__init__)  # noqa: B010
        setattr(fused, "forward", _Experts.forward)  # noqa: B010
        setattr(fused, "is_internal_router", False)  # noqa: B010
        return
    for module in loaded.modules():  # a function that makes one, from 0.3x on
        for name in {"FusedMoE", "FusedMoEFactory"} & vars(module).keys():
            setattr(module, name, _Experts)


def _surround(loaded: LoadedSource, config: object) -> None:
    """Make the imported vLLM one rank with this configuration."""
    groups = loaded.module("vllm/distributed/parallel_state.py")
    for name in _GROUPS:
        if hasattr(groups, name):
            setattr(groups, name, _Group())
    holder = "vllm/config/vllm.py"
    held = loaded.module(holder if holder in loaded.files else "vllm/config/__init__.py")
    setattr(held, "_current_vllm_config", config)  # noqa: B010
    context = EngineSettings(
        no_compile_layers={}, virtual_engine=0, skip_compiled=False, additional_kwargs={}
    )
    context.moe_layer_index = 0
    setattr(loaded.module("vllm/forward_context.py"), "_forward_context", context)  # noqa: B010


def _registered(architectures: str | list[str], *_: object, **__: object) -> tuple[type, str]:
    """Return a model class by the name under which vLLM lists it."""
    registry = sys.modules["vllm.model_executor.models.registry"]
    name = architectures if isinstance(architectures, str) else architectures[0]
    module, class_name = vars(registry)["_VLLM_MODELS"][name]
    return getattr(importlib.import_module(f"vllm.model_executor.models.{module}"), class_name), name


def _settings(loaded: LoadedSource, hf_config: Any, capacity: int, *, compiled: bool) -> _Config:  # noqa: ANN401
    """Return the settings of an engine with one rank that drops guards, and compiles by `eager`, or not."""
    compilation: Any = loaded.module(_CONFIG)
    kinds = getattr(compilation, "CompilationMode", None) or compilation.CompilationLevel
    names = ("DYNAMO_TRACE_ONCE", "DYNAMO_ONCE") if compiled else ("NONE", "NO_COMPILATION")
    mode = next(getattr(kinds, name) for name in names if hasattr(kinds, name))
    shapes = getattr(compilation, "DynamicShapesType", None)
    multimodal = EngineSettings(
        mm_encoder_tp_mode="weights", get_limit_per_prompt=lambda *_: 1,
        is_multimodal_pruning_enabled=lambda: False, language_model_only=False, skip_mm_profiling=False,
        enable_mm_embeds=False, mm_encoder_only=False, interleave_mm_strings=False,
    )  # fmt: skip
    model = EngineSettings(
        hf_config=hf_config, hf_text_config=hf_config.get_text_config(), dtype=torch.float32,
        multimodal_config=multimodal, get_multimodal_config=lambda: multimodal, max_model_len=256,
        is_multimodal_model=True, model="tiny", runner_type="generate",
        registry=EngineSettings(resolve_model_cls=_registered), convert_type="none", model_impl="vllm",
        enforce_eager=False, tokenizer_mode="auto", trust_remote_code=False, is_encoder_decoder=False,
        use_mla=False, get_hidden_size=lambda: HIDDEN, is_deepseek_mla=False,
        is_multimodal_raw_input_only_model=False, skip_tokenizer_init=True, is_hybrid=False,
        # Of the target of a draft model.
        get_num_layers=lambda _: 0, get_total_num_hidden_layers=lambda: 0, get_vocab_size=lambda: 64,
    )  # fmt: skip
    parallel = {
        **dict.fromkeys(
            ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
             "prefill_context_parallel_size", "decode_context_parallel_size", "world_size"), 1,
        ),
        **dict.fromkeys(
            ("enable_expert_parallel", "enable_eplb", "use_sequence_parallel_moe", "is_moe_model"), False
        ),
        **dict.fromkeys(("rank", "data_parallel_index", "data_parallel_rank"), 0),
        "eplb_config": EngineSettings(num_redundant_experts=0),
    }  # fmt: skip
    return _Config(
        model_config=model,
        speculative_config=(
            EngineSettings(draft_model_config=model) if hasattr(hf_config, "is_draft") else None
        ),
        cache_config=EngineSettings(),
        parallel_config=EngineSettings(**parallel),
        compilation_config=_compile_settings(compilation.CUDAGraphMode.NONE, mode, shapes and shapes.BACKED),
        instance_id="",
        scheduler_config=EngineSettings(
            max_num_batched_tokens=capacity, max_num_seqs=4, enable_chunked_prefill=True
        ),
        device_config=EngineSettings(device=torch.device("cpu"), device_type="cpu"),
        observability_config=EngineSettings(enable_layerwise_nvtx_tracing=False),
        additional_config={},
        kernel_config=EngineSettings(
            ir_op_priority=_Native(), moe_backend="auto", enable_flashinfer_autotune=False
        ),
        compile_debug_dump_path=lambda: None,
    )


def _compile_settings(no_graphs: object, mode: object, shapes: object) -> EngineSettings:
    backend = "eager"
    return EngineSettings(
        mode=mode, level=mode, backend=backend, custom_ops=["none"], enabled_custom_ops=Counter(),
        disabled_custom_ops=Counter(), static_forward_context={}, traced_files=set(), use_inductor=False,
        inductor_compile_config={}, init_backend=lambda *_, **__: backend, compilation_time=0.0,
        splitting_ops=[], cudagraph_mode=no_graphs, encoder_compilation_time=0.0, static_all_moe_layers=[],
        dynamic_shapes_config=EngineSettings(
            type=shapes, evaluate_guards=False, assume_32_bit_indexing=False
        ),
        pass_config=EngineSettings(enable_sp=False, enable_sequence_parallelism=False),
        fast_moe_cold_start=False,
        compile_mm_encoder=False, custom_op_log_check=lambda: None, use_cudagraph=False, debug_dump_dir="",
        max_cudagraph_capture_size=16, all_moe_layers=[],
    )  # fmt: skip


SURROUNDINGS = VllmSurroundings()
