"""Structures of arguments: tuples, dicts and None around tensors, as a compiler's guards see them.

torch has its pytree functions in a private module (read in torch 2.10 .. 2.13): None is a leaf there, and a
class that nobody registered is one too.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from torch import Tensor
from torch.utils._pytree import (
    keystr,
    tree_flatten_with_path,
    tree_leaves,
    tree_map,
    tree_structure,
    tree_unflatten,
)

T = TypeVar("T")


def leaves(structure: object) -> list[tuple[str, object]]:
    """Return what a structure holds, each with its place as Python writes it, such as `[1]['image']`."""
    flat, _ = tree_flatten_with_path(structure)
    return [(keystr(path), leaf) for path, leaf in flat]


def tensors_in(structure: object) -> Iterator[Tensor]:
    """Yield the tensors of any shape in arguments or results, however they are nested."""
    return (leaf for leaf in tree_leaves(structure) if isinstance(leaf, Tensor))


def storage_of(tensor: Tensor) -> int:
    """Return a number that is equal for tensors of any shapes that share a storage."""
    return int(tensor.untyped_storage()._cdata)


def map_leaves(change: Callable[[object], object], structure: T) -> T:
    """Return an equal structure with `change(leaf)` in place of each leaf."""
    return cast(T, tree_map(change, structure))


def with_one_changed(change: Callable[[object], object], structure: T) -> Iterator[tuple[str, object, T]]:
    """Iterate over (place, leaf, structure in which only this leaf is `change(leaf)`)."""
    flat, spec = tree_flatten_with_path(structure)
    values = [leaf for _, leaf in flat]
    for index, (path, leaf) in enumerate(flat):
        yield keystr(path), leaf, tree_unflatten([*values[:index], change(leaf), *values[index + 1 :]], spec)


def kind(structure: object) -> str:
    """Return a text that is equal for structures for which one graph may serve all sizes of dimension 0.

    It has the containers and their keys, dtype and all sizes but the first of each tensor, and the value or
    the type of anything else.
    """
    kinds = []
    for _, leaf in leaves(structure):
        if isinstance(leaf, Tensor):
            kinds.append(f"{leaf.dtype} {tuple(leaf.shape[1:])} {leaf.dim()}")
        else:
            is_plain = leaf is None or isinstance(leaf, bool | int | float | str)
            kinds.append(repr(leaf) if is_plain else type(leaf).__qualname__)
    return f"{tree_structure(structure)} {kinds}"
