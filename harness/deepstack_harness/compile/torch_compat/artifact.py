"""Save what torch.compile made to a file, and load it in a process that never compiled anything.

`torch.compile(..).aot_compile` needs a private switch before torch 2.12;
`torch.compiler.load_compiled_function` is public. What can be saved: backend inductor only on 2.10 (read),
eager too on 2.11 (run), and aot_eager on 2.13 (run).

The saved function takes the module as its first argument: the file holds no parameters. It reads tensors out
of the module's `_parameters` and `_buffers`, and guards that were not dropped check its classes and plain
attributes: those parts are saved to a file of their own.
"""

import copy
import pickle
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import nn

from deepstack_harness.errors import MachineError, StepUnavailable

if TYPE_CHECKING:
    from torch._dynamo.types import GuardFilterEntry


_CANNOT_SAVE = ("SerializableCallable", "expected OutputCode")
"""Words of torch's own errors where a backend has no form on disk; the latter is aot_eager on 2.11."""

GuardFilter = Callable[[Sequence["GuardFilterEntry"]], Sequence[bool]]


def save(
    forward: Callable[..., Any],
    arguments: tuple[Any, ...],
    path: Path,
    *,
    backend: str,
    options: Mapping[str, Any],
) -> None:
    """Compile the bound method `forward` for `arguments` ahead of time, and write the artifact to `path`.

    Dimensions are symbols where the arguments are so marked. `options` are those of
    torch.compile, and stay as they are. Nothing of it is counted as compiled.
    Raises `StepUnavailable` where this torch cannot save what `backend` compiles,
    `MachineError` where its caches are switched off, and whatever torch raises while it compiles.
    """
    from torch._dynamo import config
    from torch._dynamo.guards import CheckFunctionManager
    from torch._dynamo.utils import counters

    keep: GuardFilter = options.get("guard_filter_fn", lambda guards: [True] * len(guards))
    # What torch drops by itself where no filter is given; with one, they end in a PackageError.
    unsaveable = CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES

    def keep_saveable(guards: Sequence["GuardFilterEntry"]) -> list[bool]:
        return [
            kept and not guard.is_global and guard.guard_type not in unsaveable
            for kept, guard in zip(keep(guards), guards, strict=True)
        ]

    if torch.compiler.config.force_disable_caches:
        raise MachineError("torch saves no artifact while force_disable_caches is set: unset it")
    # aot_compile counts as a graph built, and nothing in the session was compiled again.
    with patch.dict(counters, copy.deepcopy(counters)), config.patch(enable_aot_compile=True):
        compiled: Any = torch.compile(
            forward, fullgraph=True, dynamic=False, backend=backend,
            options={**options, "guard_filter_fn": keep_saveable},
        )  # fmt: skip
        try:
            compiled.aot_compile((arguments, {})).save_compiled_function(str(path))
        except (RuntimeError, AssertionError) as error:
            if not any(words in str(error) for words in _CANNOT_SAVE):
                raise
            raise StepUnavailable(
                f"torch {torch.__version__} cannot save what backend {backend} compiled; "
                "torch 2.13 can for backends eager, aot_eager and inductor"
            ) from None


def load(path: Path) -> Callable[..., Any]:
    """Return the function saved in `path`, to be called with the module before its arguments.

    Guards that were not dropped are checked at every call: a RuntimeError, never a recompile.
    """
    with path.open("rb") as file:
        loaded: Callable[..., Any] = torch.compiler.load_compiled_function(file)
    return loaded


_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}


def save_module(module: nn.Module, path: Path) -> None:
    """Write the parts of a module that a compiled function reads: tensors, classes, plain attributes.

    Attributes that are no Python literals, and hooks, are left out. Raises `StepUnavailable` for a class
    that no other process can import.
    """
    try:
        torch.save(_portable(module, {}), path)
    except (pickle.PicklingError, AttributeError) as error:
        raise StepUnavailable(f"the decoder cannot be loaded by another process: {error}") from None


def load_module(path: Path) -> nn.Module:
    """Return the module that `save_module` wrote, without running constructors of its parts.

    The file is a pickle: it runs what it names, so load only files that this package wrote.
    """
    module: nn.Module = torch.load(path, weights_only=False)
    return module


def _portable(module: nn.Module, copies: dict[int, nn.Module]) -> nn.Module:
    """Return a copy with the same tensors; `copies` has those that were made, by the `id` of the part."""
    if id(module) in copies:
        return copies[id(module)]
    kind = type(module)
    if "<locals>" in kind.__qualname__ or kind.__module__ == "__main__":
        raise StepUnavailable(
            f"decoder part '{kind.__qualname__}' cannot be imported by another process; "
            "define it at the top of a module"
        )
    copies[id(module)] = portable = kind.__new__(kind)
    nn.Module.__init__(portable)
    vars(portable).update({name: held for name, held in vars(module).items() if _is_literal(name, held)})
    portable._parameters.update(module._parameters)
    portable._buffers.update(module._buffers)
    for name, part in module._modules.items():
        portable._modules[name] = part and _portable(part, copies)
    return portable


def _is_literal(name: str, held: object) -> bool:
    if name in _OF_EVERY_MODULE:
        return False
    try:
        return bool(literal_eval(repr(held)) == held)
    except (ValueError, SyntaxError):
        return False
