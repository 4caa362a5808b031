"""Stand-ins for what SGLang's prefill runners name: each does what these rely on, and no more."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

from torch import Tensor

from deepstack_harness.engines.sglang_stand_ins import STAND_INS, Batch, CutBase
from deepstack_harness.torch_compat.recording import OpRecorder

REQUEST_FIELDS = (
    "extend_prefix_lens", "extend_seq_lens", "extend_start_loc", "orig_seq_lens", "req_pool_indices",
    "seq_lens",
)  # fmt: skip
"""Fields of a batch with one value per request; the runner of 0.5.11 copies each into static storage."""


def does_nothing(*_: object, **__: object) -> None:
    """Set nothing: there is one rank."""


def _context(*_: object, **__: object) -> AbstractContextManager[object]:
    return nullcontext()


class Runner(CutBase):
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

    def _prefill_forward_context(self, *_: object, **__: object) -> AbstractContextManager[object]:
        return nullcontext()

    def _capture_pp_proxy_tensors(self, *_: object) -> None:
        return None

    def _uses_eager_prefill_tail(self) -> bool:
        return True

    def _prepare_forward_metadata_for_replay(self, *_: object) -> None:
        return None

    def _get_layer_model_positions(self, forward_batch: Batch) -> object:
        return forward_batch.positions


class ShapeKey:
    """The key of a graph (sglang/srt/model_executor/runner/shape_key.py)."""

    def __init__(self, size: int, *_: object, **__: object) -> None:
        self.size = size


class LogitsOutput:
    """The output of a whole model, which older runners cut to the step (LogitsProcessorOutput)."""

    def __init__(self, next_token_logits: Tensor, hidden_states: None = None, **_: object) -> None:
        """Take logits (n, width); a model returns its hidden states only where a setting asks for them."""
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
        self.recorded: dict[int, tuple[OpRecorder, object]] = {}

    def replay(self, key: ShapeKey, *_: object, **__: object) -> object:
        """Replay the graph of one size; return the output that it was captured with."""
        recorder, output = self.recorded[key.size]
        recorder.replay()
        return output

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
"""Stand-ins: an attribute that one of them lacks is the harness's fault, not the engine's."""
