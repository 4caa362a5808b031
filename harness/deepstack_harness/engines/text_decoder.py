"""A text model's own `forward` as a decoder of the harness, with linear maps in place of its layers.

The text model runs unchanged.  Its layers, norms and other parts are small linear maps of the sum of all
hidden states that they are given, so that a payload which is added between two layers reaches the output.
What a part really computes does not matter: compiled and uncompiled runs are compared with each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.contract.case import LEVELS_ALONE
from deepstack_harness.engines.bound_class import ForwardClass
from deepstack_harness.engines.load import LoadedSource
from deepstack_harness.engines.loaded_class import derive_with_functions
from deepstack_harness.engines.stand_ins import (
    IntermediateTensors,
    PayloadConvention,
    Role,
    join_levels,
)
from deepstack_harness.engines.text_model import (
    ELEMENT,
    ONLY_FORWARD,
    Attributes,
    CompiledText,
    Path,
    attributes_of,
)
from deepstack_harness.errors import UsageError

HIDDEN = 8
"""The width of text models: small, since each case compiles one."""
LAYERS = LEVELS_ALONE + 1
"""One layer more than there are levels, so that a layer follows the last level."""


class TextPart(nn.Module):
    """A part of a text model: a linear map of the sum of all tensors and numbers that it is given.

    It returns as many hidden states as are unpacked (`outputs`), in the shape of the first floating-point
    tensor. With `levels` each of them is (n, levels, h), as of an embedding that has a row for each layer.
    Where it `adds_residual` by itself all outputs but the first are None. Called without any tensor it
    returns its first argument.
    """

    def __init__(self, outputs: int, levels: int = 0, *, adds_residual: bool = False) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(outputs))
        self.adds_residual = adds_residual
        self.by_id = nn.Parameter(torch.randn(HIDDEN))
        self.by_level = nn.Parameter(torch.randn(levels, 1)) if levels else None

    @override
    def forward(self, *inputs: object, **named: object) -> object:
        """Return a linear map of the sum of what is given, a tuple of several, or an empty list."""
        if not self.maps:
            return []
        values = [*inputs, *named.values()]
        tensors = _tensors_in(values)
        if not tensors:
            return values[0] if values else None
        states = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.dim() > 1]
        first = states[0] if states else self._rows(tensors[0], tensors[0].size(-1))
        total = first if first.size(-1) == HIDDEN else first.mean(-1, keepdim=True) * self.by_id
        if self.by_level is not None and total.dim() == 2:
            total = total.unsqueeze(1) * self.by_level
        for tensor in tensors:
            if tensor is not first:
                total = total + self._like(tensor, total)
        for value in values:
            if isinstance(value, int | float):
                total = total + value
        if self.adds_residual:
            return (self.maps[0](total) + total, *(None for _ in self.maps[1:]))
        outputs = tuple(linear(total) + total for linear in self.maps)
        return outputs[0] if len(outputs) == 1 else outputs

    def _like(self, tensor: Tensor, total: Tensor) -> Tensor:
        """Return what a tensor adds to a total (n, .., h), in a shape that broadcasts to it."""
        if tensor.is_floating_point() and tensor.shape == total.shape:
            return tensor
        rows = self._rows(tensor, total.size(0))
        for _ in range(total.dim() - rows.dim() if rows.dim() > 1 else 0):
            rows = rows.unsqueeze(1)
        return rows

    def _rows(self, tensor: Tensor, tokens: int) -> Tensor:
        """Return rows (tokens, h) of a tensor with a row or a column for each token, and else a row (h,)."""
        values = tensor if tensor.is_floating_point() else tensor.to(self.by_id.dtype)
        if values.dim() > 1 and values.size(0) == tokens:
            rows = (
                values.flatten(1) if values.size(-1) != HIDDEN else values.reshape(tokens, -1, HIDDEN).sum(1)
            )
            return rows if rows.size(-1) == HIDDEN else rows.mean(-1, keepdim=True) * self.by_id
        if values.dim() > 0 and values.size(-1) == tokens:
            return values.reshape(-1, tokens).sum(0).unsqueeze(-1) * self.by_id
        return values.mean() * self.by_id


def _tensors_in(value: object) -> list[Tensor]:
    """Return the tensors of an argument, those of containers too."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, IntermediateTensors):
        return _tensors_in(value.tensors)
    if isinstance(value, dict):
        return _tensors_in(list(value.values()))
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors_in(item)]
    return []


class TextHost(nn.Module):
    """A base class of text models: an empty module."""


