"""A small model file in the shape of vLLM's Gemma 4, whose payload is looked up by token id.

Nothing of vLLM's code.  It has rows for every token of a step, one for each layer.
"""

from pathlib import Path

from deepstack_harness.contract.rules import Rule

GEMMA = "vllm/model_executor/models/gemma4_mm.py"

STACKED = """\
import torch
from vllm.sequence import NoSuchBase


class Gemma4ForConditionalGeneration(NoSuchBase):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        text = vllm_config.model_config.hf_config.text_config
        self.layers, self.width = text.num_hidden_layers, text.hidden_size_per_layer_input
        self.language_model = NoSuchModel(vllm_config)
        self.room = vllm_config.scheduler_config.max_num_batched_tokens
        like = self.language_model.model.embed_tokens.weight
        self.rows_of_layers = torch.zeros(self.room, self.layers, self.width, dtype=like.dtype)

    def embed_input_ids(self, input_ids, multimodal_embeddings=None, *, is_multimodal=None):
        rows = self.language_model.model.get_per_layer_inputs(input_ids)
        self.rows_of_layers[: self._within(len(rows))].copy_(rows.view(-1, self.layers, self.width))
        return super().embed_input_ids(input_ids)

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        from vllm.forward_context import get_forward_context

        if get_forward_context().attn_metadata is not None:
            raise RuntimeError("the step has attention")
        rows = self.rows_of_layers[: self._within(inputs_embeds.size(0))]
        return self.language_model.model(
            input_ids, positions, per_layer_inputs=rows, inputs_embeds=inputs_embeds
        )

    def _within(self, tokens):
        if tokens > self.room:
            raise ValueError(f"{tokens} tokens, and {self.room} rows")
        return tokens
"""
_LOOK_UP = "rows.view(-1, self.layers, self.width)"
_ROWS = "self.rows_of_layers[: self._within(inputs_embeds.size(0))]"
RIGHT = {
    "stacked": STACKED,
    "hands on a list": STACKED.replace(_ROWS, f"list({_ROWS}.unbind(1))"),
    "keeps a list": STACKED.replace(
        "torch.zeros(self.room, self.layers, self.width, dtype=like.dtype)",
        "[torch.zeros(self.room, self.width) for _ in range(self.layers)]",
    )
    .replace(
        f"self.rows_of_layers[: self._within(len(rows))].copy_({_LOOK_UP})",
        f"for kept, level in zip(self.rows_of_layers, {_LOOK_UP}.unbind(1)):\n"
        "            kept[: self._within(len(rows))] = level",
    )
    .replace(_ROWS, "[each[: self._within(inputs_embeds.size(0))] for each in self.rows_of_layers]"),
}
WRONG = {
    "swaps layers": (STACKED.replace(_LOOK_UP, f"{_LOOK_UP}.flip(1)"), Rule.BOUNDARY),
    "hands on a row too few": (
        STACKED.replace("inputs_embeds.size(0))]", "inputs_embeds.size(0)) - 1]"),
        Rule.BOUNDARY,
    ),
    "leaves the last row out": (
        STACKED.replace(f"len(rows))].copy_({_LOOK_UP})", f"len(rows)) - 1].copy_({_LOOK_UP}[:-1])"),
        Rule.BOUNDARY,
    ),
    "keeps the first payload": (
        STACKED.replace(
            "        self.rows_of_layers[:",
            "        if not self.rows_of_layers.any():\n            self.rows_of_layers[:",
        ),
        Rule.FRESHNESS,
    ),
}
"""Classes, each with the rule that it breaks in live use, by default."""


def write_by_token(root: Path, text: str) -> Path:
    """Write a source tree with only this class; return its root."""
    path = root / GEMMA
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return root
