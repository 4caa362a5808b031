"""Calls of classes: where objects of a class are called, and what a call gives for a parameter."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from deepstack_harness.audit.inputs.index import Class, is_none
from deepstack_harness.audit.inputs.phases import CallSite, Phases
from deepstack_harness.audit.inputs.writes import Path, defaults_of
from deepstack_harness.engines.kinds.vllm import RUNNER_INPUTS
from deepstack_harness.engines.syntax import Function, parameters_of


class ClassCalls:
    """The calls of the classes of an index."""

    def __init__(self, phases: Phases) -> None:
        """Find calls when they are first requested."""
        self.index, self._phases = phases.index, phases
        self._calls: dict[int, list[CallSite]] = {}

    def calls(self, owner: Class) -> list[CallSite]:
        """Return the calls of objects that are made from the class, or from one that holds it."""
        if id(owner.node) not in self._calls:
            self._calls[id(owner.node)] = list(self._found_calls(owner))
        return self._calls[id(owner.node)]

    def _found_calls(self, owner: Class) -> Iterator[CallSite]:
        holders = dict.fromkeys(self._holders(owner))
        for holder, path in holders:
            yield from self.calls_of(holder, path)
            yield from self.calls_of(holder, (*path, "forward"))
            if len(path) > 2:
                yield from self.calls_of(holder, ("self", "get_language_model()", *path[2:]))
        # The object may be inside one that a registry makes, by a configuration that no line here has.
        forward = self.index.method(owner, "forward")
        names = set(optional(forward[1])) - RUNNER_INPUTS.names if forward else set()
        for name in dict.fromkeys(path[-1] for _, path in holders if len(path) == 2):
            for call in self._phases.calls.get(name, ()):
                if call.path[:1] == ("self",) and len(call.path) == 3 and call.scope.owner is not None:
                    given = {keyword.arg for keyword in call.node.keywords}
                    if given & names and not self.index.is_known(call.scope.owner, call.path[1]):
                        yield call

    def calls_of(self, owner: Class, path: Path) -> Iterator[CallSite]:
        """Yield the calls of a path in the methods that objects of a class have, inherited ones included."""
        for call in self._phases.calls.get(path[-1], ()):
            scope = call.scope
            if call.path == path and scope.owner is not None and self.index.is_a(owner, scope.owner):
                method = self.index.method(owner, scope.function.name)
                if method is not None and method[1] is scope.function:
                    yield call._replace(scope=scope._replace(owner=owner))

    def _holders(self, owner: Class, depth: int = 2) -> Iterator[tuple[Class, Path]]:
        """Yield the classes that make the class, with its path: `self.model`, `self.outer.model` above."""
        for holder, path in self.index.holders_of(owner):
            yield holder, ("self", *path)
            if depth and holder.node is not owner.node:
                for above, outer in self._holders(holder, depth - 1):
                    yield above, (*outer, *path)


def optional(function: Function) -> list[str]:
    """Return the parameters that may be None, by their annotation or default."""
    defaults, names = defaults_of(function), []
    for parameter in parameters_of(function):
        annotation = ast.unparse(parameter.annotation) if parameter.annotation else ""
        if is_none(defaults[parameter.arg]) or "None" in annotation or "Optional[" in annotation:
            names.append(parameter.arg)
    return names


def argument(call: ast.Call, forward: Function, name: str, *, bound: bool = True) -> ast.expr | None:
    """Return what a call gives for a parameter; None where it leaves it out.

    The first parameter of a `bound` method is its object.
    """
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [parameter.arg for parameter in [*forward.args.posonlyargs, *forward.args.args]][bound:]
    at = names.index(name) if name in names else len(call.args)
    if at < len(call.args) and not any(isinstance(value, ast.Starred) for value in call.args[: at + 1]):
        return call.args[at]
    return None
