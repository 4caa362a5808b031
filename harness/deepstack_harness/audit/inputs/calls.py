"""Calls of classes: where objects of a class are called, and what a call gives for a parameter."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from deepstack_harness.audit.inputs.index import Class, ClassIndex, functions, is_none
from deepstack_harness.engines.syntax import Function


class Site(NamedTuple):
    """A call of a compiled class: the class and the function that it stands in."""

    owner: Class
    function: Function
    call: ast.Call


class ClassCalls:
    """The calls of the classes of an index."""

    def __init__(self, index: ClassIndex) -> None:
        """Find calls when they are asked for."""
        self.index = index
        self._made_calls: dict[int, list[tuple[str, Function, ast.Call]]] = {}
        self._sites: dict[int, list[Site]] = {}

    def calls(self, owner: Class) -> list[Site]:
        """Return the calls of objects that are made from the class, or from one that holds it."""
        if id(owner.node) not in self._sites:
            self._sites[id(owner.node)] = list(self._found_calls(owner))
        return self._sites[id(owner.node)]

    def _found_calls(self, owner: Class) -> Iterator[Site]:
        for holder, attribute in dict.fromkeys(self._holders(owner.node.name)):
            for text, function, call in self.self_calls(holder):
                if _is_call_of(text, attribute):
                    yield Site(holder, function, call)

    def self_calls(self, owner: Class) -> list[tuple[str, Function, ast.Call]]:
        """Return the calls in a class of what hangs on `self`.

        The text of what is called, and the function.
        """
        key = id(owner.node)
        if key not in self._made_calls:
            self._made_calls[key] = [
                (text, function, node)
                for function in functions(owner.node)
                for local in [aliases(function)]
                for node in ast.walk(function)
                if isinstance(node, ast.Call) and (text := chain(node.func, local)).startswith("self.")
            ]
        return self._made_calls[key]

    def _holders(self, name: str, depth: int = 2) -> Iterator[tuple[Class, str]]:
        """Yield classes that make the class, with the attribute.

        `model`, and `language_model.model` above it.
        """
        for owner, attribute in self.index.makers.get(name, ()):
            yield owner, attribute
            if depth and owner.node.name != name:
                for above, outer in self._holders(owner.node.name, depth - 1):
                    yield above, f"{outer}.{attribute}"


def optional(function: Function) -> list[str]:
    """Return the parameters that may be None, by their annotation or default."""
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(parameters) - len(arguments.defaults))
    pairs = [*zip(parameters, [*defaults, *arguments.defaults], strict=True)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [
        parameter.arg
        for parameter, default in pairs
        if is_none(default) or (parameter.annotation and _allows_none(parameter.annotation))
    ]


def _allows_none(annotation: ast.expr) -> bool:
    text = ast.unparse(annotation)
    return "None" in text or "Optional[" in text


def argument(call: ast.Call, forward: Function, name: str, *, bound: bool = True) -> ast.expr | None:
    """Return what a call gives for a parameter; None where it leaves it out.

    The first parameter of a `bound` method is its object.
    """
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [each.arg for each in [*forward.args.posonlyargs, *forward.args.args]][bound:]
    at = names.index(name) if name in names else len(call.args)
    if at < len(call.args) and not any(isinstance(each, ast.Starred) for each in call.args[: at + 1]):
        return call.args[at]
    return None


def chain(node: ast.expr, local: Mapping[str, str]) -> str:
    """Return `self.a.b` of what hangs on `self`, members and methods without arguments included.

    "" for others.
    """
    match node:
        case ast.Name(id="self"):
            return "self"
        case ast.Name(id=name):
            return local.get(name, "")
        case ast.Attribute(value=inner, attr=name):
            return f"{text}.{name}" if (text := chain(inner, local)) else ""
        case ast.Subscript(value=inner):
            return chain(inner, local)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name), args=[]):
            return f"self.{name}()"
    return ""


def aliases(function: Function) -> dict[str, str]:
    """Return the local names of members of `self`: of `for layer in self.layers`, and of assignments."""
    local: dict[str, str] = {}
    for node in ast.walk(function):
        match node:
            case ast.For(target=target, iter=values):
                members = {chain(each, {}) for each in ast.walk(values) if isinstance(each, ast.Attribute)}
                longest = max(members - {""}, key=len, default="")
                names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
                local |= {name: longest for name in names if longest}
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute() | ast.Subscript() as value):
                if text := chain(value, {}):
                    local[name] = text
    return local


def _is_call_of(text: str, attribute: str) -> bool:
    return text in (f"self.{attribute}", f"self.{attribute}.forward") or (
        "." in attribute and text == f"self.get_language_model().{attribute.partition('.')[2]}"
    )
