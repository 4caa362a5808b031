"""Facts of torch that importing other code must not change: what measures relies on them."""

import builtins
from collections.abc import Mapping
from types import ModuleType

import torch
from torch import nn

# Dynamo takes as long to import as torch. It is imported here, and not with a source, so that a server that
# forks workers does it once for all of them.
from torch._dynamo.mutation_guard import install_generation_tagging_init

_RELIED_ON: tuple[ModuleType | type, ...] = (torch, torch.Tensor, nn.Module, nn.functional, builtins)


def facts() -> Mapping[str, object]:
    """Return each function and class that measuring calls by its name, and the defaults of new tensors."""
    # It replaces torch.manual_seed itself, and two methods of nn.Module when it first compiles.
    install_generation_tagging_init()
    known: dict[str, object] = {
        f"{holder.__name__}.{name}": value
        for holder in _RELIED_ON
        for name, value in list(vars(holder).items())
        if callable(value)
    }
    return {
        **known,
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
    }


def changed(before: Mapping[str, object]) -> list[str]:
    """Return the names of facts that are others than `before`, sorted; what was added is no change."""
    now = facts()
    kept = {name for name, value in before.items() if name in now and _same(value, now[name])}
    return sorted(before.keys() - kept)


def _same(one: object, other: object) -> bool:
    return one is other or (isinstance(one, torch.device | bool) and one == other)
