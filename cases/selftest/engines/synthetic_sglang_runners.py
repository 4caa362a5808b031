"""Small prefill runners in the shapes of SGLang's older releases: names and call order, none of its code.

`{inputs}` is the dictionary of inputs that a graph is captured with and that a replay fills.
"""

from collections.abc import Mapping

from cases.selftest.engines.synthetic_sglang import RUNNER, SLOTS, SLOTS_FILE, sglang_files

EXECUTOR = "sglang/srt/model_executor"
BREAKABLE = f"{EXECUTOR}/breakable_cuda_graph_runner.py"
PIECEWISE = f"{EXECUTOR}/piecewise_cuda_graph_runner.py"
WITHOUT = '{"input_embeds": batch.input_embeds}'
WITH = '{"input_embeds": batch.input_embeds, "input_deepstack_embeds": batch.input_deepstack_embeds}'

_IMPORTS = '''\
"""A prefill runner."""
import bisect
from typing import Union

from sglang.srt.compilation.piecewise_context_manager import enable_piecewise_cuda_graph, set_forward_context
from sglang.srt.layers.dp_attention import set_is_extend_in_batch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.pooler import EmbeddingPoolerOutput
from sglang.srt.model_executor.breakable_cuda_graph.context import enable_breakable_cuda_graph
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.model_executor.runner.base import BaseRunner
from sglang.srt.model_executor.runner.shape_key import ShapeKey


def _inputs_of(batch):
    return {inputs}


def _fill(slots, batch, named):
    for name in _inputs_of(batch):
        slot = slots.get_slot(name).slice_for(1, len(batch.input_ids))
        slot.zero_()
        if named.get(name) is not None:
            slot[: named[name].shape[0]].copy_(named[name])


'''
_WITH_FORWARD = """\
        own = self.layer_model.forward
        self.layer_model.forward = replays
        try:
            with self._around(static):
                output = self.model_runner.model.forward(static.input_ids, static.positions, static)
        finally:
            self.layer_model.forward = own
"""
_OUTPUT = """\
        if isinstance(output, LogitsProcessorOutput):
            return LogitsProcessorOutput(next_token_logits=output.next_token_logits[: self.raw_num_tokens])
        assert isinstance(output, EmbeddingPoolerOutput)
        return output
"""
EXECUTE_FILE = (
    _IMPORTS
    + """\
class PrefillCudaGraphRunner(BaseRunner):
    def __init__(self, model_runner):
        self.backend = NoSuchBackend(model_runner)

    def load_batch(self, forward_batch):
        raise RuntimeError("the batch was made")

    def _around(self, batch):
        return forward_context(ForwardContext(attn_backend=self.model_runner.attn_backend))

    def _run_forward(self, forward_batch, num_tokens):
        set_is_extend_in_batch(False)
        with self._around(forward_batch):
            ids, places = forward_batch.input_ids, forward_batch.positions
            return self.layer_model.forward(ids, places, forward_batch, **_inputs_of(forward_batch))

    def execute(self, forward_batch, **kwargs) -> Union[LogitsProcessorOutput, EmbeddingPoolerOutput]:
        with self.backend.replay_session():
            static = self.load_batch(forward_batch, **kwargs)
        key = ShapeKey(size=self._static_num_tokens)

        def replays(*given, **named):
            _fill(self.buffer_registry, static, named)
            return self.backend.replay(key, static, **kwargs)

"""
    + _WITH_FORWARD
    + _OUTPUT
)
_BREAKABLE_HEAD = """\
class BreakableCudaGraphRunner:
    def __init__(self, model_runner):
        self.graphs = NoSuchGraphs(model_runner)

    def replay_prepare(self, forward_batch):
        raise RuntimeError("the batch was made")

    def _around(self, batch):
        return set_forward_context(batch, self.attention_layers, self.quant_config)

    def _run_forward(self, forward_batch, num_tokens):
        with self._around(forward_batch):
            ids, places = forward_batch.input_ids, forward_batch.positions
            return {captured}

    def replay(self, forward_batch, **kwargs) -> Union[LogitsProcessorOutput, EmbeddingPoolerOutput]:
        sizes = self.capture_num_tokens
        size = sizes[bisect.bisect_left(sizes, len(forward_batch.input_ids))]
        graph, captured = self.graphs[size], self.output_buffers[size]
        with enable_breakable_cuda_graph():
            static = self.replay_prepare(forward_batch, **kwargs)
        self.model_runner.attn_backend.init_forward_metadata(forward_batch)

"""
BREAKABLE_FILE = (
    _IMPORTS
    + _BREAKABLE_HEAD.replace(
        "{captured}", "self.layer_model.forward(ids, places, forward_batch, **_inputs_of(forward_batch))"
    )
    + """\
        def replays(*given, **named):
            _fill(self.buffer_registry, static, named)
            graph.replay()
            return captured

"""
    + _WITH_FORWARD
    + _OUTPUT
)
WHOLE_FILE = (
    _IMPORTS
    + _BREAKABLE_HEAD.replace("{captured}", "self.model_runner.model.forward(ids, places, forward_batch)")
    + "        graph.replay()\n        output = captured\n"
    + _OUTPUT
)
"""A runner that captures the whole model, so that a step's embeddings are not made at all."""
PIECEWISE_FILE = (
    _IMPORTS
    + """\
class PiecewiseCudaGraphRunner:
    def __init__(self, model_runner):
        self.compiled = NoSuchCompiler(model_runner)

    def replay_prepare(self, forward_batch):
        raise RuntimeError("the batch was made")

    def _around(self, batch):
        return set_forward_context(batch, self.attention_layers, self.quant_config)

    def replay(self, forward_batch, **kwargs) -> Union[LogitsProcessorOutput, EmbeddingPoolerOutput]:
        with enable_piecewise_cuda_graph():
            static = self.replay_prepare(forward_batch, **kwargs)
        own = self.layer_model.forward

        def replays(*given, **named):
            return own(*given, **{names})

"""
    + _WITH_FORWARD.replace("        own = self.layer_model.forward\n", "")
    + _OUTPUT
)
_SLOT = SLOTS_FILE.replace('("input_embeds",)', '("input_embeds", "input_deepstack_embeds")')


def with_runner(member: str, text: str, version: str, *, slot: bool = False) -> Mapping[str, str]:
    """Return a source with only this runner; with `slot` the payload is an input of its graphs."""
    files = {name: file for name, file in sglang_files(version).items() if name != RUNNER}
    given = text.replace("{inputs}", WITH if slot else WITHOUT)
    return {**files, member: given, **({SLOTS: _SLOT} if slot else {})}


def piecewise(version: str, *, loses: bool = False) -> Mapping[str, str]:
    """Return a source whose text model is compiled in pieces; with `loses` the runner drops the payload."""
    kept = '{name: value for name, value in named.items() if name != "input_deepstack_embeds"}'
    names = kept if loses else "named"
    return with_runner(PIECEWISE, PIECEWISE_FILE.replace("{names}", names), version)
