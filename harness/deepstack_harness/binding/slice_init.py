"""Reduce an `__init__` to the statements that some attributes depend on: a backward slice.

Statements are kept as they are, inside their own `if`, `with` and `for`, so that the slice gives
those attributes the values that the whole `__init__` would give them.  The rest, which builds a
model of billions of weights, is left out.
"""

import ast
import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import cast

from deepstack_harness.binding.name_usage import ANY_OF_SELF, reads
from deepstack_harness.binding.syntax import Function

Block = tuple[ast.AST, ...]
Writes = Callable[[ast.AST], frozenset[str]]

_PARTS = (ast.stmt, ast.ExceptHandler, ast.match_case)
_BLOCKS = (
    ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith,
    ast.Try, ast.TryStar, ast.ExceptHandler, ast.Match, ast.match_case,
)  # fmt: skip
_LEAVES_BLOCK = (ast.Raise, ast.Break, ast.Continue)


def slice_init(init: Function, needed: Collection[str], given: Collection[str], writes: Writes) -> Function:
    """Return a copy of `init` without the statements that do not matter to the names in `needed`.

    Names in `given` (such as `self.visual`) exist already: nothing is kept for them.  `writes`
    returns the names that a statement changes.  Checks that only raise are left out.
    """
    kept = _Slice(init, set(needed), set(given), writes).kept()
    return cast(Function, _pruned_block(init, kept))


class _Slice:
    """Statements to keep: those that write a needed name, whose own reads are then needed too."""

    def __init__(self, init: Function, needed: set[str], given: set[str], writes: Writes) -> None:
        self._statements = list(_walk(init.body, ()))
        self._needed = needed | {ANY_OF_SELF}
        self._given = given
        self._writes = writes
        self._kept: set[ast.AST] = set()

    def kept(self) -> set[ast.AST]:
        """Return all nodes to keep: pass over the statements until a pass adds none."""
        before = -1
        while before != len(self._kept):
            before = len(self._kept)
            for statement, around in self._statements:
                if statement not in self._kept and self._matters(statement, around):
                    self._keep(statement, *around)
        return self._kept

    def _keep(self, *nodes: ast.AST) -> None:
        for node in nodes:
            choices = (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))
            self._kept.update((node, *choices))
            parts = [part for each in (node, *choices) for part in _own_parts(each)]
            self._needed |= {name for part in parts for name in reads(part)}

    def _matters(self, node: ast.AST, around: Block) -> bool:
        if isinstance(node, ast.Return) or _is_base_init(node):
            return True
        if isinstance(node, _LEAVES_BLOCK):
            return bool(around) and around[-1] in self._kept
        changed = {name for part in _own_parts(node) for name in self._writes(part)}
        return bool(changed & self._needed - self._given)


def _walk(nodes: Iterable[ast.AST], around: Block) -> Iterator[tuple[ast.AST, Block]]:
    """Yield every statement, handler and case, with the blocks it stands in, outermost first."""
    for node in nodes:
        yield node, around
        if isinstance(node, _BLOCKS):
            inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, _PARTS)]
            yield from _walk(inner, (*around, node))


def _own_parts(node: ast.AST) -> list[ast.AST]:
    """Return what runs at the node itself: a statement, or the test, items, subject or type of a block."""
    if not isinstance(node, _BLOCKS):
        return [node]
    return [child for child in ast.iter_child_nodes(node) if not isinstance(child, _PARTS)]


def _is_base_init(node: ast.AST) -> bool:
    """Tell whether a statement is `super().__init__()`, or the same by a base's name."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="__init__"))):
            return True
    return False


def _pruned(node: ast.AST, kept: set[ast.AST]) -> ast.AST:
    """Return a statement as it is, or a copy of a block with only what is kept inside it."""
    return _pruned_block(node, kept) if isinstance(node, _BLOCKS) else node


def _pruned_block(node: ast.AST, kept: set[ast.AST]) -> ast.AST:
    copied = copy.copy(node)
    for field, inner in ast.iter_fields(node):
        if field in {"body", "orelse", "finalbody", "handlers", "cases"} and inner:
            left = [_pruned(each, kept) for each in inner if each in kept]
            setattr(copied, field, left or [ast.copy_location(ast.Pass(), inner[0])])
    return copied
