"""Copies of a decoder that share its weights, and the layers of a decoder."""

import copy
from itertools import chain
from typing import TypeVar

from torch import nn

from deepstack_harness.errors import UsageError

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def shared_copy(module: ModuleT) -> ModuleT:
    """Return new modules around the same parameters and buffers, so that they can be rebuilt."""
    return copy.deepcopy(
        module, {id(tensor): tensor for tensor in chain(module.parameters(), module.buffers())}
    )


def layers_of(decoder: nn.Module) -> nn.ModuleList:
    """Return the layers of a decoder; raises `UsageError` for one without a list of `layers`."""
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise UsageError(
            f"{type(decoder).__name__} has no torch.nn.ModuleList 'layers' to split or to rebuild"
        )
    return layers
