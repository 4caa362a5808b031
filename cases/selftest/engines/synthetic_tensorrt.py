"""A small source in the shape of TensorRT-LLM: its folder, class and method names, none of its code."""

import textwrap
from collections.abc import Mapping

MODEL = "tensorrt_llm/_torch/models/modeling_qwen3vl.py"
HELPER = "tensorrt_llm/_torch/models/modeling_multimodal_utils.py"

HELPER_FILE = """\
import torch

from ...logger import logger


def places_of(ids, wanted):
    return torch.isin(ids, wanted.to(ids.device)).nonzero().flatten()
"""
HEADER = """\
import copy

import torch
from transformers import PreTrainedModel

from tensorrt_llm._torch.models.modeling_multimodal_utils import places_of
from ...logger import logger
from .modeling_auto import AutoModelForCausalLM
from .modeling_multimodal_mixin import MultimodalModelMixin


class Qwen3VLModelBase(MultimodalModelMixin, PreTrainedModel):
"""
INIT = """\
def __init__(self, model_config, *args, **kwargs) -> None:
    whole = model_config.pretrained_config
    super().__init__(whole)
    inner = copy.deepcopy(model_config)
    inner.pretrained_config = whole.text_config
    self.llm = AutoModelForCausalLM.from_config(inner)
    self.depth = len(whole.vision_config.deepstack_visual_indexes)
    room = (self.depth, model_config.max_num_tokens, whole.text_config.hidden_size)
    self.register_buffer(
        "deepstack_input_embeds",
        torch.zeros(*room, device="cuda", dtype=whole.text_config.torch_dtype),
        persistent=False,
    )
    logger.info("made")

def after_active_multimodal_embeddings(self, *, active_embeddings, multimodal_params, **_):
    levels = []
    for index, packed in enumerate(active_embeddings):
        active_embeddings[index], *more = packed.tensor_split(self.depth + 1, dim=1)
        levels += more
    return active_embeddings, levels
"""
EMPTY_ON_TEXT = """\
def _fuse_multimodal_embeddings(
    self, *, input_ids, multimodal_embeddings, mm_token_ids, embedding_layer, extra_embeds,
    mm_token_indices=None,
):
    ids, rows, _ = super()._fuse_multimodal_embeddings(
        input_ids=input_ids, multimodal_embeddings=multimodal_embeddings, extra_embeds=(),
        mm_token_ids=mm_token_ids, embedding_layer=embedding_layer,
    )
    if not extra_embeds:
        return ids, rows, ()
    places = places_of(input_ids, mm_token_ids) if mm_token_indices is None else mm_token_indices
    views = self.deepstack_input_embeds[:, : len(input_ids)]
    views.zero_()
    views[:, places] = torch.stack(list(extra_embeds)).to(views)
    return ids, rows, views.unbind(0)
"""
"""A step of text has no level, a visual one has all of them."""
RIGHT = """\
def _fuse_multimodal_embeddings(self, *, input_ids, extra_embeds, mm_token_ids, **named):
    count, room = input_ids.numel(), self.deepstack_input_embeds.size(1)
    if count > room:
        raise ValueError(f"{count} tokens, room for {room}")
    named.update(input_ids=input_ids, mm_token_ids=mm_token_ids)
    ids, rows, _ = super()._fuse_multimodal_embeddings(extra_embeds=(), **named)
    views = [level.narrow(0, 0, count).zero_() for level in self.deepstack_input_embeds]
    for view, level in zip(views, extra_embeds):
        view.index_copy_(0, places_of(input_ids, mm_token_ids), level.to(view.dtype))
    return ids, rows, tuple(views)
"""
NOT_ZEROED = EMPTY_ON_TEXT.replace("    views.zero_()\n", "")
"""Rows that an earlier step wrote stay where the step has no visual token."""


def tensorrt_files(writer: str) -> Mapping[str, str]:
    """Return the files of a source whose class has this writer."""
    return {
        "tensorrt_llm/__init__.py": "",
        "tensorrt_llm/version.py": '__version__ = "1.3.0"\n',
        "tensorrt_llm/_torch/__init__.py": "",
        HELPER: HELPER_FILE,
        MODEL: HEADER + textwrap.indent(f"{INIT}\n{writer}", "    "),
    }
