"""Compilation as engines do it, and a captured graph that needs no GPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

BACKEND = "eager"


def compile_as_engines_do(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile one graph and drop its guards."""
    drop: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    return torch.compile(function, fullgraph=True, dynamic=False, backend=BACKEND, options=drop)


class SmallGraph(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Like a CUDA graph: the same operations on the same tensors, without Python."""

    def __init__(self, work: Callable[..., Tensor], *given: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done: list[tuple[Any, ...]] = []
        with self:
            self.out = work(*given)

    def __torch_dispatch__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        self.done.append((function, args, kwargs or {}, out))
        return out

    def replay(self) -> Tensor:
        for function, args, kwargs, out in self.done:
            again = function(*args, **kwargs)
            if isinstance(out, Tensor) and not function._schema.is_mutable:
                out.copy_(again)
        return self.out.clone()
