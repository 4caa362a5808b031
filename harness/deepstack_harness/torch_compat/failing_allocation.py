"""Make one allocation inside a call fail, as it does when a GPU has no memory left.

Uses `torch.utils._python_dispatch.TorchDispatchMode`: an operation allocates if a result comes in storage
that none of its arguments has.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from deepstack_harness.torch_compat.dispatched import allocated


class FailingAllocation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, the `number`-th allocation (from 1) raises `torch.OutOfMemoryError`."""

    def __init__(self, number: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = number
        self.failed = False
        """True once it has."""

    @override
    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for is_new in allocated((args, kwargs), out):
            self._left -= is_new
            if self._left <= 0 and not self.failed:
                self.failed = True
                raise torch.OutOfMemoryError(f"{func} found no memory: this allocation was made to fail")
        return out
