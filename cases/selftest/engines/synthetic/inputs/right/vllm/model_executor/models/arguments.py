"""Regions whose optional argument differs between the profile run and later steps, and that are right."""

import torch
from torch import nn

from vllm.compilation.decorators import support_torch_compile
from vllm.distributed import get_pp_group
from vllm.sequence import IntermediateTensors, NoSuchBase


@support_torch_compile
class AlwaysZeros(nn.Module):
    """The caller has rows of zeros from the beginning, and writes into them."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        extra: torch.Tensor | None = None,
    ):
        hidden = self.layer(positions, inputs_embeds)
        return hidden if extra is None else hidden + extra


class AlwaysZerosCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = torch.zeros(16, 8)
        self.region = AlwaysZeros(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, features=None):
        self.kept.zero_()
        if features is not None:
            self.kept[: len(features)].copy_(features)
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(
            input_ids, positions, inputs_embeds=inputs_embeds, extra=self.kept[: len(inputs_embeds)]
        )


@support_torch_compile
class ZerosOutside(nn.Module):
    """The caller makes zeros of None before it calls what is compiled."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        extra: torch.Tensor | None = None,
    ):
        hidden = self.layer(positions, inputs_embeds)
        return hidden if extra is None else hidden + extra


class ZerosOutsideCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = ZerosOutside(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, features=None):
        self.kept = features
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        extra = self.kept
        if extra is None:
            extra = torch.zeros_like(inputs_embeds)
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, extra=extra)


@support_torch_compile
class ZerosByMethod(nn.Module):
    """A method of the caller makes the zeros, with a conditional expression."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        extra: torch.Tensor | None = None,
    ):
        hidden = self.layer(positions, inputs_embeds)
        return hidden if extra is None else hidden + extra


class ZerosByMethodCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = ZerosByMethod(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, features=None):
        self.kept = features
        return input_ids

    def _rows(self, like):
        return self.kept if self.kept is not None else torch.zeros_like(like)

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, extra=self._rows(inputs_embeds))


@support_torch_compile
class Ignores(nn.Module):
    """Takes an argument for the sake of its callers, and never reads it."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        extra: torch.Tensor | None = None,
    ):
        del extra
        return self.layer(positions, inputs_embeds)


class IgnoresCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = Ignores(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, features=None):
        self.kept = features
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, extra=self.kept)


@support_torch_compile
class Refuses(nn.Module):
    """Cannot be called without the input: a profile run without it would have failed."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        rows: torch.Tensor | None = None,
    ):
        assert rows is not None
        return self.layer(positions, inputs_embeds + rows)


class RefusesCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = Refuses(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, rows=None):
        self.kept = rows
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, rows=self.kept)


@support_torch_compile
class TimesZero(nn.Module):
    """Reads the input, and what it reads changes nothing."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        extra: torch.Tensor | None = None,
    ):
        hidden = self.layer(positions, inputs_embeds)
        if extra is not None:
            hidden = hidden + extra.new_zeros(())
        return hidden


class TimesZeroCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = TimesZero(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, features=None):
        self.kept = features
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, extra=self.kept)


@support_torch_compile
class Decoder(nn.Module):
    """A step with encoder outputs runs uncompiled: the engine has a flag for that."""

    def forward(self, input_ids, positions, encoder_rows: torch.Tensor | None = None):
        hidden = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden = layer(hidden, positions, encoder_rows)
        return hidden


class DecoderCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.decoder = Decoder(vllm_config=vllm_config)

    def forward(
        self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, *, encoder_outputs=None
    ):
        rows = torch.cat(encoder_outputs) if encoder_outputs else None
        return self.decoder(input_ids, positions, encoder_rows=rows)


