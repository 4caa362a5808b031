"""Records the operations of a call on their very tensors, and does them again, as a CUDA graph would.

Uses `torch.utils._python_dispatch.TorchDispatchMode`.  Operations that
write run again on the tensors they wrote; results of the others are copied into
the tensors that the first run gave out (which changes nothing in a view).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override


class OpRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, records; `replay` repeats what was recorded, without any Python of the call."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations: list[tuple[OpOverload[..., Any], Sequence[Any], Mapping[str, Any], Any]] = []

    @override
    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self._operations.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        """Do every operation again, in order."""
        for func, args, kwargs, out in self._operations:
            again = func(*args, **kwargs)
            if isinstance(out, Tensor) and not func._schema.is_mutable:
                out.copy_(again)
