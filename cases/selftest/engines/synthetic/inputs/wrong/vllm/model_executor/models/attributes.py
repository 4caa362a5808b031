"""Regions that read an attribute which a method outside of the region changes between steps."""

import torch
from torch import nn

from vllm.compilation.decorators import support_torch_compile


@support_torch_compile
class AddsHeld(nn.Module):
    """`self.held` is None until a step with an image."""

    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.held = None
        self.layers = NoSuchLayers(vllm_config)

    def set_image(self, features):
        self.held = features

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        hidden = inputs_embeds
        for layer in self.layers:
            hidden = layer(positions, hidden)
        if self.held is not None:
            hidden = hidden + self.held
        return hidden


@support_torch_compile
class Scales(nn.Module):
    """A Python number that steps change: the graph has it as a constant."""

    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.strength = 0.0
        self.layer = NoSuchLayer(vllm_config)

    def set_strength(self, strength):
        self.strength = strength

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        hidden = self.layer(positions, inputs_embeds)
        return hidden + hidden.sin() * self.strength


@support_torch_compile
class Switches(nn.Module):
    """A flag that the caller sets, and its region reads in a method of its own."""

    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.is_draft = False
        self.layer = NoSuchLayer(vllm_config)
        self.head = NoSuchLayer(vllm_config)

    def _finish(self, hidden):
        return self.head(hidden) if self.is_draft else hidden

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self._finish(self.layer(positions, inputs_embeds))


class SwitchesCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.region = Switches(vllm_config=vllm_config)

    def begin_draft(self, on):
        self.region.is_draft = on

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds)


class Reader(nn.Module):
    """A part that the region calls reads the attribute."""

    def __init__(self, vllm_config):
        super().__init__()
        self.bias = None
        self.projection = NoSuchLayer(vllm_config)

    def forward(self, hidden):
        projected = self.projection(hidden)
        return projected if self.bias is None else projected + self.bias


@support_torch_compile
class HoldsReader(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.readers = nn.ModuleList([Reader(vllm_config) for _ in range(2)])

    def set_bias(self, bias):
        for reader in self.readers:
            reader.bias = bias

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        hidden = inputs_embeds
        for reader in self.readers:
            hidden = reader(hidden)
        return hidden
