"""Model files whose classes carry a payload in many containers, under names that no engine uses.

Nothing of an engine's code.  Annotations, a default and a decorator are of packages that do not exist, and
the projections are modules that cannot be built: `build` puts a container into the class.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

FOLDER = "vllm/model_executor/models"
TEXT_MODEL = '''\
import nowhere_at_all as nw
import torch
from elsewhere import Box, ForeignConfig, Kind, traced
from torch import nn

from vllm.compilation.decorators import support_torch_compile
from vllm.model_executor.layers.linear import NoSuchLinear
from vllm.sequence import IntermediateTensors

from .base import BaseDecoder


class SoundConfig(ForeignConfig):
    """Cannot be defined without the package of its base."""


class Projection(nn.Module):
    def __init__(self, config: SoundConfig):
        super().__init__()
        self.down = NoSuchLinear(config.wide)


@support_torch_compile(dynamic_arg_dims={"x": 0, "positions": -1, "side_rows": 0})
class SoundDecoder(BaseDecoder):
    def forward(self, x: torch.Tensor, positions: torch.Tensor, side_rows: Box | None = None) -> torch.Tensor:
        hidden, residual = x, None
        for number, layer in enumerate(self.layers[self.first_layer : self.last_layer]):
            hidden, residual = layer(positions, hidden, residual)
            if side_rows is not None and number < LEVELS_IN(side_rows):
                hidden = hidden + ROWS_OF(side_rows, number)
            self.watch(hidden)
        hidden, _ = self.last_norm(hidden, residual)
        return hidden
'''
OUTER = """\


class SoundModel(nn.Module):
    def __init__(self, *, vllm_config: Box, prefix: str = ""):
        super().__init__()
        config = vllm_config.model_config.hf_config
        if not isinstance(config, SoundConfig):
            config = SoundConfig(config)
        self.projections = nn.ModuleList([Projection(config) for _ in range(len(config.sound_layers))])
        self.side_store: Box | None = EMPTY
        self.decoder = SoundCausal(vllm_config)
        self.language_model = self.decoder

    @traced(Kind.EMBED)
    def embed_input_ids(
        self, input_ids: nw.Tensor, multimodal_embeddings: Box | None = None, *,
        is_multimodal: torch.Tensor | None = None, kind: Kind = Kind.SOUND,
    ) -> nw.Tensor:
        text = self.language_model.embed_input_ids(input_ids)
        RESET
        if not multimodal_embeddings:
            return text
        width = text.shape[-1]
        levels = [
            torch.cat([rows[:, width * (i + 1) : width * (i + 2)] for rows in multimodal_embeddings])
            for i in range(len(self.projections))
        ]
        self.keep(text, levels, is_multimodal)
        return text

    def keep(self, text: Box, levels: Box, where: Box) -> None:
        spread = []
        for level in levels:
            rows = text.new_zeros(text.shape)
            rows[where] = level
            spread.append(rows)
        STORE

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **kwargs):
        side = TAKE
        out = self.language_model(inputs_embeds, positions, side_rows=side)
        DONE
        return out


class SoundCausal(nn.Module):
    def __init__(self, vllm_config):
        super().__init__()
        self.model = SoundDecoder(vllm_config=vllm_config)

    def forward(self, x, positions, side_rows=None):
        return self.model(x, positions, side_rows=side_rows)
"""
BASE = """\
from torch import nn


class BaseDecoder(nn.Module):
    def watch(self, hidden):
        pass
