"""Save what torch.compile made to a file, and load it where nothing was ever compiled.

`torch.compile(..).aot_compile` stands behind a private switch before torch 2.12;
`torch.compiler.load_compiled_function` is public.  What can be saved: backend inductor only on 2.10
(read), eager too on 2.11 (run), and aot_eager on 2.13 (run).  The saved function takes the module
as its first argument: the file holds no parameters.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

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

    Dimensions are symbols where the arguments are so marked.  `options` are those of
    torch.compile, and stay as they are.  Nothing of it is counted as compiled.
    Raises `StepUnavailable` where this torch cannot save what `backend` compiles,
    `MachineError` where its caches are switched off, and whatever torch raises while it compiles.
    """
    from torch._dynamo import config

    if torch.compiler.config.force_disable_caches:
        raise MachineError("torch saves no artifact while force_disable_caches is set: unset it")
    with _uncounted(), config.patch(enable_aot_compile=True):
        compiled: Any = torch.compile(
            forward, fullgraph=True, dynamic=False, backend=backend, options=_saveable(options)
        )
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

    Guards that were kept are checked at every call: a RuntimeError, never a recompile.
    """
    with path.open("rb") as file:
        loaded: Callable[..., Any] = torch.compiler.load_compiled_function(file)
    return loaded


def _saveable(options: Mapping[str, Any]) -> dict[str, Any]:
    keep: GuardFilter = options.get("guard_filter_fn", lambda guards: [True] * len(guards))

    def keep_saveable(guards: Sequence["GuardFilterEntry"]) -> list[bool]:
        return [kept and _can_save(guard) for kept, guard in zip(keep(guards), guards, strict=True)]

    return {**options, "guard_filter_fn": keep_saveable}


def _can_save(guard: "GuardFilterEntry") -> bool:
    from torch._dynamo.guards import CheckFunctionManager

    # What torch drops by itself where no filter is given; with one, they end in a PackageError.
    unsaveable = CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES
    return not guard.is_global and guard.guard_type not in unsaveable


@contextmanager
def _uncounted() -> Iterator[None]:
    # aot_compile counts as a graph built, and nothing in the session was compiled again.
    from torch._dynamo.utils import counters

    before = copy.deepcopy(counters)
    try:
        yield
    finally:
        counters.clear()
        counters.update(before)
