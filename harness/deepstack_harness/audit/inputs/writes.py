"""Writes to attributes, in any spelling: assignments, `setattr`, elements, methods of tensors, `out=`.

Only syntax: a write is a path such as `self.adder.rows`, and how it is written.  What the path leads to is
decided by `index`, when it runs by `phases`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from deepstack_harness.engines.syntax import Function, parameters_of

Path = tuple[str, ...]
"""A name and the attributes after it; elements and slices of a value count as the value."""


class How(StrEnum):
    """How a write changes what a reader finds.

    REBOUND: another object.  AUGMENTED: `+=`, in place only for a tensor.  ITEM: an element or a slice, in
    place only for a tensor.  CONTENTS: a list or dictionary has other members.  IN_PLACE: a tensor has other
    contents.  DELETED: the attribute is gone.
    """

    REBOUND = "rebound"
    AUGMENTED = "augmented"
    ITEM = "item"
    CONTENTS = "contents"
    IN_PLACE = "in place"
    DELETED = "deleted"


class Written(NamedTuple):
    """One write: its path, how, the value where it is stated, and the line."""

    path: Path
    how: How
    value: ast.expr | None
    line: int


_MUTATORS = frozenset(
    {
        "append",
        "extend",
        "insert",
        "pop",
        "popitem",
        "remove",
        "clear",
        "update",
        "setdefault",
        "add",
        "discard",
    }
)
"""Methods by which lists, dictionaries and sets change."""


@functools.lru_cache(maxsize=1 << 16)
def walk(node: ast.AST) -> tuple[ast.AST, ...]:
    """Return a node and all below it, as `ast.walk` does."""
    return tuple(ast.walk(node))


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield the targets of an assignment, with the values; tuples are taken apart."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _taken_apart(target, value)
        case ast.AnnAssign(target=target, value=value) if value is not None:
            yield target, value
        case ast.AugAssign(target=target, value=value):
            yield target, value


def _taken_apart(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if not isinstance(target, ast.Tuple | ast.List):
        yield target, value
        return
    same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
    values = value.elts if isinstance(value, ast.Tuple | ast.List) and same else [value] * len(target.elts)
    for inner, stated in zip(target.elts, values, strict=True):
        yield from _taken_apart(inner.value if isinstance(inner, ast.Starred) else inner, stated)


def defaults_of(function: Function) -> dict[str, ast.expr | None]:
    """Return the default of each parameter, None for one that has to be given."""
    arguments = function.args
    needed = [None] * (len(arguments.posonlyargs + arguments.args) - len(arguments.defaults))
    defaults = [*needed, *arguments.defaults, *arguments.kw_defaults]
    return dict(zip([parameter.arg for parameter in parameters_of(function)], defaults, strict=True))


@functools.lru_cache(maxsize=1 << 16)
def _local_values(function: Function) -> Mapping[str, list[ast.expr]]:
    values: dict[str, list[ast.expr]] = {}
    for node in walk(function):
        for target, value in assigned(node):
            if isinstance(target, ast.Name) and value is not None:
                values.setdefault(target.id, []).append(value)
    return values


def values_of_names(expression: ast.AST, function: Function) -> list[ast.expr]:
    """Return what a function assigns to the names in an expression, but for the expression itself."""
    names = dict.fromkeys(node.id for node in ast.walk(expression) if isinstance(node, ast.Name))
    values = [value for name in names for value in _local_values(function).get(name, ())]
    return [value for value in values if value is not expression]


def path_of(node: ast.expr, local: Mapping[str, Path]) -> Path:
    """Return the path of an expression; () where it has none, as what a call returns."""
    match node:
        case ast.Name(id=name):
            return local.get(name, (name,))
        case ast.Attribute(value=inner, attr=name):
            return (*path, name) if (path := path_of(inner, local)) else ()
        case ast.Subscript(
            value=ast.Attribute(value=inner, attr="__dict__"), slice=ast.Constant(value=str(name))
        ):
            return (*path, name) if (path := path_of(inner, local)) else ()
        case ast.Subscript(value=inner):
            return path_of(inner, local)
        case ast.Call(func=ast.Name(id="getattr"), args=[inner, ast.Constant(value=str(name)), *_]):
            return (*path, name) if (path := path_of(inner, local)) else ()
        case ast.Call(func=ast.Name(id="vars"), args=[inner]):
            return (*path, "__dict__") if (path := path_of(inner, local)) else ()
        case ast.Call(func=ast.Attribute(value=inner, attr="items" | "values"), args=[]):
            return path_of(inner, local)
    return ()


@functools.lru_cache(maxsize=1 << 16)
def local_paths(function: Function) -> Mapping[str, Path]:
    """Return the local names of members: of assignments, and of loops over members."""
    local: dict[str, Path] = {}
    for node in walk(function):
        match node:
            case ast.For(target=target, iter=values) | ast.comprehension(target=target, iter=values):
                for name, value in _loops(target, values):
                    if len(path := path_of(value, local)) > 1:
                        local[name] = path
            case ast.Assign() | ast.AnnAssign():
                for target, assigned_value in assigned(node):
                    if isinstance(target, ast.Name) and assigned_value is not None:
                        path = path_of(assigned_value, local)
                        if len(path) > 1:
                            local[target.id] = path
    return local


def _loops(target: ast.expr, values: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names of a loop, with what each runs over; `zip` and `enumerate` are taken apart."""
    match target, values:
        case ast.Tuple(elts=[_, inner]), ast.Call(func=ast.Name(id="enumerate"), args=[values, *_]):
            yield from _loops(inner, values)
        case ast.Tuple(elts=targets), ast.Call(func=ast.Name(id="zip"), args=several):
            for inner, looped in zip(targets, several, strict=False):
                yield from _loops(inner, looped)
        case ast.Name(id=name), ast.Call(
            func=ast.Name(id="islice" | "reversed" | "list" | "tuple"), args=[values, *_]
        ):
            yield name, values
        case ast.Name(id=name), _:
            yield name, values
        case ast.Tuple(elts=targets), _:
            for inner in targets:
                yield from _loops(inner, values)


