"""The runners of an engine that capture a model: in which modes, with which inputs, and how they replay it.

A runner is a class whose methods that capture make the inputs of a step and call a `forward` with them.  Read
in SGLang 0.5.14 and 0.5.23.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from deepstack_harness.audit.inputs.index import Class, functions
from deepstack_harness.audit.inputs.phases import ROOTS, Scope
from deepstack_harness.audit.inputs.replays import Regions, Visit
from deepstack_harness.audit.inputs.writes import local_paths, path_of, walk
from deepstack_harness.engines.syntax import Function, parameters_of

DRAFTERS = "/speculative/"
"""Runners of drafters are not read: which models they run is decided by the configuration."""
_RECORDED = re.compile(rb"CUDAGraph|cuda\.graph|graph_capture|\.capture_one\(")
"""Without one of these, what is called a capture is compiled, with torch's guards."""
_MOST_FUNCTIONS = 400
"""Functions that the methods that replay call, the nearest first: what fills storage is among them."""


@dataclass(frozen=True)
class GraphCapture:
    """A call of `forward` that a runner records, of a whole model or of its body, in steps of some modes.

    `words` are the names and strings in the methods that replay, and in what these hand a step to.
    """

    runner: Class
    scope: Scope
    call: ast.Call
    is_body: bool
    modes: frozenset[str]
    words: frozenset[str] = field(repr=False)

    @property
    def where(self) -> str:
        """Return FILE:LINE of the call."""
        return f"{self.scope.member}:{self.call.lineno}"


class Runners:
    """The runners of a source that capture the models of `regions`."""

    def __init__(self, regions: Regions) -> None:
        self._regions, self._phases, self._index = regions, regions.phases, regions.index
        self.captures = list(self._found()) if regions.batch else []

    def _found(self) -> Iterator[GraphCapture]:
        batch = self._regions.batch
        assert batch is not None
        for member, content in self._index.text.items():
            if (
                b"capture" not in content
                or batch.node.name.encode() not in content
                or DRAFTERS in f"/{member}"
            ):
                continue
            owners = {
                id(scope.owner.node): scope.owner for scope in self._phases.scopes_of(member) if scope.owner
            }
            for owner in owners.values():
                yield from self._of_runner(owner)

    def _of_runner(self, runner: Class) -> Iterator[GraphCapture]:
        """Yield the captures of a class: the calls of a forward in the methods that capture."""
        methods = {
            node.name: Scope(base.member, runner, node)
            for base in reversed(self._index.order(runner))
            for node in base.node.body
            if isinstance(node, ast.FunctionDef)
        }
        capturing = _closure([name for name in methods if "capture" in name], methods)
        files = [self._index.text[ancestor.member] for ancestor in self._index.order(runner)]
        if not any(_RECORDED.search(text) for text in files):
            return
        made = [
            (methods[name], node)
            for name in capturing
            for node in walk(methods[name].function)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            and node.func.id == self._regions.batch.node.name  # type: ignore[union-attr]
        ]  # fmt: skip
        calls = [(methods[name], node) for name in capturing for node in _forwards(methods[name].function)]
        if not made or not calls:
            return
        inner = [site for site in calls if _is_inner(site[1], site[0].function)]
        if not inner and self._compiles_inner(runner):
            return
        replaying = [scope for name, scope in methods.items() if name not in capturing]
        fields = {keyword.arg: keyword.value for _, node in made for keyword in node.keywords if keyword.arg}
        modes, words = self._modes(runner, fields), self._words(replaying)
        for scope, call in inner or calls:
            yield GraphCapture(runner, scope, call, bool(inner), modes, words)

    def _compiles_inner(self, runner: Class) -> bool:
        """Return whether a runner compiles an object inside the model: torch's guards stay there."""
        return any(
            "model" in path[:-1]
            for base in self._index.order(runner)
            for function in functions(base.node)
            for node in walk(function)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            for argument in node.args[:1]
            if isinstance(argument, ast.Attribute)
            for path in [path_of(argument, local_paths(function))]
        )

    def _modes(self, runner: Class, fields: Mapping[str, ast.expr]) -> frozenset[str]:
        """Return the modes of the captured step: those named, or all that the attribute may hold."""
        modes = self._regions.modes
        assert modes is not None
        value = fields.get(modes.field)
        if value is None:
            return frozenset()
        if named := modes.named(value):
            return named
        name = value.attr if isinstance(value, ast.Attribute) else ""
        stated = [made.value for made in self._index.assignments(runner, name) if made.value is not None]
        return frozenset(mode for value in stated for mode in modes.named(value))

    def _words(self, replaying: Sequence[Scope]) -> frozenset[str]:
        """Return the names and strings in functions, and in those that they hand a step to."""
        todo, seen, words = list(replaying), set[int](), set[str]()
        while todo and len(seen) < _MOST_FUNCTIONS:
            scope = todo.pop(0)
            if id(scope.function) in seen:
                continue
            seen.add(id(scope.function))
            for node in walk(scope.function):
                match node:
                    case ast.Constant(value=str(word)) | ast.Attribute(attr=word):
                        words.add(word)
                    case ast.keyword(arg=str(word)) | ast.arg(arg=word):
                        words.add(word)
                    case ast.Call():
                        todo += [
                            callee for callee in self._callees(node, scope)
                            if "capture" not in callee.function.name
                            and callee.owner not in self._regions.entries
                        ]  # fmt: skip
        return frozenset(words)

    def _callees(self, node: ast.Call, scope: Scope) -> Iterator[Scope]:
        """Yield the functions that a runner passes a step to; those of an unknown object by their name."""
        handed = [*node.args, *(keyword.value for keyword in node.keywords)]
        if not any(isinstance(value, ast.Name) and value.id in self._regions.names for value in handed):
            return
        local = local_paths(scope.function)
        known = [callee for callee, _ in self._regions.called(node.func, Visit(scope, frozenset()), local)]
        yield from known
        if not known and isinstance(node.func, ast.Attribute):
            yield from self._named(node.func.attr)

    def _named(self, name: str) -> Iterator[Scope]:
        """Yield the methods of a name that take the inputs of a step."""
        for member, content in self._index.text.items():
            if f"def {name}(".encode() in content:
                for scope in self._phases.scopes_of(member):
                    arguments = parameters_of(scope.function)
                    if (
                        scope.function.name == name
                        and {parameter.arg for parameter in arguments} & self._regions.names
                    ):
                        yield scope


def _closure(names: Sequence[str], methods: Mapping[str, Scope]) -> list[str]:
    """Return methods, and those that they call of the same object; warm-ups and steps are not followed."""
    todo, seen = list(names), dict[str, None]()
    while todo:
        name = todo.pop()
        if name not in seen and (name in names or name not in ROOTS):
            seen[name] = None
            for node in walk(methods[name].function):
                match node:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=called)):
                        todo += [called] if called in methods else []
    return list(seen)


def _forwards(function: Function) -> Iterator[ast.Call]:
    """Yield the calls of a forward with several arguments in a function."""
    for node in walk(function):
        match node:
            case ast.Call(func=ast.Name(id="forward"), args=[_, _, *_]):
                yield node
            case ast.Call(func=ast.Attribute(value=inner, attr="forward"), args=[_, _, *_]):
                if not isinstance(inner, ast.Call) and ast.unparse(inner) != "self":
                    yield node


def _is_inner(call: ast.Call, function: Function) -> bool:
    """Return whether a captured call is of an object inside the model, not of the model itself."""
    return isinstance(call.func, ast.Attribute) and path_of(call.func, local_paths(function))[-2:-1] != (
        "model",
    )
