"""Replacements for what SGLang's parts and its prefill runners name.

Each does what that code relies on, and no more.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

from torch import Tensor, nn

from deepstack_harness.compile.graphs import Recordings
from deepstack_harness.engines.stand_ins import FirstRank, Settings

VISUAL, TEXT = 1, 0


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


def _final_norm(hidden: Tensor, _: object, norm: Any, *__: object, **named: Any) -> Any:  # noqa: ANN401
    """Call the norm with the output (n, hidden) of the last layer."""
    return norm(hidden, post_residual_addition=named.get("post_residual_addition"))


_RESIDUAL = Settings(
    "batch",
    start=does_nothing,
    complete_output=lambda hidden, _: hidden,  # there is one rank, so that nothing is owed
    add_to_output=lambda hidden, _, extra: hidden.add_(extra),  # in place as the engine does
    final_norm=_final_norm,
    norm=_final_norm,  # its name up to 0.5.21
)
"""The residual stream of a step whose layers return zeros (layers/layer_boundary/residual/batch.py)."""


class _AuxHiddenStates(list[object]):
    """Hidden states for a draft model (sglang/srt/layers/aux_hidden_states.py); no step here has one."""

    def capture(self, hidden: object) -> None:
        """Record hidden states."""
        self.append(hidden)


def _flat(nested: list[Any]) -> list[Any]:
    return [leaf for item in nested for leaf in (_flat(item) if isinstance(item, list) else [item])]


STAND_INS: Mapping[str, object] = {
    "AuxHiddenStateList": _AuxHiddenStates,
    "Modality": Modality,
    "PPProxyTensors": dict,
    "batch": _RESIDUAL,
    "flatten_nested_list": _flat,
    # The settings of an engine that serves: no reinforcement learning.
    "get_exec": lambda: Settings(
        "get_exec()", deterministic=Settings("get_exec().deterministic", rl_on_policy_target=None)
    ),
}
KINDS = (EngineModule, TextModel, Wrapper, Modality, _AuxHiddenStates)
"""Where an attribute of one of these is missing, the harness is at fault, and not the engine."""


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

    def _get_layer_model_positions(self, forward_batch: Any) -> object:  # noqa: ANN401
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
    # The visual rows (N, w), the marks (n, 1) of visual tokens, and the ids (n,).
    "get_embedding_and_mask": lambda embedding_items, input_ids, **_: (
        embedding_items[0].feature, (input_ids == VISUAL).unsqueeze(-1), input_ids,
    ),
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
}  # fmt: skip
RUNNER_KINDS = (Runner, ShapeKey, LogitsOutput, RecordedGraphs)
"""Where an attribute of one of these is missing, the harness is at fault, and not the engine."""