@functools.lru_cache(maxsize=1 << 16)
def writes_of(function: Function) -> tuple[Written, ...]:
    """Return every write to an attribute in a function, those of its nested functions included."""
    local = local_paths(function)
    return tuple(
        written for node in walk(function) for written in _writes(node, local) if len(written.path) > 1
    )


def _writes(node: ast.AST, local: Mapping[str, Path]) -> Iterator[Written]:
    match node:
        case ast.AugAssign(target=ast.Attribute() | ast.Subscript() as target, value=value):
            how = How.AUGMENTED if isinstance(target, ast.Attribute) else How.ITEM
            yield Written(path_of(target, local), how, value, node.lineno)
        case ast.Assign() | ast.AnnAssign():
            for target, stated in assigned(node):
                yield from _writes_to(target, stated, local)
        case ast.For(target=target) | ast.withitem(optional_vars=ast.expr() as target):
            for inner in ast.walk(target):
                if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                    yield from _writes_to(inner, None, local)
        case ast.Delete(targets=targets):
            for target in targets:
                how = How.DELETED if isinstance(target, ast.Attribute) else How.CONTENTS
                if isinstance(target, ast.Attribute | ast.Subscript):
                    yield Written(path_of(target, local), how, None, target.lineno)
        case ast.Call():
            yield from _called(node, local)


def _writes_to(target: ast.expr, value: ast.expr | None, local: Mapping[str, Path]) -> Iterator[Written]:
    match target:
        case ast.Attribute():
            yield Written(path_of(target, local), How.REBOUND, value, target.lineno)
        case ast.Subscript(value=inner, slice=ast.Constant(value=str(key))):
            path = path_of(inner, local)
            if path[-1:] == ("__dict__",):
                yield Written((*path[:-1], key), How.REBOUND, value, target.lineno)
            else:
                yield Written(path, How.CONTENTS, value, target.lineno)
        case ast.Subscript(value=ast.Subscript() as inner, slice=ast.Slice()):  # rows of a tensor in a list
            yield Written(path_of(inner, local), How.IN_PLACE, value, target.lineno)
        case ast.Subscript(value=inner):
            yield Written(path_of(inner, local), How.ITEM, value, target.lineno)


