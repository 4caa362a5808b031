"""Model files whose classes carry a payload in many containers, under names that no engine uses.

Nothing of an engine's code.  Annotations, a default and a decorator are of packages that do not exist, and
the projections are modules that cannot be built: `build` puts a container into the class.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from cases.selftest.engines.synthetic_vllm import MODELS, text_of, write

BASE = text_of(f"{MODELS}/base.py")
_SOUND = text_of(f"{MODELS}/sound.py")
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
"""Containers of a payload that is None until the first sound: wrong: a compiled decoder stays with None."""

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
"""The same classes, which return zeros of every row where there is no payload."""


def build(choices: Mapping[str, str]) -> str:
    """Return the text of the model file with a container."""
    text = _SOUND
    for mark, code in choices.items():
        text = text.replace(mark, code)
    return text


def write_carrier(root: Path, choices: Mapping[str, str], **replaced: str) -> Path:
    """Write a tree with one such class; return its root. `replaced` are further texts by their old ones."""
    text = build(choices)
    for old, new in replaced.items():
        text = text.replace(old, new)
    files = {
        f"{MODELS}/sound.py": text,
        f"{MODELS}/base.py": BASE,
        "vllm/_version.py": "__version__ = version = '0.33.0'\n",
    }
    return write(root, files)
