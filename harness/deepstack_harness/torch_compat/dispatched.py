"""Tensors of an operation that a `TorchDispatchMode` sees, and those that came in storage of their own."""

from collections.abc import Iterator

from torch import Tensor
from torch.utils._pytree import tree_leaves


def tensors_in(tree: object) -> Iterator[Tensor]:
    """Yield the tensors of any shape in arguments or results, however they are nested."""
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def allocated(given: object, out: object) -> Iterator[bool]:
    """Yield for each tensor of `out`, of any shape, True if none of `given` has its storage."""
    storages = set(map(_storage, tensors_in(given)))
    return (_storage(result) not in storages for result in tensors_in(out))


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