def _called(node: ast.Call, local: Mapping[str, Path]) -> Iterator[Written]:
    for keyword in node.keywords:
        if keyword.arg == "out":
            for target in keyword.value.elts if isinstance(keyword.value, ast.Tuple) else [keyword.value]:
                yield Written(path_of(target, local), How.IN_PLACE, None, node.lineno)
    match node:
        case ast.Call(
            func=ast.Name(id="setattr") | ast.Attribute(attr="__setattr__"),
            args=[inner, ast.Constant(value=str(name)), value],
        ):
            yield Written((*path_of(inner, local), name), How.REBOUND, value, node.lineno)
        case ast.Call(
            func=ast.Attribute(
                value=inner, attr="register_buffer" | "register_parameter" | "__setattr__" as method
            ),
            args=[ast.Constant(value=str(name)), *rest],
        ):
            values = [
                *rest,
                *(keyword.value for keyword in node.keywords if keyword.arg in {"tensor", "param"}),
            ]
            if path := path_of(inner, local):
                yield Written((*path, name), How.REBOUND, values[0] if values else None, node.lineno)
        case ast.Call(func=ast.Attribute(value=inner, attr="update"), keywords=keywords) if (
            path := path_of(inner, local)
        )[-1:] == ("__dict__",):
            for keyword in keywords:
                if keyword.arg:
                    yield Written((*path[:-1], keyword.arg), How.REBOUND, keyword.value, node.lineno)
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in _MUTATORS:
            yield Written(path_of(inner, local), How.CONTENTS, None, node.lineno)
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method.endswith(
            "_"
        ) and not method.startswith("_"):
            yield Written(
                path_of(inner, local), How.IN_PLACE, node.args[0] if node.args else None, node.lineno
            )


Decide = Callable[[ast.expr], bool | None]
"""Returns the result of a test where it is known."""


def reached(node: ast.AST, decide: Decide) -> Iterator[ast.AST]:
    """Yield a node and those inside it that run where `decide` knows the results of tests."""
    yield node
    match node:
        case ast.If(test=test, body=body, orelse=orelse) | ast.IfExp(test=test, body=body, orelse=orelse):
            yield from reached(test, decide)
            result = decide(test)
            for side, leads_there in ((body, result is not False), (orelse, result is not True)):
                if leads_there:
                    yield from _block(side, decide) if isinstance(side, list) else reached(side, decide)
        case ast.BoolOp(op=op, values=values):
            for value in values:
                yield from reached(value, decide)
                if decide(value) is isinstance(op, ast.Or):
                    return
        case _:
            for _, value in ast.iter_fields(node):
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    yield from _block(value, decide)
                else:
                    for child in value if isinstance(value, list) else [value]:
                        if isinstance(child, ast.AST):
                            yield from reached(child, decide)


def _block(statements: Iterable[ast.stmt], decide: Decide) -> Iterator[ast.AST]:
    """Yield the nodes of statements up to the one after which nothing runs."""
    for statement in statements:
        yield from reached(statement, decide)
        if _leaves(statement, decide):
            return


def _leaves(statement: ast.stmt, decide: Decide) -> bool:
    match statement:
        case ast.Return() | ast.Raise() | ast.Continue() | ast.Break():
            return True
        case ast.If(test=test, body=body, orelse=orelse):
            result = decide(test)
            sides = [body] if result else [orelse] if result is False else [body, orelse]
            return all(any(_leaves(inner, decide) for inner in side) for side in sides)
        case ast.With(body=body):
            return any(_leaves(inner, decide) for inner in body)
    return False
