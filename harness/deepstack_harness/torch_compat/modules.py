"""A module taken apart into what can be written down, and put together again in another process.

A compiled function reads tensors out of `_parameters` and `_buffers` of the module it is called
with, and kept guards look at its classes and plain attributes: those are the parts.
"""

import importlib
from ast import literal_eval
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from deepstack_harness.errors import StepUnavailable

_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}


@dataclass(frozen=True)
class Part:
    """One submodule: where it stands, its class as `module:qualname`, and what it holds itself.

    `attributes` are Python literals: JSON knows no tuples, nor numbers as keys.
    """

    path: str
    made_by: str
    parameters: dict[str, Tensor | None]
    buffers: dict[str, Tensor | None]
    attributes: dict[str, str]


def take_apart(module: nn.Module) -> list[Part]:
    """Return all submodules, each behind the one it stands in.

    Attributes that are no literals are left out, and parts that are used twice
    appear once.  Raises `StepUnavailable` for a class that no other process can import.
    """
    return [_part(path, part) for path, part in module.named_modules()]


def put_together(parts: Sequence[Part]) -> nn.Module:
    """Make a module of these parts; its own constructors are not run."""
    made: dict[str, nn.Module] = {}
    for part in parts:
        made[part.path] = _made(part)
        if part.path:
            above, _, name = part.path.rpartition(".")
            made[above].add_module(name, made[part.path])
    return made[""]


def _part(path: str, module: nn.Module) -> Part:
    kind = type(module)
    if "<locals>" in kind.__qualname__ or kind.__module__ == "__main__":
        raise StepUnavailable(
            f"decoder part '{kind.__qualname__}' cannot be imported by another process; "
            "define it at the top of a module"
        )
    return Part(
        path,
        f"{kind.__module__}:{kind.__qualname__}",
        dict(module._parameters),
        dict(module._buffers),
        {name: repr(held) for name, held in vars(module).items() if _is_literal(name, held)},
    )


def _is_literal(name: str, held: object) -> bool:
    if name in _OF_EVERY_MODULE:
        return False
    try:
        return bool(literal_eval(repr(held)) == held)
    except (ValueError, SyntaxError):
        return False


def _made(part: Part) -> nn.Module:
    module_name, qualname = part.made_by.split(":")
    kind: Any = attrgetter(qualname)(importlib.import_module(module_name))
    module: nn.Module = kind.__new__(kind)
    nn.Module.__init__(module)
    vars(module).update({name: literal_eval(text) for name, text in part.attributes.items()})
    for name, tensor in part.parameters.items():
        held = None if tensor is None else nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
        module.register_parameter(name, held)
    for name, tensor in part.buffers.items():
        module.register_buffer(name, tensor)
    return module
