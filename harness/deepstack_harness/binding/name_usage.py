"""Find the names that a piece of Python reads and writes, from its syntax tree.

Three kinds of names: `x` is a variable, `self.x` an attribute of the instance, and `.x` an
attribute of anything else.  The third kind keeps `config.size = 1` apart from `config.name = "a"`
when only `config.size` is read.
"""

import ast
import functools
from collections.abc import Iterator
from typing import TypeGuard

ANY_OF_SELF = "self.*"
"""Stands for an attribute whose name is known at run time only, as in `setattr(self, name, value)`."""

_REGISTERS = {"register_buffer", "register_parameter", "register_module", "add_module"}
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

# A statement is asked about again and again, by every class of its file.
_remembered = functools.lru_cache(maxsize=1 << 16)


@_remembered
def reads(node: ast.AST) -> frozenset[str]:
    """Return every name that `node` reads, without those that its own comprehensions bind."""
    found = frozenset(name for each in ast.walk(node) for name in _read_by(each))
    return found - _comprehension_names(node)


def required(node: ast.AST) -> dict[str, int]:
    """Return the attributes `self.x` that have to be there for `node` to run, with their first lines.

    Attributes that are read by `hasattr` or `getattr` alone are not among them.
    """
    attributes = [each for each in ast.walk(node) if _is_of_self(each) and isinstance(each.ctx, ast.Load)]
    last_first = sorted(attributes, key=lambda each: each.lineno, reverse=True)
    return {f"self.{each.attr}": each.lineno for each in last_first}


@_remembered
def binds(node: ast.AST) -> frozenset[str]:
    """Return every name that `node` gives a value to."""
    if isinstance(node, _NESTED):
        return frozenset({node.name})
    found = frozenset(name for each in ast.walk(node) for name in _bound_by(each))
    return found - _comprehension_names(node)


@_remembered
def writes(node: ast.AST) -> frozenset[str]:
    """Return every name that `node` binds, changes in place or deletes."""
    if isinstance(node, _NESTED):
        return frozenset({node.name})
    changed = {name for each in ast.walk(node) for name in _changed_by(each)}
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        changed |= _changed_by_call(node.value)
    return binds(node) | changed


@_remembered
def own_methods_called(node: ast.AST) -> frozenset[str]:
    """Return the x of every `self.x(...)`."""
    calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    return frozenset(called.attr for called in calls if _is_of_self(called))


def _read_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.Attribute):
        if _is_of_self(node):
            yield f"self.{node.attr}"
        if isinstance(node.ctx, ast.Load):
            yield f".{node.attr}"
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"getattr", "hasattr"}
    ):
        yield from _named_in_call(node)


def _bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield _place(node)
    elif isinstance(node, _NESTED):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
        yield from _set_by_name(node)
    elif isinstance(node, ast.Call) and _is_of_self(node.func) and node.func.attr in _REGISTERS:
        yield from _first_argument(node)


def _changed_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        yield _place(node)
    elif isinstance(node, ast.Delete):
        yield from map(_place, node.targets)


def _changed_by_call(call: ast.Call) -> set[str]:
    """Count `x.append(..)` as a change of x: a call that stands alone is there for its effect."""
    if isinstance(call.func, ast.Attribute) and not _is_of_self(call.func):
        return {_place(call.func.value)}
    return set()


def _named_in_call(call: ast.Call) -> Iterator[str]:
    """Yield `self.x` for `getattr(self, "x", ..)` and `hasattr(self, "x")`."""
    match call.args:
        case [ast.Name(id="self"), ast.Constant(value=str(name)), *_]:
            yield f"self.{name}"


def _set_by_name(call: ast.Call) -> Iterator[str]:
    """Yield what `setattr` binds; for an attribute of another object only a literal name counts."""
    match call.args:
        case [ast.Name(id="self"), ast.Constant(value=str(name)), _]:
            yield f"self.{name}"
        case [ast.Name(id="self"), *_]:
            yield ANY_OF_SELF
        case [_, ast.Constant(value=str(name)), _]:
            yield f".{name}"


def _first_argument(call: ast.Call) -> Iterator[str]:
    """Yield `self.x` for `self.register_buffer("x", ..)` and the like."""
    match call.args:
        case [ast.Constant(value=str(name)), *_]:
            yield f"self.{name}"
        case _:
            yield ANY_OF_SELF


def _place(node: ast.AST) -> str:
    """Return the name that an assignment to `node` changes."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return f"self.{name}"
        case ast.Attribute(attr=name):
            return f".{name}"
        case ast.Subscript(value=inner) | ast.Starred(value=inner) | ast.Call(func=inner):
            return _place(inner)
    return ""


def _is_of_self(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _comprehension_names(node: ast.AST) -> set[str]:
    targets = [each.target for each in ast.walk(node) if isinstance(each, ast.comprehension)]
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
