"""What graph runners do not capture, and which steps they do not replay, with the line that decides it.

A model is left out where the code that makes a runner returns before for a model without some attribute, or
where the runner finds the body that it captures under other names than the model has it.  A step is refused
where the method that is called before a replay returns False.  Read in SGLang 0.5.14 and 0.5.23.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from deepstack_harness.audit.inputs.calls import argument
from deepstack_harness.audit.inputs.index import Class, is_none
from deepstack_harness.audit.inputs.phases import Scope
from deepstack_harness.audit.inputs.replays import Regions
from deepstack_harness.audit.inputs.runners import GraphCapture
from deepstack_harness.audit.inputs.writes import (
    Path,
    local_paths,
    path_of,
    values_of_names,
    walk,
)
from deepstack_harness.engines.syntax import parameters_of

_LOOKS = {"getattr", "hasattr"}
_DEPTH = 4
"""Expressions and functions that are followed to a refusal.

One that is deeper is not seen, and the input stays at risk.
"""


@dataclass(frozen=True)
class Refusal:
    """Why no graph runs a model or a step, and FILE:LINE of what decides it."""

    why: str
    where: str


@dataclass
class _Looked:
    """The names of attributes under which a runner looks for what it captures, and the first such line."""

    names: set[str] = field(default_factory=set)
    values: list[tuple[ast.expr, Scope]] = field(default_factory=list)
    where: str = ""


class Refusals:
    """What the runners of the models of `regions` refuse."""

    def __init__(self, regions: Regions) -> None:
        self._regions, self._index, self._phases = regions, regions.index, regions.phases

    def of_model(self, entry: Class, body: Class, capture: GraphCapture) -> Refusal | None:
        """Return why a runner captures no body of this class in a model; None where it may."""
        for name, where in self._needed(capture):
            if not self._may_have(entry, name):
                made = f"no {capture.runner.node.name} is made for {entry.node.name}"
                return Refusal(f"{made}, which has no `{name}`", where)
        looked = self._looked(capture)
        at = [self._classes_at(value, scope, entry, _DEPTH) for value, scope in looked.values]
        if not looked.names or any(
            self._may_reach(entry, body, frozenset(looked.names))
            if classes is None
            else any(cls.node is body.node for cls in classes)
            for classes in at
        ):
            return None
        return Refusal(
            f"{capture.runner.node.name} captures another object of {entry.node.name}", looked.where
        )

    @functools.cache  # noqa: B019  # lives as long as the audit of one source
    def of_steps(self, runner: Class) -> Mapping[str, str]:
        """Return the members of a step with which a runner does not replay, and what lines refuse them."""
        refused: dict[str, str] = {}
        for name in sorted({gate for gate, _, _ in self._gates(runner)}):
            method = self._index.method(runner, name)
            if method is not None:
                scope = Scope(method[0].member, runner, method[1])
                parameters = [parameter.arg for parameter in parameters_of(method[1])]
                steps = {argument: (argument,) for argument in parameters if argument in self._regions.names}
                refused |= dict(self._refused(scope, steps, _DEPTH))
        return refused

    def of_value(self, value: ast.expr, scope: Scope, runner: Class) -> str:
        """Return the line that refuses each step in which a function has a value; "" where none does.

        That is a line that refuses the member of a step which the value is, or which has to be given for it,
        or one that requires that something is None which has to be given for it.
        """
        refused, absent, lines = self.of_steps(runner), self._absent(runner), list[str]()

        def member(node: ast.expr) -> str:
            path = path_of(node, {})
            return refused.get(path[1], "") if len(path) == 2 and path[0] in self._regions.names else ""

        source = value
        while isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute):
            source = source.func.value
        lines.append(member(source))
        for node in walk(scope.function):
            is_around = isinstance(node, ast.If) and any(
                inner is value for statement in node.body for inner in ast.walk(statement)
            )
            for test in _sides(node.test, ast.And) if is_around else ():  # type: ignore[attr-defined]
                match test:
                    case ast.Compare(left=left, ops=[ast.IsNot()], comparators=[right]) if is_none(right):
                        lines.append(member(left))
                    case ast.Name() | ast.Call():
                        values = (
                            [test] if isinstance(test, ast.Call) else values_of_names(test, scope.function)
                        )
                        needed = [self._given_in(operand, scope) for operand in values]
                        lines += [absent[name] for name in set[str]().union(*needed[:1]) if name in absent
                                  and len(values) == 1]  # fmt: skip
        return next((line for line in lines if line), "")

    def _given_in(self, call: ast.expr, scope: Scope) -> set[str]:
        """Return the calls without whose result a function returns False."""
        name = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
        defined = self._index.module_function(scope.member, name) if name else None
        given: set[str] = set()
        for statement in defined[1].body if defined else ():
            match statement:
                case ast.If(test=ast.Compare(left=left, ops=[ast.Is()], comparators=[right]), body=body) if (
                    is_none(right) and _is_false(body) and defined
                ):
                    values = [left, *values_of_names(left, defined[1])]
                    given |= {ast.unparse(value) for value in values if isinstance(value, ast.Call)}
                case _ if any(
                    isinstance(node, ast.Return) and not _is_false([node]) for node in ast.walk(statement)
                ):
                    break
        return given

    def _absent(self, runner: Class) -> Mapping[str, str]:
        """Return the calls whose result has to be None for a replay, and the lines that require it."""
        return {
            ast.unparse(test.left): f"{member}:{test.lineno}"
            for _, member, node in self._gates(runner) if member
            for test in _sides(node.test, ast.And)
            if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is)
            and is_none(test.comparators[0]) and isinstance(test.left, ast.Call)
        }  # fmt: skip

    @functools.cache  # noqa: B019  # lives as long as the audit of one source
    def _gates(self, runner: Class) -> list[tuple[str, str, ast.If]]:
        """Return the methods of a runner that are called in an `if`, before another method of it is called.

        With each comes the file, "" where the class of the object is not known, and the `if`.
        """
        methods = {
            node.name
            for base in self._index.order(runner)
            for node in base.node.body
            if isinstance(node, ast.FunctionDef)
        }
        gates: list[tuple[str, str, ast.If]] = []
        for name in methods:
            for call in self._phases.calls_named(name):
                function, holder = call.scope.function, call.path[:-1]
                for node in walk(function):
                    if not isinstance(node, ast.If) or not holder or holder == ("self",):
                        continue
                    tested = [node.test, *values_of_names(node.test, function)]
                    if any(inner is call.node for test in tested for inner in ast.walk(test)):
                        local = local_paths(function)
                        paths = [
                            path_of(below.func, local)
                            for statement in node.body
                            for below in ast.walk(statement)
                            if isinstance(below, ast.Call)
                        ]
                        kept = self._index.holders(call.scope.owner, call.scope.member, function, call.path)
                        if kept and not any(self._index.related(owner, runner) for owner in kept):
                            continue
                        if any(path[:-1] == holder and path[-1] in methods for path in paths if path):
                            gates.append((name, call.scope.member if kept else "", node))
        return gates

    def _refused(self, scope: Scope, steps: Mapping[str, Path], depth: int) -> Iterator[tuple[str, str]]:
        """Yield the members of a step for which a method returns False where they are given.

        `steps` are the names in the method: the path of a step, or of a member of it.
        """

        def member(node: ast.expr) -> str:
            path = path_of(node, {})
            whole = (*steps[path[0]], *path[1:]) if path and path[0] in steps else ()
            return whole[1] if len(whole) == 2 else ""

        for statement in scope.function.body:
            tests: list[ast.expr] = []
            if isinstance(statement, ast.If) and _is_false(statement.body):
                tests = _sides(statement.test, ast.Or)
            elif isinstance(statement, ast.Return) and statement.value is not None:
                tests = [ast.UnaryOp(ast.Not(), value) for value in _sides(statement.value, ast.And)]
            for test in tests:
                match test:
                    case (
                        ast.Compare(left=left, ops=[ast.IsNot()], comparators=[right])
                        | ast.UnaryOp(
                            op=ast.Not(), operand=ast.Compare(left=left, ops=[ast.Is()], comparators=[right])
                        )
                    ) if is_none(right) and member(left):
                        yield member(left), f"{scope.member}:{left.lineno}"
                    case ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=func) as call) if depth:
                        path, owner = path_of(func, {}), scope.owner
                        asked = (
                            self._index.method(owner, path[1]) if owner and path[:1] == ("self",) else None
                        )
                        if asked is None or owner is None or len(path) != 2:
                            continue
                        names = [parameter.arg for parameter in parameters_of(asked[1])]
                        handed: dict[str, Path] = {}
                        for name in names:
                            path = path_of(argument(call, asked[1], name) or ast.Constant(None), {})
                            if path and path[0] in steps:
                                handed[name] = (*steps[path[0]], *path[1:])
                        yield from self._refused(Scope(asked[0].member, owner, asked[1]), handed, depth - 1)
            # What follows a return of something else is not reached in each step.
            if not tests and any(
                isinstance(node, ast.Return) and not _is_false([node]) for node in ast.walk(statement)
            ):
                return

    @functools.cache  # noqa: B019  # lives as long as the audit of one source
    def _needed(self, capture: GraphCapture) -> list[tuple[str, str]]:
        """Return the attributes of a model without which code returns before it makes a runner."""
        self._index.tree(capture.runner.member)
        needed: list[tuple[str, str]] = []
        calls = self._phases.calls_named(capture.runner.node.name)
        for call in calls:
            for node in call.scope.function.body:
                match node:
                    case ast.If(
                        test=ast.UnaryOp(
                            op=ast.Not(),
                            operand=ast.Call(
                                func=ast.Name(id="hasattr"), args=[model, ast.Constant(value=str(name))]
                            ),
                        ),
                        body=[*_, ast.Return()],
                    ) if node.lineno < call.node.lineno and path_of(model, {})[-1:] == ("model",):
                        needed.append((name, f"{call.scope.member}:{node.lineno}"))
        return needed if len(calls) == 1 else []

    def _may_have(self, owner: Class, name: str) -> bool:
        """Return whether objects of a class may have an attribute."""
        return bool(self._index.assignments(owner, name)) or self._index.method(owner, name) is not None

    @functools.cache  # noqa: B019  # lives as long as the audit of one source
    def _looked(self, capture: GraphCapture) -> _Looked:
        """Return the names under which a runner looks for the object whose `forward` it captures."""
        looked = _Looked()
        func = capture.call.func
        path = path_of(func.value, {}) if isinstance(func, ast.Attribute) else ()
        if len(path) != 2 or path[0] != "self":
            return looked
        for owner, function, target, value in self._index.assignments(capture.runner, path[1]):
            if function is not None and value is not None and not is_none(value):
                looked.where = looked.where or f"{owner.member}:{target.lineno}"
                scope = Scope(owner.member, owner, function)
                looked.values.append((value, scope))
                self._look(value, scope, looked.names, _DEPTH)
        return looked

    def _look(self, value: ast.AST | None, scope: Scope, names: set[str], depth: int) -> None:
        """Add the names of attributes that an expression reads, and those of its variables and calls."""
        for node in ast.walk(value) if value is not None and depth else ():
            match node:
                case ast.Attribute(attr=name):
                    names.add(name)
                case ast.Call(func=ast.Name(id=called), args=[_, ast.Constant(value=str(name)), *_]) if (
                    called in _LOOKS
                ):
                    names.add(name)
                case ast.Call(func=ast.Name(id=called)):
                    defined = self._index.module_function(scope.member, called)
                    if defined is not None:
                        for statement in defined[1].body:
                            inner = Scope(defined[0], None, defined[1])
                            self._look(statement, inner, names, depth - 1)
        if isinstance(value, ast.expr) and depth:
            for behind in values_of_names(value, scope.function):
                self._look(behind, scope, names, depth - 1)

    def _classes_at(self, value: ast.expr, scope: Scope, entry: Class, depth: int) -> list[Class] | None:
        """Return the classes of what an expression of a runner finds in a model; None if not known."""
        if path_of(value, {})[-1:] == ("model",) and "runner" in "".join(path_of(value, {})[-2:-1]):
            return [entry]
        match value:
            case ast.Name() if depth:
                behind = values_of_names(value, scope.function)
                return self._classes_at(behind[0], scope, entry, depth - 1) if len(behind) == 1 else None
            case (
                ast.Attribute(value=holder, attr=name)
                | ast.Call(func=ast.Name(id="getattr"), args=[holder, ast.Constant(value=str(name)), _])
            ) if depth:
                holders = self._classes_at(holder, scope, entry, depth - 1)
                if not holders:
                    return holders
                if len(holders) > 1:
                    return None
                if not self._may_have(holders[0], name):
                    default = value.args[2] if isinstance(value, ast.Call) else None
                    return [] if default is None else self._classes_at(default, scope, entry, depth - 1)
                return list(self._regions.parts(holders[0], name)) or None
        return None

    def _may_reach(self, entry: Class, body: Class, names: frozenset[str]) -> bool:
        """Return whether a model has a body under some of these names, or inside what cannot be followed."""
        todo, seen = [entry], set[int]()
        while todo:
            owner = todo.pop()
            if owner.node is body.node:
                return True
            if id(owner.node) in seen:
                continue
            seen.add(id(owner.node))
            for name in names:
                parts = self._regions.parts(owner, name)
                if not parts and self._may_have(owner, name):
                    return True
                todo += parts
        return False


def _is_false(body: list[ast.stmt]) -> bool:
    last = body[-1]
    return isinstance(last, ast.Return) and isinstance(last.value, ast.Constant) and last.value.value is False


def _sides(test: ast.expr, operator: type[ast.boolop]) -> list[ast.expr]:
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, operator) else [test]