"""
SIZED = "torch.zeros(len(config.sound_layers), 0)"

_WRONG = {
    "RESET": "self.side_store = None",
    "EMPTY": "None",
    "TAKE": "self.side_store",
    "DONE": "self.side_store = None",
}
NONE_UNTIL_THE_FIRST: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "dict": {
            **_WRONG,
            "STORE": "self.side_store = {f'row_{i}': rows for i, rows in enumerate(spread)}",
            "LEVELS_IN(side_rows)": "len(side_rows)",
            "ROWS_OF(side_rows, number)": "side_rows[f'row_{number}']",
        },
        "names without numbers": {
            **_WRONG,
            "STORE": "self.side_store = dict(zip(['first', 'second', 'third'], spread))",
            "LEVELS_IN(side_rows)": "len(side_rows)",
            "ROWS_OF(side_rows, number)": "list(side_rows.values())[number]",
        },
        "named tensors": {
            **_WRONG,
            "STORE": "self.side_store = IntermediateTensors({f'row_{i}': x for i, x in enumerate(spread)})",
            "LEVELS_IN(side_rows)": "len(side_rows)",
            "ROWS_OF(side_rows, number)": "side_rows[f'row_{number}']",
        },
        "list": {
            **_WRONG,
            "STORE": "self.side_store = spread",
            "LEVELS_IN(side_rows)": "len(side_rows)",
            "ROWS_OF(side_rows, number)": "side_rows[number]",
        },
        "tuple": {
            **_WRONG,
            "STORE": "self.side_store = tuple(spread)",
            "LEVELS_IN(side_rows)": "len(side_rows)",
            "ROWS_OF(side_rows, number)": "side_rows[number]",
        },
        "one tensor, levels first": {
            **_WRONG,
            "STORE": "self.side_store = torch.stack(spread)",
            "LEVELS_IN(side_rows)": "side_rows.size(0)",
            "ROWS_OF(side_rows, number)": "side_rows[number]",
        },
        "one tensor, rows first": {
            **_WRONG,
            "STORE": "self.side_store = torch.stack(spread, dim=1)",
            "LEVELS_IN(side_rows)": "side_rows.size(1)",
            "ROWS_OF(side_rows, number)": "side_rows[:, number]",
        },
        "one tensor, levels in a row": {
            **_WRONG,
            "STORE": "self.side_store = torch.cat(spread, dim=-1)",
            "LEVELS_IN(side_rows)": "side_rows.size(1) // x.size(1)",
            "ROWS_OF(side_rows, number)": "side_rows[:, number * x.size(1) : (number + 1) * x.size(1)]",
        },
    }
)
"""Containers of a payload that is None until the first sound: wrong, since a compiled decoder keeps None."""

_ZEROS = "[inputs_embeds.new_zeros(inputs_embeds.shape) for _ in range(len(self.projections))]"
_PADDED = "[torch.cat([r, r.new_zeros(len(inputs_embeds) - len(r), r.size(1))]) for r in self.side_store]"
RIGHT: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "list": {
            **NONE_UNTIL_THE_FIRST["list"],
            "TAKE": f"{_ZEROS} if self.side_store is None else {_PADDED}",
        },
        "dict": {
            **NONE_UNTIL_THE_FIRST["dict"],
            "STORE": "self.side_store = spread",
            "TAKE": f"dict(enumerate({_ZEROS} if self.side_store is None else {_PADDED}))",
            "ROWS_OF(side_rows, number)": "side_rows[number]",
        },
    }
)
"""The same classes, which answer zeros of every row where there is no payload."""


def build(choices: Mapping[str, str]) -> str:
    """Return the text of the model file with a container."""
    text = TEXT_MODEL + OUTER
    for mark, code in choices.items():
        text = text.replace(mark, code)
    return text


def write_carrier(root: Path, choices: Mapping[str, str], **replaced: str) -> Path:
    """Write a tree with one such class; answers its root.  `replaced` are further texts by their old ones."""
    text = build(choices)
    for old, new in replaced.items():
        text = text.replace(old, new)
    files = {
        f"{FOLDER}/sound.py": text,
        f"{FOLDER}/base.py": BASE,
        "vllm/_version.py": "__version__ = version = '0.33.0'\n",
    }
    for member, content in files.items():
        path = root / member
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")
    return root
