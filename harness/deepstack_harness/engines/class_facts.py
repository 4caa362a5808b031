"""Find the methods of a buffer in a class, and slice its `__init__` for what they read.

`slice_init` is a backward slice. Its statements are copied unchanged, inside their own `if`, `with` and
`for`, so that the slice gives the attributes of the buffer the values that the whole `__init__` would give
them. The rest, which builds a model of billions of weights, is left out.
"""

import ast
import copy
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import cast

from deepstack_harness.engines.carriers import FindMethod, payload_verbs
from deepstack_harness.engines.syntax import (
    ANY_OF_SELF,
    Function,
    NoBuffer,
    own_methods_called,
    reads,
    writes,
)
from deepstack_harness.errors import Reason, SourceError

Block = tuple[ast.AST, ...]
Writes = Callable[[ast.AST], frozenset[str]]

_PARTS = (ast.stmt, ast.ExceptHandler, ast.match_case)
_BLOCKS = (
    ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith,
    ast.Try, ast.TryStar, ast.ExceptHandler, ast.Match, ast.match_case,
)  # fmt: skip


def slice_init(
    init: Function, needed: Collection[str], provided: Collection[str], writes: Writes
) -> Function:
    """Return a copy of `init` without the statements that do not matter to the names in `needed`.

    A statement that writes a needed name is part of the slice, and what it reads is needed too. Names in
    `provided` (such as `self.visual`) exist already, so statements that set only these are left out. `writes`
    returns the names that a statement changes. Checks that only raise are left out.
    """
    wanted, kept = {*needed, ANY_OF_SELF}, set[ast.AST]()
    statements = list(_walk(init.body, ()))
    before = -1
    while before != (before := len(kept)):
        for statement, around in statements:
            if statement in kept or not _matters(statement, around, kept, wanted - set(provided), writes):
                continue
            for node in (statement, *around):
                choices = (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))
                kept.update((node, *choices))
                parts = (part for block in (node, *choices) for part in _own_parts(block))
                wanted |= {name for part in parts for name in reads(part)}
    return cast(Function, _pruned_block(init, kept))


def _matters(
    node: ast.AST, around: Block, kept: Collection[ast.AST], wanted: Collection[str], writes: Writes
) -> bool:
    """Return whether a statement is part of the slice, given what already is and the names it has to set."""
    match node:
        case ast.Return() | ast.Expr(value=ast.Call(func=ast.Attribute(attr="__init__"))):  # also of a base
            return True
        case ast.Raise() | ast.Break() | ast.Continue():
            return bool(around) and around[-1] in kept
    return any(name in wanted for part in _own_parts(node) for name in writes(part))


def _walk(nodes: Iterable[ast.AST], around: Block) -> Iterator[tuple[ast.AST, Block]]:
    """Yield every statement, handler and case, with the blocks around it, outermost first."""
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


def _pruned_block(node: ast.AST, kept: Collection[ast.AST]) -> ast.AST:
    """Return a copy of a block, or of a function, without the statements that are not in the slice."""
    copied = copy.copy(node)
    for part, inner in ast.iter_fields(node):
        if part in {"body", "orelse", "finalbody", "handlers", "cases"} and inner:
            left = [
                _pruned_block(child, kept) if isinstance(child, _BLOCKS) else child
                for child in inner
                if child in kept
            ]
            setattr(copied, part, left or [ast.copy_location(ast.Pass(), inner[0])])
    return copied


STORAGE = "deepstack_input_embeds"
"""The word that the methods' names share, the attribute of the rows, and the start of the levels' names."""

_VERBS = {verb: re.compile(rf"_{verb}_\w*{STORAGE}\w*") for verb in ("get", "set", "clear", "resize")}
_NEEDED_VERBS = frozenset({"get", "set", "clear"})


def find_verbs(
    names: Collection[str], method: FindMethod, filename: str, definition: ast.ClassDef
) -> dict[str, str]:
    """Return the members of a class that get, set, clear and resize its buffer, by these verbs.

    Raises `NoBuffer` where one of the first three is missing, and another `SourceError` for two of one kind.
    """
    verbs = payload_verbs(method)
    for verb, pattern in _VERBS.items():
        matching, exact = sorted(filter(pattern.fullmatch, names)), f"_{verb}_{STORAGE}"
        if len(matching) > 1 and exact not in matching:
            text = f"cannot tell which of {', '.join(matching)} should {verb} the buffer"
            raise SourceError(Reason(text, filename, definition.lineno))
        if matching:
            verbs[verb] = exact if exact in matching else matching[0]
    if lacking := sorted(_NEEDED_VERBS - verbs.keys()):
        missing = ", ".join(f"_{verb}_{STORAGE}" for verb in lacking)
        text = f"class {definition.name} has no {missing}"
        raise NoBuffer(Reason(text, filename, definition.lineno))
    return verbs


def writes_by_calls(methods: Callable[[str], Iterable[Function]], node: ast.AST) -> frozenset[str]:
    """Return what a statement changes, by the methods of its class that it calls too.

    `methods` gives the functions of a member of the class by its name.
    """
    changes, called, done = writes(node), own_methods_called(node), set[str]()
    while todo := called - done:
        done |= todo
        bodies = [method for name in todo for method in methods(name)]
        changed = {name for method in bodies for inner in method.body for name in writes(inner)}
        changes |= {name for name in changed if name.startswith("self.")}
        called |= {name for method in bodies for name in own_methods_called(method)}
    return changes
