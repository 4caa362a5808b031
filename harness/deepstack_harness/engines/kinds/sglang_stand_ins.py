"""Replacements for what SGLang's parts and its prefill runners name.

Each does what that code relies on, and no more.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn

from deepstack_harness.compile.graphs import Recordings
from deepstack_harness.engines.stand_ins import FirstRank, Settings

VISUAL, TEXT = 1, 0


class Batch(SimpleNamespace):
    """A forward batch of one request without cache; what was not given is refused by name."""

    def __getattr__(self, name: str) -> NoReturn:
        """Raise `AttributeError`: Python calls this for attributes that were not given."""
        raise AttributeError(f"the harness has no forward_batch.{name}", name=name, obj=self)


def does_nothing(*_: object, **__: object) -> None:
    """Take the place of a function or a method that has nothing to do here."""


class EngineModule(nn.Module):
    """A base class of SGLang's classes."""

    def __init__(self, **_: object) -> None:
        """Make an empty module; its attributes are set by whoever makes it."""
        super().__init__()


class TextModel(EngineModule):
    """The base class of text models: their layers and their norm note what they are given."""

    config: object
    embed_tokens = None
    end_layer = 0
    layers: list[object]
    layers_to_capture: tuple[int, ...] = ()
    norm: object
    pp_group = FirstRank()
    start_layer = 0

    def __call__(self, *given: object, **named: object) -> object:
        """Run forward, as a module does."""
        return cast("Any", self).forward(*given, **named)


class Wrapper(EngineModule):
    """The base class of the class that separates the levels from the main features."""

    config: object
    deepstack_visual_indexes: list[int]
    num_deepstack_embeddings: int

    get_image_feature = does_nothing  # the writer's embeddings are given


class Modality:
    """The modality of images, the only one here (sglang/srt/managers/schedule_batch.py)."""

    name = "IMAGE"
    IMAGE: "Modality"

    @classmethod
    def all(cls) -> "list[Modality]":
        """Return every modality that a step here has."""
        return [cls.IMAGE]


Modality.IMAGE = Modality()


class _Residual:
    """The residual stream of a step whose layers return zeros (layers/layer_boundary/residual/batch.py)."""

    start = staticmethod(does_nothing)

    @staticmethod
    def complete_output(hidden: Tensor, _: object) -> Tensor:
        """Return the output (n, hidden) of a layer as it is: there is one rank, so that nothing is owed."""
        return hidden

    @staticmethod
    def add_to_output(hidden: Tensor, _: object, extra: Tensor) -> Tensor:
        """Add `extra` (n, hidden) to the output (n, hidden) of a layer, in place as the engine does."""
        return hidden.add_(extra)

    @staticmethod
    def final_norm(hidden: Tensor, _: object, norm: Any, *__: object, **named: Any) -> Any:  # noqa: ANN401
        """Call the norm with the output (n, hidden) of the last layer."""
        return norm(hidden, post_residual_addition=named.get("post_residual_addition"))

    norm = final_norm  # its name up to 0.5.21


class _AuxHiddenStates(list[object]):
    """Hidden states for a draft model (sglang/srt/layers/aux_hidden_states.py); no step here has one."""

    def capture(self, hidden: object) -> None:
        """Record hidden states."""
        self.append(hidden)


def _flat(nested: list[Any]) -> list[Any]:
    return [leaf for item in nested for leaf in (_flat(item) if isinstance(item, list) else [item])]