@support_torch_compile
class Staged(nn.Module):
    """A later pipeline stage always takes the rows of the stage before."""

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
            hidden, rows = intermediate_tensors["hidden_states"], intermediate_tensors["rows"]
        for number, layer in enumerate(self.layers[self.start_layer : self.end_layer]):
            hidden = layer(positions, hidden, rows[:, self.start_layer + number])
        if not get_pp_group().is_last_rank:
            return IntermediateTensors({"hidden_states": hidden, "rows": rows})
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
class ByConfiguration(nn.Module):
    """The configuration decides before the first call."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        extra: torch.Tensor | None = None,
    ):
        hidden = self.layer(positions, inputs_embeds)
        return hidden if extra is None else hidden + extra


class ByConfigurationCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.is_wide = vllm_config.model_config.is_wide
        self.region = ByConfiguration(vllm_config=vllm_config)

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        extra = inputs_embeds if self.is_wide else None
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, extra=extra)


def rows_or_zeros(rows, like):
    """A function of the module makes the zeros."""
    return like.new_zeros(like.shape) if rows is None else rows


@support_torch_compile
class ZerosByFunction(nn.Module):
    """What is passed on was made by a function of the file."""

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, extra=None):
        hidden = self.layer(positions, inputs_embeds)
        return hidden if extra is None else self.last(hidden) * extra.sigmoid()


class ZerosByFunctionCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.model = ZerosByFunction(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, features=None):
        self.kept = features
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **kwargs):
        return self.model(
            input_ids=input_ids,
            positions=positions,
            inputs_embeds=inputs_embeds,
            extra=rows_or_zeros(self.kept, inputs_embeds),
        )


@support_torch_compile
class NamedZeros(nn.Module):
    """Names with tensors of zeros, in every call."""

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
            if named is not None:
                hidden = hidden + named[f"level_{number}"]
        return hidden


class NamedZerosCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = {}
        self.language_model = NamedZeros(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, features=None):
        self.kept = {} if features is None else dict(enumerate(features))
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        named = IntermediateTensors(
            {f"level_{i}": self.kept.get(i, torch.zeros_like(inputs_embeds)) for i in range(4)}
        )
        return self.language_model(input_ids, positions, None, inputs_embeds, named)


@support_torch_compile
class TupleOfZeros(nn.Module):
    """As many tensors as there are levels, in every call."""

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, levels=None):
        hidden = inputs_embeds
        for number, layer in enumerate(self.layers):
            hidden = layer(positions, hidden)
            if levels and number < len(levels):
                hidden = hidden + levels[number]
        return hidden


class TupleOfZerosCaller(nn.Module):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__()
        self.kept = None
        self.region = TupleOfZeros(vllm_config=vllm_config)

    def embed_input_ids(self, input_ids, features=None):
        self.kept = None if features is None else (features[0], features[1])
        return input_ids

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        empty = torch.zeros_like(inputs_embeds)
        levels = (empty, empty) if self.kept is None else self.kept
        return self.region(input_ids, positions, inputs_embeds=inputs_embeds, levels=levels)


@support_torch_compile
class StoredRows(nn.Module):
    """Rows of a storage that the caller allocates in its `__init__`: zeros in the profile run."""

    def forward(
        self,
        input_ids,
        positions,
        intermediate_tensors=None,
        inputs_embeds=None,
        levels: IntermediateTensors | None = None,
    ):
        hidden = inputs_embeds
        for number, layer in enumerate(self.layers):
            hidden = layer(positions, hidden)
            if levels is not None and number < 2:
                hidden = hidden + levels[f"level_{number}"]
        return hidden


class StoredRowsForConditionalGeneration(NoSuchBase):
    def __init__(self, *, vllm_config, prefix="model"):
        super().__init__()
        config = vllm_config.model_config.hf_config
        rows, width = vllm_config.scheduler_config.max_num_batched_tokens, config.text_config.hidden_size
        self.rows = [torch.zeros(rows, width) for _ in range(2)]
        self.filled = 0
        self.visual = NoSuchTower(config)
        self.language_model = NoSuchModel(vllm_config)

    def embed_input_ids(self, input_ids, multimodal_embeddings=None, *, is_multimodal=None):
        for rows in self.rows:
            rows.zero_()
        self.filled = len(input_ids)
        return self._embed_text_input_ids(input_ids, self.language_model.embed_input_ids)

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **kwargs):
        levels = None
        if inputs_embeds is not None:
            tokens = inputs_embeds.size(0)
            levels = IntermediateTensors({f"level_{i}": rows[:tokens] for i, rows in enumerate(self.rows)})
        return self.language_model.model(
            input_ids, positions, intermediate_tensors, inputs_embeds=inputs_embeds, levels=levels
        )