class TextDecoder(nn.Module):
    """The `forward` of one text model; see `protocols.Decoder`."""

    def __init__(self, text: nn.Module, convention: PayloadConvention) -> None:
        """Take an instance with all its parts, and how its caller passes a payload to it."""
        super().__init__()
        self.text = text
        self._convention = convention

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Run the text model: (n, h), (3, n), one (n, h) per level or None -> (n, h)."""
        inputs: list[object] = []
        named: dict[str, object] = {}
        for place, role in self._convention.roles:
            value: object = None
            if role is Role.HIDDEN:
                value = hidden
            elif role is Role.POSITIONS:
                value = positions
            elif role is Role.PAYLOAD:
                value = None if payload is None else join_levels(self._convention, payload)
            if isinstance(place, int):
                inputs.append(value)
            else:
                named[place] = value
        out = self.text.forward(*inputs, **named)  # by `__call__` an engine compiles it itself
        return cast(Tensor, out[0] if isinstance(out, tuple) else out)


@dataclass
class TextFamily:
    """The sizes of a text model, whose class is `defined` over `TextHost`; see `protocols.Family`."""

    text: CompiledText
    defined: type[TextHost]
    attributes: Attributes
    convention: PayloadConvention
    name: str
    hidden: int = HIDDEN
    levels: int = LEVELS_ALONE
    routed: bool = False

    def build(self, *, dtype: torch.dtype, device: torch.device, seed: int) -> nn.Module:
        """Make the text model with `TextPart`s as its parts, whose weights are drawn from `seed`.

        Raises `UsageError` where it cannot be run without the rest of its package.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            instance = self.defined.__new__(self.defined)
            nn.Module.__init__(instance)
            furnish(instance, self.attributes)
        decoder = TextDecoder(instance, self.convention).to(dtype=dtype, device=device).eval()
        hidden = torch.zeros(2, HIDDEN, dtype=dtype, device=device)
        try:  # a step without a payload: every engine serves text
            with torch.no_grad():
                decoder(hidden, self.positions(2, device), None)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                f"{self.text.at}: {self.name}.forward cannot be run over stand-ins: {error}"
            ) from error
        return decoder.requires_grad_(False)

    def positions(self, tokens: int, device: torch.device) -> Tensor:
        """Return positions (3, n) int64."""
        return torch.arange(tokens, device=device).expand(3, tokens).contiguous()


def text_family(loaded: LoadedSource, bound: ForwardClass, text: CompiledText) -> TextFamily:
    """Return the text model that a class calls.

    Raises `UsageError` where the class passes no payload to it, and where it cannot be run.
    """
    name = text.model.class_name
    if not any(role is Role.PAYLOAD for _, role in bound.convention.roles):
        raise UsageError(f"{text.at}: {bound.model_class} passes no payload to {name}")
    defined, functions = derive_with_functions(loaded, text.model, ONLY_FORWARD, TextHost)
    family = TextFamily(text, defined, attributes_of([*functions]), bound.convention, name)
    with loaded.without_stubs():
        family.build(dtype=torch.float32, device=torch.device("cpu"), seed=0)
    return family


def furnish(
    instance: nn.Module, attributes: Attributes, by_level: Path = (), *, adds_residual: bool = False
) -> None:
    """Set every attribute that the code of a text model reads.

    The part at `by_level` returns a row for each layer. With `adds_residual`, layers that return several
    values return None for all but the first.
    """
    for path in sorted(attributes.sequences, key=lambda path: (len(path), path)):
        layers = nn.ModuleList(_layer(path, attributes, adds_residual=adds_residual) for _ in range(LAYERS))
        set_part(instance, path, layers)
    values: Mapping[Path, object] = {
        **dict.fromkeys(attributes.numbers, 1),
        **{path: HIDDEN for path in attributes.numbers if path[-1] == "hidden_size"},
        **{path: TextPart(1) for path in attributes.numbers if path[-1].endswith("norm")},
        **dict.fromkeys(attributes.first, 0),
        **dict.fromkeys(attributes.last, LAYERS),
        **dict.fromkeys(attributes.tested),
        **dict.fromkeys(attributes.searched, ()),
    }
    for path, value in sorted(values.items(), key=lambda item: len(item[0])):
        if ELEMENT not in path:
            set_part(instance, path, value)
    for path, outputs in attributes.called.items():
        if ELEMENT not in path and not hasattr(type(instance), path[0]):
            set_part(instance, path, TextPart(outputs, LAYERS if path == by_level else 0))


def _layer(sequence: Path, attributes: Attributes, *, adds_residual: bool) -> nn.Module:
    """Return one element of a sequence, with the parts of its own that are called."""
    element = (*sequence, ELEMENT)
    outputs = attributes.called.get(element, 1)
    layer = TextPart(outputs, adds_residual=adds_residual and outputs > 1)
    for path, outputs in attributes.called.items():
        if path[: len(element)] == element and len(path) > len(element):
            set_part(layer, path[len(element) :], TextPart(outputs))
    return layer


def set_part(root: nn.Module, path: Path, value: object) -> None:
    """Set an attribute below a module; missing modules on the path are made."""
    owner = root
    for name in path[:-1]:
        if getattr(owner, name, None) is None:
            setattr(owner, name, nn.Module())
        owner = getattr(owner, name)
    setattr(owner, path[-1], value)
