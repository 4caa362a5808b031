"""A small source in the shape of FastDeploy: its folder, class and method names, and nothing of its code."""

import textwrap
from collections.abc import Mapping

MODEL = "fastdeploy/model_executor/models/qwen3_vl/qwen3_vl.py"
HELPER = "fastdeploy/model_executor/models/sizes.py"

HEADER = """\
from __future__ import annotations

import paddle
from paddle import nn

from fastdeploy.config import FDConfig
from fastdeploy.model_executor.models.model_base import ModelForCasualLM
from fastdeploy.model_executor.models.sizes import rows_of


class Backbone(nn.Layer):
    def forward(self, states, deepstack_inputs: list[paddle.Tensor] | None = None):
        return self.norm(states)


class Qwen3VLForConditionalGeneration(ModelForCasualLM):
"""
INIT = """\
def __init__(self, fd_config: FDConfig) -> None:
    super().__init__(fd_config)
    settings = fd_config.model_config
    self.visual = NoSuchTower(settings.vision_config)
    self.width = settings.hidden_size
    self.depth = len(settings.vision_config.deepstack_visual_indexes)
    self.deepstack_input_embeds = None
    if hasattr(settings.vision_config, "deepstack_visual_indexes"):
        budget = fd_config.scheduler_config.max_num_batched_tokens
        self.deepstack_input_embeds = self._room(budget, settings.dtype)
    self.lm_head = NoSuchHead(fd_config=fd_config)

def _room(self, rows, dtype):
    return [paddle.zeros([rows, self.width], dtype=dtype) for _ in range(self.depth)]
"""
NO_COUNT = """\
@paddle.no_grad()
def _set_deepstack_input_embeds(self, levels: paddle.Tensor) -> None:
    rows = rows_of(levels)
    if rows > self.deepstack_input_embeds[0].shape[0]:
        self.deepstack_input_embeds = [
            paddle.zeros(rows, self.width, dtype=self.deepstack_input_embeds[0].dtype)
            for _ in range(self.depth)
        ]
    for ours, theirs in zip(self.deepstack_input_embeds, levels):
        ours[:rows].copy_(theirs, False)

def _get_deepstack_input_embeds(self, rows: int) -> list[paddle.Tensor]:
    return [level[:rows] for level in self.deepstack_input_embeds]

def _clear_deepstack_input_embeds(self, rows: int) -> None:
    if rows:
        for level in self.deepstack_input_embeds:
            level[:rows].zero_()
"""
"""No count of set tokens: rows of a longer payload stay, and are read."""
RIGHT = """\
def _within(self, rows):
    if not 0 <= rows <= self.deepstack_input_embeds[0].shape[0]:
        raise ValueError(f"{rows} rows")
    return rows

@paddle.no_grad()
def _set_deepstack_input_embeds(self, levels: paddle.Tensor) -> None:
    if levels.shape[0] != self.depth or levels.shape[2] != self.width:
        raise ValueError(f"{levels.shape} is no payload")
    rows = self._within(rows_of(levels))
    for index in range(self.depth):
        mine = self.deepstack_input_embeds[index]
        mine.zero_()
        mine[0:rows].copy_(levels[index], False)

def _get_deepstack_input_embeds(self, rows: int):
    return tuple(each[: self._within(rows)] for each in self.deepstack_input_embeds)

def _clear_deepstack_input_embeds(self, rows: int) -> None:
    self._within(rows)
    for index in range(self.depth):
        self.deepstack_input_embeds[index].zero_()
"""
FORWARD = """\
def forward(self, ids_remove_padding, image_features, forward_meta):
    states = self.get_input_embeddings(ids_remove_padding, image_features)
    levels = self._get_deepstack_input_embeds(states.shape[0])
    out = self.model(states, deepstack_inputs=levels)
    self._clear_deepstack_input_embeds(states.shape[0])
    return out
"""


def fastdeploy_files(methods: str, *, forward: str = FORWARD) -> Mapping[str, str]:
    """Return the files of a source whose class has these methods."""
    body = textwrap.indent(f"{INIT}\n{methods}\n{forward}", "    ")
    return {
        "fastdeploy/__init__.py": "",
        "fastdeploy/inter_communicator/__init__.py": "",
        HELPER: "def rows_of(levels):\n    return levels.shape[1]\n",
        MODEL: f"{HEADER}{body}",
    }
