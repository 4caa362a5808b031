"""Regions whose optional argument is absent in the profile run, and given by later steps."""

from collections.abc import Mapping

import torch
from torch import nn

from vllm.compilation.decorators import support_torch_compile
from vllm.distributed import get_pp_group
from vllm.sequence import IntermediateTensors

from .interfaces import SupportsNothing


@support_torch_compile
class AddsTensor(nn.Module, SupportsNothing):
    """One tensor (tokens, hidden), added after the first layer."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        extra: torch.Tensor | None = None,
    ):
        hidden = inputs_embeds if inputs_embeds is not None else self.embed_tokens(input_ids)
        residual = None
        for number, layer in enumerate(self.layers[self.start_layer : self.end_layer]):
            hidden, residual = layer(positions, hidden, residual)
            if number == 0 and extra is not None:
                hidden = hidden + extra
        hidden, _ = self.norm(hidden, residual)
        return hidden


class TensorCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = AddsTensor(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, extra=None):
        self.kept = extra
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(input_ids, positions, None, inputs_embeds, extra=self.kept)


@support_torch_compile
class AddsByLayer(nn.Module):
    """A dict from the number of a layer to what is added there."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        by_layer: "Mapping[int, torch.Tensor] | None" = None,
    ):
        hidden = inputs_embeds
        for number, layer in enumerate(self.layers):
            hidden = layer(positions, hidden)
            if by_layer and number in by_layer:
                hidden = hidden + by_layer[number]
        return hidden


class ByLayerCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = AddsByLayer(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, features=None):
        self.kept = None if features is None else {0: features, 2: features}
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, by_layer=self.kept)


@support_torch_compile
class AddsTuple(nn.Module):
    """A tuple of levels, popped from the front."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        levels: "tuple[torch.Tensor, ...] | None" = None,
    ):
        hidden = inputs_embeds
        waiting = list(levels) if levels is not None else []
        for layer in self.layers:
            if waiting:
                hidden = hidden + waiting.pop(0)
            hidden = layer(positions, hidden)
        return hidden


class TupleCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = AddsTuple(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, features=()):
        self.kept = tuple(features)
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, levels=self.kept)


@support_torch_compile
class Repeats(nn.Module):
    """A Python int: how often the last layer runs."""

    def forward(
        self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, times: int | None = None
    ):
        hidden = self.layer(positions, inputs_embeds)
        for _ in range(times or 0):
            hidden = self.last(hidden) * 0.5
        return hidden


class RepeatsCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = Repeats(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, images=()):
        self.kept = len(images)
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, times=self.kept)


@support_torch_compile
class AddsNamed(nn.Module):
    """Tensors by name, as an engine's `IntermediateTensors` has them."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        named: IntermediateTensors | None = None,
    ):
        hidden = inputs_embeds
        for number, layer in enumerate(self.layers):
            hidden = layer(positions, hidden)
            key = f"speaker_{number}"
            if named is not None and key in named.tensors:
                hidden = hidden + named[key]
        return hidden


class NamedCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = AddsNamed(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, features=None):
        self.kept = None if features is None else IntermediateTensors({"speaker_0": features})
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, named=self.kept)


@support_torch_compile
class TakesPerLayer(nn.Module):
    """One tensor (tokens, layers, width), of which each layer is given its own part."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        per_layer: torch.Tensor | None = None,
    ):
        hidden = inputs_embeds
        for number, layer in enumerate(self.layers):
            own = per_layer[:, number, :] if per_layer is not None else None
            hidden = layer(positions, hidden, own_part=own)
        return self.norm(hidden)


class PerLayerCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = TakesPerLayer(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, rows=None):
        self.kept = rows
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, per_layer=self.kept)


@support_torch_compile
class Masks(nn.Module):
    """A mask (tokens,) of rows that are set to zero."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        is_padding: torch.Tensor | None = None,
    ):
        hidden = self.layer(positions, inputs_embeds)
        if is_padding is not None:
            hidden = hidden.masked_fill(is_padding.unsqueeze(-1), 0.0)
        return self.last(hidden)


class MasksCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = Masks(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, is_padding=None):
        self.kept = is_padding
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, is_padding=self.kept)


@support_torch_compile
class EmbedsTypes(nn.Module):
    """Ids (tokens,) that only the embedding is given, and only where ids are embedded here."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        segment_ids: torch.Tensor | None = None,
    ):
        if inputs_embeds is not None:
            hidden = inputs_embeds
        else:
            hidden = self.embeddings(input_ids=input_ids, segment_ids=segment_ids)
        return self.encoder(positions, hidden)


@support_torch_compile
class ZerosInside(nn.Module):
    """None becomes zeros inside of what is compiled: the graph has the zeros."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        *,
        bias: torch.Tensor | None = None,
    ):
        hidden = inputs_embeds
        if bias is None:
            bias = torch.zeros_like(hidden)
        for layer in self.layers:
            hidden = layer(positions, hidden) + bias
        return hidden


class ZerosInsideCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = ZerosInside(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, bias=None):
        self.kept = bias
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, bias=self.kept)


@support_torch_compile
class GivenFirst(nn.Module):
    """Given in the profile run, and None in steps without an image: the graph fails without it."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        extra: torch.Tensor | None = None,
    ):
        hidden = self.layer(positions, inputs_embeds)
        return self.last(hidden if extra is None else hidden * extra)


class GivenFirstCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = torch.ones(8)
        self.region = GivenFirst(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, images=None):
        self.kept = None
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, extra=self.kept)


@support_torch_compile
class Staged(nn.Module):
    """A later pipeline stage takes the rows of the stage before only if its caller gives it some."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        rows: torch.Tensor | None = None,
    ):
        if get_pp_group().is_first_rank:
            hidden = inputs_embeds
        else:
            hidden = intermediate_tensors["hidden_states"]
            if rows is not None:
                rows = intermediate_tensors["rows"]
        for number, layer in enumerate(self.layers[self.start_layer : self.end_layer]):
            own = rows[:, self.start_layer + number] if rows is not None else None
            hidden = layer(positions, hidden, own)
        if not get_pp_group().is_last_rank:
            passed = {"hidden_states": hidden}
            if rows is not None:
                passed["rows"] = rows
            return IntermediateTensors(passed)
        return self.norm(hidden)


class StagedCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = torch.zeros(8, 4, 8)
        self.region = Staged(vllm_config=vllm_config)

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        if intermediate_tensors is not None:
            inputs_embeds = None
        rows = self.kept if inputs_embeds is not None else None
        return self.region(input_ids, positions, intermediate_tensors, inputs_embeds, rows)


@support_torch_compile
class ZerosTheWrongWay(nn.Module):
    """The caller makes zeros where there is something, and passes None on."""

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, extra=None):
        hidden = self.layer(positions, inputs_embeds)
        return hidden if extra is None else hidden + extra.exp()


class ZerosTheWrongWayCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = ZerosTheWrongWay(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, features=None):
        self.kept = features
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        extra = self.kept
        if extra is not None:
            extra = torch.zeros_like(inputs_embeds)
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, extra=extra)


@support_torch_compile
class ByNumber(nn.Module):
    """A step with images passes on how many rows of a table of its own to add: None in the profile run."""

    def forward(
        self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, rows: int | None = None
    ):
        hidden = self.layer(positions, inputs_embeds)
        if rows is not None:
            hidden = torch.cat([hidden[:rows] * 2, hidden[rows:]])
        return self.last(hidden)


class ByNumberCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = ByNumber(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, images=None):
        self.kept = None if images is None else len(images)
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, rows=self.kept)


@support_torch_compile
class LooksOnly(nn.Module):
    """Whether the argument is there decides, and nothing of it is read."""

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, extra=None):
        hidden = self.layer(positions, inputs_embeds)
        return hidden if extra is None else self.last(hidden)


class LooksOnlyCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = LooksOnly(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, images=None):
        self.kept = images
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, extra=self.kept)
