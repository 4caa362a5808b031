"""Small model files in the shape of vLLM, whole enough to be driven through embed_input_ids and forward.

Nothing of vLLM's code: `COUNTED` keeps its rows behind get, set and clear and takes
the features of a token with its levels behind them; `SCATTERED` has all of its
logic inside the two methods and takes the levels alone.  Both name helpers that
lie in other files.
"""

from collections.abc import Mapping
from pathlib import Path

QWEN = "vllm/model_executor/models/qwen3_vl.py"
GRANITE = "vllm/model_executor/models/granite4_vision.py"
UTILS = "vllm/model_executor/models/utils.py"

HELPERS = '''\
"""Helpers of all models."""
import torch
from vllm.everything import rank_of_everything

SPARE = 0


def put_rows(into, rows, where):
    into[where] = joined(rows)
    return into


def joined(rows):
    return torch.cat(tuple(rows)) if len(rows) > SPARE else NOTHING


NOTHING = torch.zeros(0)


def synchronise(rows):
    return rank_of_everything(rows)
'''

COUNTED = """\
import torch

from vllm.distributed import get_pp_group
from vllm.sequence import IntermediateTensors

from .interfaces import SupportsNothing
from .utils import put_rows as place, synchronise


class Qwen3VLForConditionalGeneration(SupportsNothing):
    def __init__(self, *, vllm_config, prefix="model"):
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.levels = len(config.vision_config.deepstack_visual_indexes)
        self.width = config.text_config.hidden_size
        rows = vllm_config.scheduler_config.max_num_batched_tokens
        self.deepstack_input_embeds = [torch.zeros(rows, self.width) for _ in range(self.levels)]
        self.filled = 0
        self.visual = NoSuchTower(config)
        self.language_model = NoSuchModel(vllm_config)

    def embed_input_ids(self, input_ids, multimodal_embeddings=None, *, is_multimodal=None):
        text = self._embed_text_input_ids(
            input_ids, self.language_model.embed_input_ids, is_multimodal=is_multimodal
        )
        if not multimodal_embeddings:
            return text
        main = [rows[:, : self.width] for rows in multimodal_embeddings]
        self._set_deepstack_input_embeds(torch.cat(tuple(multimodal_embeddings))[:, self.width :])
        return super().embed_input_ids(input_ids, multimodal_embeddings=main, is_multimodal=is_multimodal)

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **kwargs):
        first = inputs_embeds is not None and get_pp_group().is_first_rank
        rows = self._get_deepstack_input_embeds(inputs_embeds.size(0)) if first else None
        hidden = self.language_model.model(
            input_ids, positions, None, inputs_embeds=inputs_embeds, deepstack_input_embeds=rows
        )
        if first:
            self._clear_deepstack_input_embeds(inputs_embeds.size(0))
        return hidden

    def _get_deepstack_input_embeds(self, count):
        return IntermediateTensors(
            {f"deepstack_input_embeds_{i}": x[:count] for i, x in enumerate(self.deepstack_input_embeds)}
        )

    def _set_deepstack_input_embeds(self, packed):
        self.filled = packed.size(0)
        if self.filled > self.deepstack_input_embeds[0].size(0):
            self.deepstack_input_embeds = [torch.zeros(self.filled, self.width) for _ in range(self.levels)]
        for rows, level in zip(self.deepstack_input_embeds, packed.split(self.width, dim=1)):
            place(rows, [level], torch.arange(self.filled))

    def _clear_deepstack_input_embeds(self, count):
        for rows in self.deepstack_input_embeds:
            rows[:count].zero_()
        self.filled = 0
"""

SCATTERED = """\
import torch

from vllm.sequence import IntermediateTensors


class Granite4VisionForConditionalGeneration(NoSuchBase):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        config = vllm_config.model_config.hf_config
        rows, width = vllm_config.scheduler_config.max_num_batched_tokens, config.text_config.hidden_size
        self.layers = [layer + 9 for _, layer in config.deepstack_layer_map]
        self.layers += [layer + 9 for layer in config.spatial_target_layers]
        self.language_model = NoSuchModel(vllm_config)
        self.language_model.layers = self.layers
        self.kept = [torch.zeros(rows, width) for _ in self.layers]
        self.used = 0

    def embed_input_ids(self, input_ids, multimodal_embeddings=None, *, is_multimodal=None):
        inner = self.language_model.model
        text = inner.embed_input_ids(input_ids) * inner.config.embedding_multiplier
        if not multimodal_embeddings:
            self.used = 0
            return text
        packed = torch.cat(multimodal_embeddings).split(text.size(1), dim=-1)
        for rows, level in zip(self.kept, packed):
            rows[: text.size(0)].zero_()
            rows[: text.size(0)][is_multimodal] = level
        self.used = text.size(0)
        return text

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        shown = {f"ds_{layer}": rows[: len(inputs_embeds)] for layer, rows in zip(self.layers, self.kept)}
        hidden = self.language_model.model(
            input_ids=input_ids,
            positions=positions,
            inputs_embeds=inputs_embeds,
            deepstack_input_embeds=IntermediateTensors(shown),
        )
        for rows in self.kept:
            rows[: self.used].zero_()
        self.used = 0
        return hidden
"""


def write_tree(root: Path, files: Mapping[str, str] | None = None) -> Path:
    """A repository with both models and their helpers, `files` replaced; answers its root."""
    for member, text in {UTILS: HELPERS, QWEN: COUNTED, GRANITE: SCATTERED, **(files or {})}.items():
        path = root / member
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root
