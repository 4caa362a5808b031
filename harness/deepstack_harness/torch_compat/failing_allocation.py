"""Make one allocation inside a call fail, as it does when a GPU has no memory left.

Uses `torch.utils._python_dispatch.TorchDispatchMode`: an operation allocates if a result comes in storage
that none of its arguments has.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override


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
        given = set(map(_storage, _tensors((args, kwargs))))
        for result in _tensors(out):
            self._left -= _storage(result) not in given
            if self._left <= 0 and not self.failed:
                self.failed = True
                raise torch.OutOfMemoryError(f"{func} found no memory: this allocation was made to fail")
        return out


def _tensors(tree: object) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
