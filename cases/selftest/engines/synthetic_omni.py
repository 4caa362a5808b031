"""A small source in the shape of vLLM-Omni: its folders, class and method names, and nothing of its code.

Everything around the buffer comes from a vLLM that is not in the source, as in the released files.
"""

import textwrap
from collections.abc import Mapping

THINKER = "vllm_omni/model_executor/models/qwen3_omni/qwen3_omni_moe_thinker.py"

HEADER = """\
import torch
from vllm.distributed import get_pp_group
from vllm.model_executor.models.utils import _merge_multimodal_embeddings
from vllm.sequence import IntermediateTensors, NoSuchBase
from vllm_omni.quantization.component_config import PRE_QUANTIZED_METHODS, ComponentQuantizationConfig


class Qwen3OmniMoeThinkerForConditionalGeneration(NoSuchBase):
"""
INIT = """\
def __init__(self, *, vllm_config, prefix=""):
    super().__init__()
    whole = vllm_config.model_config.hf_config
    config = getattr(whole, "thinker_config", None) or whole
    quantized = vllm_config.quant_config
    if isinstance(quantized, ComponentQuantizationConfig) or quantized in PRE_QUANTIZED_METHODS:
        raise RuntimeError("the towers are quantized")
    self.config = config
    self.count = 0
    self.depth = len(config.vision_config.deepstack_visual_indexes)
    with self._mark_tower_model(vllm_config, {"image"}):
        self.visual = NoSuchTower(config.vision_config)
        rows, width = vllm_config.scheduler_config.max_num_batched_tokens, config.text_config.hidden_size
        self.deepstack_input_embeds = [torch.zeros(rows, width) for _ in range(self.depth)]
    self.language_model = NoSuchModel(vllm_config)
"""
ERASES = """\
def _get_deepstack_input_embeds(self, num_tokens):
    for level in self.deepstack_input_embeds:
        level[self.count:num_tokens].zero_()
    return self._slices(num_tokens)
"""
READS_ONLY = """\
def _get_deepstack_input_embeds(self, num_tokens):
    return self._slices(num_tokens)
"""
REST = """\
def _slices(self, rows):
    levels = enumerate(self.deepstack_input_embeds)
    return IntermediateTensors({f"deepstack_input_embeds_{index}": level[:rows] for index, level in levels})

def _set_deepstack_input_embeds(self, deepstack_input_embeds):
    rows = deepstack_input_embeds.size(1)
    for ours, theirs in zip(self.deepstack_input_embeds, deepstack_input_embeds):
        ours.zero_()
        ours[:rows].copy_(theirs)
    self.count = rows

def _clear_deepstack_input_embeds(self, num_tokens):
    for level in self.deepstack_input_embeds:
        level.zero_()
    self.count = 0

def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
    payload = None
    if get_pp_group().is_first_rank:
        payload = self._get_deepstack_input_embeds(inputs_embeds.size(0))
    out, captured = self.language_model.model(input_ids, positions, deepstack_input_embeds=payload)
    self._clear_deepstack_input_embeds(inputs_embeds.size(0))
    return out

def embed_input_ids(self, input_ids, multimodal_embeddings=None, *, is_multimodal=None):
    width = self.config.text_config.hidden_size
    main = [rows[:, :width] for rows in multimodal_embeddings]
    out = super().embed_input_ids(input_ids, multimodal_embeddings=main, is_multimodal=is_multimodal)
    if multimodal_embeddings:
        packed = out.new_zeros(out.size(0), self.depth * width)
        features = [rows[:, width:] for rows in multimodal_embeddings]
        packed = _merge_multimodal_embeddings(packed, features, is_multimodal)
        self._set_deepstack_input_embeds(packed.view(-1, self.depth, width).permute(1, 0, 2))
    return out
"""


def omni_files(get: str, *, rest: str = REST, version: str = "0.30.0") -> Mapping[str, str]:
    """Return the files of a source whose class has this get."""
    body = f"{INIT}\n{get}\n{rest}"
    return {
        "vllm_omni/__init__.py": '"""A package of an engine."""\n',
        "vllm_omni/_version.py": f"__version__ = version = '{version}'\n",
        "vllm_omni/diffusion/__init__.py": "",
        "vllm_omni/model_executor/__init__.py": "",
        THINKER: f"{HEADER}{textwrap.indent(body, '    ')}",
    }
