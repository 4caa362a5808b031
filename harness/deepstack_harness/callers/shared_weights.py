"""Copies of a decoder that may be rebuilt, and own no weights."""

import copy
from itertools import chain
from typing import TypeVar

from torch import nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def shared_copy(module: ModuleT) -> ModuleT:
    """The same modules anew, around the very parameters and buffers of `module`."""
    return copy.deepcopy(
        module, {id(tensor): tensor for tensor in chain(module.parameters(), module.buffers())}
    )