def embedding_and_mask(
    embedding_items: list[Any], input_ids: Tensor, **_: object
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the visual rows (N, w), the marks (n, 1) of visual tokens, and the ids (n,)."""
    return embedding_items[0].feature, (input_ids == VISUAL).unsqueeze(-1), input_ids


STAND_INS: Mapping[str, object] = {
    "AuxHiddenStateList": _AuxHiddenStates,
    "Modality": Modality,
    "PPProxyTensors": dict,
    "batch": _Residual(),
    "flatten_nested_list": _flat,
    # The settings of an engine that serves: no reinforcement learning.
    "get_exec": lambda: Settings(
        "get_exec()", deterministic=Settings("get_exec().deterministic", rl_on_policy_target=None)
    ),
}
KINDS = (Batch, EngineModule, TextModel, Wrapper, Modality, _Residual, _AuxHiddenStates)
"""Where an attribute of one of these is missing, the harness is at fault, and not the engine."""


class Item:
    """The only image of a step."""

    pad_value = VISUAL

    def __init__(self, feature: Tensor) -> None:
        """Take its visual rows (N, w)."""
        self.feature = feature
        self.offsets = [(0, feature.size(0) - 1)]

    def is_modality(self, modality: object) -> bool:
        """Return True for images."""
        return modality is Modality.IMAGE

    def padding_values(self) -> list[int]:
        """Return the ids of its tokens."""
        return [VISUAL]


class Embedding:
    """The embedding of text tokens: zeros (n, hidden)."""

    num_embeddings = 2

    def __init__(self, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        self.embedding_dim = hidden
        self.weight = torch.zeros(2, hidden, dtype=dtype, device=device)

    def __call__(self, ids: Tensor) -> Tensor:
        """Embed ids (n,) -> (n, hidden)."""
        return self.weight[ids]


REQUEST_FIELDS = (
    "extend_prefix_lens", "extend_seq_lens", "extend_start_loc", "orig_seq_lens", "req_pool_indices",
    "seq_lens",
)  # fmt: skip
"""Fields of a batch with one value per request; the runner of 0.5.11 copies each into static storage."""


def _context(*_: object, **__: object) -> AbstractContextManager[object]:
    return nullcontext()


class Runner(EngineModule):
    """The base class of a prefill runner; a body of a method of its own is captured whole (`full`)."""

    _input_embeds_arg_idx: int | None = None
    _is_full_backend = True
    _qwen_bcg_hc_sidechannel = False
    _static_num_tokens = 0
    _use_draft_input_embeds = False
    attention_layers = None
    backend: object
    buffer_registry: object
    dsa_indexers = None
    is_dsv41_model = False
    layer_model: object
    model_runner: object
    moe_fusions = None
    moe_layers = None
    quant_config = None
    raw_bs = 1
    raw_num_tokens = 0
    use_input_embeds = True

    _prefill_forward_context = _context
    _capture_pp_proxy_tensors = does_nothing
    _prepare_forward_metadata_for_replay = does_nothing

    def _uses_eager_prefill_tail(self) -> bool:
        return True

    def _get_layer_model_positions(self, forward_batch: Batch) -> object:
        return forward_batch.positions


class ShapeKey:
    """The key of a graph (sglang/srt/model_executor/runner/shape_key.py)."""

    def __init__(self, size: int, *_: object, **__: object) -> None:
        self.size = size


class LogitsOutput:
    """The output of a whole model, which older runners cut to the step (LogitsProcessorOutput)."""

    def __init__(self, next_token_logits: Tensor, hidden_states: None = None, **_: object) -> None:
        """Take logits (n, width); a model returns its hidden states only where a setting requests them."""
        self.next_token_logits = next_token_logits
        self.hidden_states = hidden_states
        self.mm_input_embeds = None


class _PooledOutput:
    """The output of an embedding model, which no model here is (EmbeddingPoolerOutput)."""


class GraphSlot:
    """The storage (rows, width) of one input of captured graphs."""

    def __init__(self, rows: Tensor) -> None:
        """Take storage (rows, width)."""
        self.buffer = rows

    def slice_for(self, _: int, tokens: int) -> Tensor:
        """Return the first rows (tokens, width)."""
        return self.buffer[:tokens]


class GraphSlots:
    """The inputs of captured graphs, by name (sglang/srt/model_executor/cuda_graph_buffer_registry.py)."""

    def __init__(self, slots: Mapping[str, GraphSlot]) -> None:
        self._slots = slots

    def has_slot(self, name: str) -> bool:
        """Return True for a registered input."""
        return name in self._slots

    def get_slot(self, name: str) -> GraphSlot:
        """Return a registered input."""
        return self._slots[name]


class RecordedGraphs:
    """The backend of the runner: it replays what was recorded, and none of its Python."""

    def __init__(self) -> None:
        self.recorded = Recordings[int]()

    def replay(self, key: ShapeKey, *_: object, **__: object) -> object:
        """Replay the graph of one size; return the output that it was captured with."""
        return self.recorded[key.size].replay()

    def replay_session(self) -> AbstractContextManager[object]:
        """Return a context for replays."""
        return nullcontext()


RUNNER_STAND_INS: Mapping[str, object] = {
    **STAND_INS,
    "EmbeddingPoolerOutput": _PooledOutput,
    "ForwardContext": SimpleNamespace,
    "LogitsProcessorOutput": LogitsOutput,
    "ShapeKey": ShapeKey,
    "disable_ca_comm": _context,
    "enable_breakable_cuda_graph": _context,
    "enable_piecewise_cuda_graph": _context,
    "forward_context": _context,
    "set_compiled": _context,
    "set_dp_buffer_len": does_nothing,
    "set_forward_context": _context,
    "set_is_extend_in_batch": does_nothing,
    "set_tc_piecewise_forward_context": _context,
}
RUNNER_KINDS = (Runner, ShapeKey, LogitsOutput, GraphSlot, GraphSlots, RecordedGraphs)
"""Where an attribute of one of these is missing, the harness is at fault, and not the engine."""
