"""Index of the classes of a source, for an audit of inputs: methods, what holds what, calls and assignments.

Nothing of the source runs.  What a class makes in `self.x = Name(..)` is followed by name, a registry's
string included; two classes of one name are both followed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from deepstack_harness.engines.syntax import Function, parse
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source, decode

RUNNER_FOLDERS = ("/worker/", "/spec_decode/", "model_state")
"""Parts of the paths of files that call models."""


@dataclass(frozen=True)
class Class:
    """A class of the source: its statement and its file."""

    node: ast.ClassDef
    member: str

    def method(self, name: str) -> Function | None:
        """Return a method of its own."""
        methods = (
            node
            for node in self.node.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        )
        return next(methods, None)


class Site(NamedTuple):
    """A call of a compiled class: the class and the function that it stands in."""

    owner: Class
    function: Function
    call: ast.Call


class ClassIndex:
    """The classes of a source, and the calls and assignments in them."""

    def __init__(self, source: Source) -> None:
        """Read every file that may hold a model or call one.

        Raises what `Source.python_files` raises.
        """
        self.trees: dict[str, ast.Module] = {}
        self.classes: dict[str, list[Class]] = {}
        self.text: dict[str, bytes] = dict(source.python_files())
        self._makers: dict[str, list[tuple[Class, str]]] = {}
        self._made_calls: dict[int, list[tuple[str, Function, ast.Call]]] = {}
        self._sites: dict[int, list[Site]] = {}
        self._stores: dict[int, dict[str, list[tuple[Function, ast.expr | None, int]]]] = {}
        for member, content in self.text.items():
            is_runner = any(part in f"/{member}" for part in RUNNER_FOLDERS) and b"model" in content
            if b"def forward" in content or is_runner:
                self._read(member)

    def _read(self, member: str) -> None:
        try:
            tree = parse(decode(self.text[member], member))
        except UsageError:  # another Python's syntax: what stands there is not followed
            return
        self.trees[member] = tree
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                owner = Class(node, member)
                self.classes.setdefault(node.name, []).append(owner)
                for name, attribute in _makes(node):
                    self._makers.setdefault(name, []).append((owner, attribute))

    def compiled_by(self, decorator: str) -> list[Class]:
        """Return the classes that a decorator of this name compiles."""
        return [
            owner
            for owners in self.classes.values()
            for owner in owners
            if any(decorator in ast.unparse(each) for each in owner.node.decorator_list)
        ]

    def method(
        self, owner: Class, name: str, seen: frozenset[str] = frozenset()
    ) -> tuple[Class, Function] | None:
        """Return a method of a class or of its bases, with the class that has it."""
        own = owner.method(name)
        if own is not None:
            return owner, own
        for base in owner.node.bases:
            bare = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            for each in self.classes.get(bare, ()) if bare not in seen else ():
                if found := self.method(each, name, seen | {bare}):
                    return found
        return None

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
        for owner, attribute in self._makers.get(name, ()):
            yield owner, attribute
            if depth and owner.node.name != name:
                for above, outer in self._holders(owner.node.name, depth - 1):
                    yield above, f"{outer}.{attribute}"

    def stored(self, owner: Class, attribute: str) -> Iterator[tuple[Class, Function, ast.expr | None, int]]:
        """Yield the assignments of `self.attribute` in a class and its bases.

        Method, value (None: in place).
        """
        todo, seen = [owner], set()
        while todo:
            each = todo.pop()
            if id(each.node) in seen:
                continue
            seen.add(id(each.node))
            for function, value, line in self._stores_of(each).get(attribute, ()):
                yield each, function, value, line
            for base in each.node.bases:
                todo += self.classes.get(ast.unparse(base).partition("[")[0].rpartition(".")[2], [])

    def _stores_of(self, owner: Class) -> dict[str, list[tuple[Function, ast.expr | None, int]]]:
        """Return the assignments of a class to attributes of `self`, by attribute."""
        key = id(owner.node)
        if key not in self._stores:
            stores: dict[str, list[tuple[Function, ast.expr | None, int]]] = {}
            for function in functions(owner.node):
                for node in ast.walk(function):
                    for target, value in assigned(node):
                        if is_own(target):
                            stores.setdefault(target.attr, []).append((function, value, target.lineno))  # type: ignore[attr-defined]
            self._stores[key] = stores
        return self._stores[key]


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


def is_none(node: ast.AST | None) -> bool:
    """Say whether an expression is the word None."""
    return isinstance(node, ast.Constant) and node.value is None


def _allows_none(annotation: ast.expr) -> bool:
    text = ast.unparse(annotation)
    return "None" in text or "Optional[" in text


def argument(call: ast.Call, forward: Function, name: str) -> ast.expr | None:
    """Return what a call gives for a parameter; None where it leaves it out."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [each.arg for each in [*forward.args.posonlyargs, *forward.args.args]][1:]
    at = names.index(name) if name in names else len(call.args)
    if at < len(call.args) and not any(isinstance(each, ast.Starred) for each in call.args[: at + 1]):
        return call.args[at]
    return None


def functions(node: ast.AST) -> Iterator[Function]:
    """Return the functions in a node, itself and nested ones included."""
    return (each for each in ast.walk(node) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))


def _makes(node: ast.ClassDef) -> set[tuple[str, str]]:
    """Return the names from which a class makes something, and the attribute that it is assigned to."""
    made = set()
    for each in ast.walk(node):
        for target, value in assigned(each):
            if is_own(target) and value is not None:
                calls = [call for call in ast.walk(value) if isinstance(call, ast.Call)]
                names = {node.id for call in calls for node in ast.walk(call) if isinstance(node, ast.Name)}
                # A registry makes a model by the name of its architecture.
                names |= {
                    node.value
                    for call in calls
                    for node in ast.walk(call)
                    if isinstance(node, ast.Constant) and isinstance(node.value, str)
                }
                made |= {(name, target.attr) for name in names}  # type: ignore[attr-defined]
    return made


def is_own(target: ast.expr) -> bool:
    """Say whether a place is an attribute of `self`."""
    return (
        isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    )


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


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield the targets of an assignment, with the values."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
            several = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(targets) else ()
            yield from zip(targets, several or [value] * len(targets), strict=True)
        case ast.Assign(targets=targets, value=value):
            yield from ((target, value) for target in targets)
        case ast.AnnAssign(target=target, value=value) if value is not None:
            yield target, value
        case ast.AugAssign(target=target, value=value):
            yield target, value
