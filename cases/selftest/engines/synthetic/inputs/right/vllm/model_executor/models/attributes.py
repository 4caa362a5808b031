"""Regions that read an attribute which is written between steps, and that are right."""

import torch
from torch import nn

from vllm.compilation.decorators import support_torch_compile


@support_torch_compile
class AddsInPlace(nn.Module):
    """`self.held` is a buffer from the beginning, and steps write into it."""

    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.register_buffer("held", torch.zeros(16, 8), persistent=False)
        self.layer = NoSuchLayer(vllm_config)

    def set_image(self, features):
        self.held.zero_()
        self.held[: len(features)].copy_(features)

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.layer(positions, inputs_embeds) + self.held[: len(inputs_embeds)]


@support_torch_compile
class ScalesByTensor(nn.Module):
    """The number is a tensor of one element, which steps fill."""

    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.strength = torch.zeros(())
        self.layer = NoSuchLayer(vllm_config)

    def set_strength(self, strength):
        self.strength.fill_(strength)

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        hidden = self.layer(positions, inputs_embeds)
        return hidden + hidden.sin() * self.strength


@support_torch_compile
class Counts(nn.Module):
    """A count of steps that is only for people, and that the region does not read."""

    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.steps = 0
        self.layer = NoSuchLayer(vllm_config)

    def begin_step(self):
        self.steps += 1

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.layer(positions, inputs_embeds)
