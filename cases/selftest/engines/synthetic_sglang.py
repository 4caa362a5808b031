"""A small source in the shape of SGLang: its files, names and call order, and nothing of its code.

The text model is given the payload as an argument, and the runner captures it without that argument, or
with a slot for it.
"""

from collections.abc import Mapping

MODEL = "sglang/srt/models/qwen3_vl.py"
RUNNER = "sglang/srt/model_executor/runner/prefill_cuda_graph_runner.py"
WRITER = "sglang/srt/managers/mm_utils.py"
SLOTS = "sglang/srt/model_executor/cuda_graph_buffer_registry.py"

MODEL_FILE = '''\
"""A model file."""
import torch
from torch import nn

from sglang.srt.layers.layer_boundary.residual import batch as stream
from sglang.srt.models.qwen3 import Qwen3Model
from sglang.srt.runtime_context import get_exec


class Qwen3LLMModel(Qwen3Model):
    def __init__(self, *, config, quant_config=None, prefix=""):
        super().__init__(config=config, quant_config=quant_config, prefix=prefix)
        if self.pp_group.rank_in_group > 0:
            assert self.start_layer >= len(config.vision_config.deepstack_visual_indexes)
        self.width = config.hidden_size
        self.depth = len(config.vision_config.deepstack_visual_indexes)
        self.late = get_exec().deterministic.rl_on_policy_target is not None
        self.rotary = NoSuchRotary(config)

    def forward(self, input_ids, positions, forward_batch, input_embeds=None, input_deepstack_embeds=None):
        hidden = self.embed_tokens(input_ids) if input_embeds is None else input_embeds
        stream.start(forward_batch)
        for index, layer in enumerate(self.layers[self.start_layer : self.end_layer]):
            hidden = layer(positions, hidden, forward_batch, capture_output=None)
            if input_deepstack_embeds is not None and index < self.depth:
                first = self.width * index
                extra = input_deepstack_embeds[:, first : first + self.width]
                hidden = stream.add_to_output(hidden, forward_batch, extra)
        return stream.final_norm(hidden, forward_batch, self.norm, skip_empty=True)


class Qwen3VLForConditionalGeneration(nn.Module):
    def __init__(self, config, language_model_cls=Qwen3LLMModel):
        super().__init__()
        self.visual = NoSuchTower(config)

    def separate_deepstack_embeds(self, embedding):
        parts = 1 + self.num_deepstack_embeddings
        if embedding.shape[-1] % parts:
            raise ValueError(f"{embedding.shape[-1]} columns are no {parts} parts")
        first = self.config.hidden_size
        return embedding.split([first, embedding.shape[-1] - first], dim=-1)
'''
WRITER_FILE = '''\
"""Multimodal inputs."""
import torch

from sglang.srt.managers.schedule_batch import Modality
from sglang.srt.utils import flatten_nested_list


def get_embedding_and_mask(embedding_items, input_ids, cache=None):
    raise RuntimeError("the vision tower was asked")


def _put(rows, marks, values):
    rows[marks.squeeze(-1)] = values.to(rows.dtype)


def embed_mm_inputs(
    mm_inputs_list, extend_prefix_lens, extend_seq_lens, input_ids, input_embedding,
    multimodal_model=None, use_deepstack={},
):
    found = {}
    items = [item for inputs in mm_inputs_list for item in inputs.mm_items]
    out = input_embedding(input_ids.clamp(max=input_embedding.num_embeddings - 1))
    for modality in Modality.all():
        mine = [item for item in items if item.is_modality(modality)]
        offsets = flatten_nested_list([item.offsets for item in mine])
        rows, marks, input_ids = get_embedding_and_mask(
            embedding_items=mine, input_ids=input_ids, offsets=offsets
        )
        main, levels = multimodal_model.separate_deepstack_embeds(rows)
        _put(out, marks, main)
        depth = len(multimodal_model.deepstack_visual_indexes)
        found["input_deepstack_embeds"] = out.new_zeros(out.shape[0], out.shape[1] * depth)
        _put(found["input_deepstack_embeds"], marks, levels)
    return out, found
'''
SLOTS_FILE = '''\
"""Inputs of captured graphs."""
NAMES = ("input_embeds",)
'''
RUNNER_FILE = '''\
"""The prefill runner."""
from sglang.srt.layers.dp_attention import set_is_extend_in_batch
from sglang.srt.model_executor.runner.base import BaseRunner


def _inputs_of(batch):
    return {"input_embeds": batch.input_embeds}


class PrefillCudaGraphRunner(BaseRunner):
    def __init__(self, model_runner):
        super().__init__(model_runner)
        self.backend = NoSuchBackend(model_runner)

    def _run_forward(self, forward_batch, num_tokens):
        set_is_extend_in_batch(False)
        with self._prefill_forward_context(forward_batch):
            places = self._get_layer_model_positions(forward_batch)
            inputs = _inputs_of(forward_batch)
            return self.layer_model.forward(forward_batch.input_ids, places, forward_batch, **inputs)

    def _fill(self, name, rows, tokens):
        slot = self.buffer_registry.get_slot(name).slice_for(1, tokens)
        slot.zero_()
        if rows is not None:
            slot[: rows.shape[0]].copy_(rows)

    def _execute_body_capture(
        self, forward_batch, static_forward_batch, static_num_tokens, raw_num_tokens, shape_key, **kwargs
    ):
        def replays(*given, **named):
            self._fill("input_embeds", named["input_embeds"], static_num_tokens)
            return self.backend.replay(shape_key, static_forward_batch, **kwargs)[:raw_num_tokens]

        own = self.layer_model.forward
        self.layer_model.forward = replays
        try:
            ids, places = forward_batch.input_ids, forward_batch.positions
            return self.model_runner.model.forward(ids, places, forward_batch)
        finally:
            self.layer_model.forward = own
'''
_ARGUMENT = "input_deepstack_embeds"
_FILLS = '            self._fill("input_embeds", named["input_embeds"], static_num_tokens)\n'
_AND_PAYLOAD = f'            self._fill("{_ARGUMENT}", named.get("{_ARGUMENT}"), static_num_tokens)\n'


def sglang_files(version: str = "0.5.23", **parts: str) -> Mapping[str, str]:
    """Return the files of a source; `parts` has the `model`, `writer`, `runner` and `slots` that differ."""
    return {
        "sglang/__init__.py": "",
        "sglang/_version.py": f"__version__ = version = '{version}'\n",
        MODEL: parts.get("model", MODEL_FILE),
        WRITER: parts.get("writer", WRITER_FILE),
        RUNNER: parts.get("runner", RUNNER_FILE),
        SLOTS: parts.get("slots", SLOTS_FILE),
    }


def with_slot(version: str = "0.5.24", *, zeroes: bool = True) -> Mapping[str, str]:
    """Return a source whose graphs have a slot for the payload, which a text-only step zeroes or not."""
    fills = _AND_PAYLOAD if zeroes else f"            if '{_ARGUMENT}' in named:\n    {_AND_PAYLOAD}"
    runner = RUNNER_FILE.replace(_FILLS, _FILLS + fills).replace(
        '"input_embeds": batch.input_embeds',
        f'"input_embeds": batch.input_embeds, "{_ARGUMENT}": batch.{_ARGUMENT}',
    )
    slots = SLOTS_FILE.replace('("input_embeds",)', f'("input_embeds", "{_ARGUMENT}")')
    return sglang_files(version, runner=runner, slots=slots)
