"""A text model's own `forward` as a decoder of the harness, over stand-ins for its layers.

The text model runs unchanged.  Its layers, norms and other parts are small linear maps of the sum of all
hidden states that they are given, so that a payload which is added between two layers reaches the output.
What a part really computes does not matter: compiled and uncompiled runs are compared with each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.contract.case import LEVELS_ALONE
from deepstack_harness.engines.bound_class import ForwardClass
from deepstack_harness.engines.cut_model import define_model
from deepstack_harness.engines.stand_ins import FORWARD_STAND_INS, Handing, Role, join_levels
from deepstack_harness.engines.text_model import ELEMENT, Attributes, Path, TextCut
from deepstack_harness.errors import UsageError

HIDDEN = 8
LAYERS = LEVELS_ALONE + 1


class TextPart(nn.Module):
    """A part of a text model: called with hidden states (n, h), it answers with as many as are unpacked.

    Called without hidden states it answers with its first argument.
    """

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(answers))

    @override
    def forward(self, *inputs: object, **named: object) -> object:
        """Return a linear map of the sum of all hidden states, a tuple of several, or an empty list."""
        if not self.maps:
            return []
        states = [
            each
            for each in (*inputs, *named.values())
            if isinstance(each, Tensor) and each.is_floating_point() and each.dim() == 2
        ]
        if not states:
            return inputs[0] if inputs else None
        total = states[0]
        for each in states[1:]:
            total = total + each
        answers = tuple(each(total) + total for each in self.maps)
        return answers[0] if len(answers) == 1 else answers


class TextHost(nn.Module):
    """The base class of a text model that was cut: an empty module."""


class TextDecoder(nn.Module):
    """The `forward` of one text model; see `protocols.Decoder`."""

    def __init__(self, text: nn.Module, handing: Handing) -> None:
        """Take an instance with all its parts, and the way in which its caller hands a payload to it."""
        super().__init__()
        self.text = text
        self._handing = handing

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Run the text model: (n, h), (3, n), one (n, h) per level or None -> (n, h)."""
        inputs: list[object] = []
        named: dict[str, object] = {}
        for place, role in self._handing.roles:
            value: object = None
            if role is Role.HIDDEN:
                value = hidden
            elif role is Role.POSITIONS:
                value = positions
            elif role is Role.PAYLOAD:
                value = None if payload is None else join_levels(self._handing, payload)
            if isinstance(place, int):
                inputs.append(value)
            else:
                named[place] = value
        out = self.text(*inputs, **named)
        return cast(Tensor, out[0] if isinstance(out, tuple) else out)


@dataclass
class TextFamily:
    """The sizes of a text model; see `protocols.Family`."""

    text: TextCut
    handing: Handing
    name: str
    hidden: int = HIDDEN
    levels: int = LEVELS_ALONE
    routed: bool = False

    def build(self, *, dtype: torch.dtype, device: torch.device, seed: int) -> nn.Module:
        """Define the text model over stand-ins for its parts, whose weights are drawn from `seed`.

        Raises `UsageError` where it cannot be run without the rest of its package.
        """
        cut = self.text.model
        alone = replace(cut, cut=replace(cut.cut, of_host={}))
        stand_ins = {**FORWARD_STAND_INS, **cut.model.parts.stand_ins}
        defined = define_model(alone, TextHost, stand_ins)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            instance = defined.__new__(defined)
            nn.Module.__init__(instance)
            _furnish(instance, self.text.attributes)
        decoder = TextDecoder(instance, self.handing).to(dtype=dtype, device=device).eval()
        self._try(decoder, dtype, device)
        return decoder.requires_grad_(False)

    def positions(self, tokens: int, device: torch.device) -> Tensor:
        """Return positions (3, n) int64."""
        return torch.arange(tokens, device=device).expand(3, tokens).contiguous()

    def _try(self, decoder: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        """Run a step without a payload; raise `UsageError` where that fails: every engine serves text."""
        hidden = torch.zeros(2, HIDDEN, dtype=dtype, device=device)
        try:
            with torch.no_grad():
                decoder(hidden, self.positions(2, device), None)
        except Exception as error:
            name = self.text.model.cut.class_name
            raise UsageError(
                f"{self.text.at}: {name}.forward cannot be run over stand-ins: {error}"
            ) from error


def text_family(bound: ForwardClass, text: TextCut) -> TextFamily:
    """Return the text model behind a class; raise `UsageError` where the class hands nothing to it."""
    family = TextFamily(text, bound.handing, text.model.cut.class_name)
    if not any(role is Role.PAYLOAD for _, role in bound.handing.roles):
        raise UsageError(f"{text.at}: {bound.model_class} hands no payload to {text.model.cut.class_name}")
    return family


def _furnish(instance: nn.Module, attributes: Attributes) -> None:
    """Set every attribute that the code of a text model reads."""
    for path in sorted(attributes.sequences, key=lambda path: (len(path), path)):
        _set(instance, path, nn.ModuleList(_layer(path, attributes) for _ in range(LAYERS)))
    values: Mapping[Path, object] = {
        **dict.fromkeys(attributes.numbers, 1),
        **{path: HIDDEN for path in attributes.numbers if path[-1] == "hidden_size"},
        **dict.fromkeys(attributes.first, 0),
        **dict.fromkeys(attributes.last, LAYERS),
        **dict.fromkeys(attributes.tested),
    }
    for path, value in values.items():
        if ELEMENT not in path:
            _set(instance, path, value)
    for path, answers in attributes.called.items():
        if ELEMENT not in path and not hasattr(type(instance), path[0]):
            _set(instance, path, TextPart(answers))


def _layer(sequence: Path, attributes: Attributes) -> nn.Module:
    """Return one element of a sequence, with the parts of its own that are called."""
    element = (*sequence, ELEMENT)
    layer = TextPart(attributes.called.get(element, 1))
    for path, answers in attributes.called.items():
        if path[: len(element)] == element and len(path) > len(element):
            _set(layer, path[len(element) :], TextPart(answers))
    return layer


def _set(root: nn.Module, path: Path, value: object) -> None:
    """Set an attribute below a module; what stands between is made."""
    owner = root
    for name in path[:-1]:
        if not hasattr(owner, name):
            setattr(owner, name, nn.Module())
        owner = getattr(owner, name)
    setattr(owner, path[-1], value)
