"""Whether a condition is fixed for a run: decided by the configuration, or by what each step brings.

Fixed are constants, globals, and attributes that are written only before the first call; so is what
properties, methods and functions compute from these.  Parameters are followed to the callers.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from deepstack_harness.audit.inputs.calls import argument
from deepstack_harness.audit.inputs.index import Class
from deepstack_harness.audit.inputs.phases import Phase, Phases, Scope, Write
from deepstack_harness.audit.inputs.rows import InputChange, InputSeen
from deepstack_harness.audit.inputs.writes import (
    How,
    assigned,
    local_paths,
    path_of,
    values_of_names,
    walk,
)
from deepstack_harness.engines.kinds.vllm import RUNNER_INPUTS
from deepstack_harness.engines.syntax import Function, parameters_of


class Presence(StrEnum):
    """Whether a value is there: decided before the first call (the first three), or by the requests."""

    ALWAYS = "always"
    NEVER = "never"
    FIXED = "fixed"
    VARIES = "varies"
    UNKNOWN = "unknown"


class Known(NamedTuple):
    """The presence of a value, the reason, FILE:LINE of it, and what the warm-up sees where that differs."""

    presence: Presence
    why: str = ""
    where: str = ""
    warm_up: InputSeen = InputSeen.UNKNOWN
    change: InputChange | None = None


ALWAYS, NEVER, FIXED = Known(Presence.ALWAYS), Known(Presence.NEVER), Known(Presence.FIXED)
_ORDER = (Presence.VARIES, Presence.UNKNOWN, Presence.FIXED)
_IDENTITY = frozenset({"isinstance", "hasattr", "type", "callable", "id"})
"""Functions whose result does not depend on the contents of their argument."""


def join(values: Sequence[Known], by: Known | None = None) -> Known:
    """Return what is known of a value that is one of several; `by` is the test that chooses among them."""
    if not values:
        return NEVER
    for presence in _ORDER:
        known = next((value for value in values if value.presence is presence), None)
        if known is not None:
            return known
    if len({value.presence for value in values}) == 1:
        return values[0]
    return by or FIXED


class Aspect(StrEnum):
    """What of a value counts: all of it, whether it is true in an `if`, or which object it is."""

    VALUE = "value"
    TRUTH = "truth"
    IDENTITY = "identity"


class Conditions:
    """Conditions of the functions of a source."""

    def __init__(self, phases: Phases) -> None:
        """Follow the writes and the callers of `phases`."""
        self.phases, self._index = phases, phases.index
        self._attributes: dict[tuple[int, str, Aspect], Known] = {}
        self._bodies: dict[int, Known] = {}
        self._parameters: dict[tuple[int, str], Known] = {}

    def find_dependence(  # noqa: PLR0911  # one for each kind of expression
        self, node: ast.expr, scope: Scope, depth: int = 5, aspect: Aspect = Aspect.VALUE
    ) -> Known:
        """Return FIXED where an expression has one value in a run, VARIES or UNKNOWN with the reason."""
        if depth <= 0:
            return FIXED
        follow = functools.partial(self.find_dependence, scope=scope, depth=depth)
        match node:
            case ast.Constant() | ast.Lambda():
                return FIXED
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[right]):
                return join(
                    [self.find_dependence(value, scope, depth, Aspect.IDENTITY) for value in (left, right)]
                )
            case ast.Call(func=ast.Name(id="getattr"), args=[inner, ast.Constant(value=str(name)), *_]):
                return follow(ast.copy_location(ast.Attribute(inner, name, ast.Load()), node), aspect=aspect)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return follow(inner, aspect=Aspect.TRUTH)
            case ast.BoolOp(values=values):
                return join([follow(operand, aspect=Aspect.TRUTH) for operand in values])
            case ast.Call(func=ast.Name(id=name), args=args) if name in _IDENTITY:
                return join(
                    [
                        self.find_dependence(expression, scope, depth, Aspect.IDENTITY)
                        for expression in args[:1]
                    ]
                )
            case ast.Call():
                return join(
                    [
                        self._called(node, scope, depth),
                        *map(follow, node.args),
                        *(follow(word.value) for word in node.keywords),
                    ]
                )
            case ast.Attribute(value=inner, attr=name):
                return self._member(node, inner, name, scope, depth, aspect)
            case ast.Name(id=name):
                return self._name(name, scope, depth)
        parts = [*map(follow, _expressions(node))]
        return join(parts) if parts else FIXED

    def on_the_way(self, node: ast.AST, scope: Scope) -> Known:
        """Return whether a statement of a function is reached in each call alike."""
        around = {id(test) for test in self._of_the_call(node, scope.function)}
        tests = [test for test in tests_before(scope.function, node) if id(test) not in around]
        return (
            join([self.find_dependence(test, scope, aspect=Aspect.TRUTH) for test in tests])
            if tests
            else ALWAYS
        )

    @staticmethod
    def _of_the_call(node: ast.AST, function: Function) -> list[ast.expr]:
        """Return the tests that decide whether the model is called at all, after a node of a function."""
        for inner in walk(function):
            match inner:
                case ast.Call(func=ast.Attribute(attr="model") | ast.Name(id="model")):
                    if inner.lineno >= getattr(node, "lineno", 0):
                        return list(tests_before(function, inner))
        return []

    def _member(
        self, node: ast.expr, inner: ast.expr, name: str, scope: Scope, depth: int, aspect: Aspect
    ) -> Known:
        """Return what an attribute depends on: its object, and the writes to it."""
        path = path_of(node, local_paths(scope.function))
        holders = None
        if len(path) > 1:
            holders = self.phases.holders(scope, path)
        known = [self._attribute(holder, name, depth, aspect) for holder in holders or ()]
        if not isinstance(inner, ast.Name) or inner.id not in {"self", "cls"}:
            known.append(self.find_dependence(inner, scope, depth - 1, Aspect.IDENTITY))
        return join(known) if known else FIXED

    def _attribute(self, holder: Class, name: str, depth: int, aspect: Aspect) -> Known:
        key = (id(holder.node), name, aspect)
        if key not in self._attributes:
            self._attributes[key] = FIXED  # while it is followed: what depends on itself adds nothing
            self._attributes[key] = self._followed(holder, name, depth, aspect)
        return self._attributes[key]

    def _followed(self, holder: Class, name: str, depth: int, aspect: Aspect) -> Known:
        method = self._index.method(holder, name)
        if method is not None:
            definer, function = method
            return self.follow_returns(Scope(definer.member, holder, function), depth - 1)
        write = self._varying_write(holder, name, aspect)
        if write is None:
            return FIXED
        why = f"`self.{name}` changes in {write.scope.function.name}"
        return Known(Presence.VARIES, why, write.where)

    def _varying_write(self, holder: Class, name: str, aspect: Aspect) -> Write | None:
        """Return a write to an attribute that a step makes, other than of the constant that it has."""
        begins: list[ast.expr | None] = []
        truths: list[bool | None] = []
        later: list[Write] = []
        for write in self.phases.writes_to(holder, name):
            if write.certain:
                phase = self.phases.find_phase(write.scope)
                if phase & Phase.STEP or not phase:
                    later.append(write)
                else:
                    begins.append(write.written.value)
                    truths.append(_truth(write.written.value, write.scope.function))
        for write in later:
            value = write.written.value
            if aspect is Aspect.IDENTITY and write.how not in {How.REBOUND, How.DELETED}:
                continue
            if aspect is Aspect.TRUTH and truths and all(truths):
                always = write.how is How.REBOUND and _truth(value, write.scope.function)
                if always or write.how in {How.IN_PLACE, How.ITEM}:
                    continue
            if write.how is How.REBOUND and begins and all(_equal(value, begin) for begin in begins):
                continue
            return write
        return None

    def _name(self, name: str, scope: Scope, depth: int) -> Known:
        """Return what a variable depends on: its values and the tests that choose, or the callers."""
        function = scope.function
        if name in {"self", "cls"}:
            return FIXED
        if name in parameters(function):
            return self._parameter(name, scope, depth)
        key = (id(function), name)
        if key in self._parameters:
            return self._parameters[key]
        self._parameters[key] = FIXED
        values = []
        for node in walk(function):
            for target, value in _bound(node):
                if any(isinstance(inner, ast.Name) and inner.id == name for inner in ast.walk(target)):
                    values.append(self.find_dependence(value, scope, depth - 1))
                    values += [
                        self.find_dependence(test, scope, depth - 1) for test in tests_before(function, node)
                    ]
        known = join(values) if values else self._global(name, scope)
        self._parameters[key] = known
        return known

    def _global(self, name: str, scope: Scope) -> Known:
        """Return what a global depends on: functions that declare it `global` and run in steps."""
        tree = self._index.tree(scope.member)
        for node in tree.body if tree else ():
            if not isinstance(node, ast.FunctionDef):
                continue
            is_writer = any(isinstance(inner, ast.Global) and name in inner.names for inner in walk(node))
            if is_writer and self.phases.find_phase(Scope(scope.member, None, node)) & Phase.STEP:
                why = f"the global `{name}` changes in {node.name}"
                return Known(Presence.VARIES, why, f"{scope.member}:{node.lineno}")
        return FIXED

    def _parameter(self, name: str, scope: Scope, depth: int) -> Known:
        """Return what the callers of a function give for a parameter: fixed where each of them gives so."""
        function = scope.function
        key = (id(function), name)
        if key not in self._parameters:
            where = f"{scope.member}:{function.lineno}"
            varies = Known(Presence.VARIES, f"it depends on `{name}` of {function.name}", where)
            if function.name == "__init__" or name in RUNNER_INPUTS.names:
                return FIXED
            if function.name in {"forward", "__call__"}:
                return varies
            self._parameters[key] = FIXED
            values = [
                self.find_dependence(value, caller, depth - 1)
                for caller, _, call in self.phases.calls_of(scope)
                for value in [argument(call, function, name, bound=scope.owner is not None)]
                if value is not None
            ]
            fixed = values and all(known.presence is Presence.FIXED for known in values)
            self._parameters[key] = FIXED if fixed and depth > 1 else varies
        return self._parameters[key]

    def _called(self, node: ast.Call, scope: Scope, depth: int) -> Known:
        """Return what the function of a call depends on, its arguments left out."""
        match node.func:
            case ast.Name(id=name):
                defined = self._index.module_function(scope.member, name)
                if defined is None:
                    return FIXED
                return self.follow_returns(Scope(defined[0], None, defined[1]), depth - 1)
            case ast.Attribute(value=inner, attr=name):
                path = path_of(node.func, local_paths(scope.function))
                holders = self.phases.holders(scope, path) if len(path) > 1 else None
                methods = [
                    (owner, found) for owner in holders or () if (found := self._index.method(owner, name))
                ]
                known = [
                    self.follow_returns(Scope(definer.member, holder, function), depth - 1)
                    for holder, (definer, function) in methods
                ]
                return join([*known, self.find_dependence(inner, scope, depth - 1)])
        return FIXED

    def follow_returns(self, scope: Scope, depth: int) -> Known:
        """Return what the result of a function depends on: its returns, and the tests that lead to them.

        Parameters count as fixed: the caller evaluates its arguments.
        """
        key = id(scope.function)
        if depth <= 0:
            return FIXED
        if key not in self._bodies:
            self._bodies[key] = FIXED
            names = parameters(scope.function)
            saved = {name: self._parameters.get((key, name)) for name in names}
            self._parameters |= {(key, name): FIXED for name in names}
            parts = []
            for node in walk(scope.function):
                if isinstance(node, ast.Return) and node.value is not None:
                    tests = tests_before(scope.function, node)
                    parts += [self.find_dependence(value, scope, depth) for value in (*tests, node.value)]
            for name, known in saved.items():
                if known is None:
                    del self._parameters[key, name]
                else:
                    self._parameters[key, name] = known
            self._bodies[key] = join(parts) if parts else FIXED
        return self._bodies[key]


def parameters(function: Function) -> frozenset[str]:
    """Return the names of the parameters of a function, `self` left out."""
    stars = [star for star in (function.args.vararg, function.args.kwarg) if star is not None]
    return frozenset(parameter.arg for parameter in [*parameters_of(function), *stars]) - {"self", "cls"}


def tests_before(function: Function, node: ast.AST) -> Iterator[ast.expr]:
    """Yield the tests that decide whether a node is reached: those around it, and those of returns before."""
    line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    for inner in walk(function):
        if isinstance(inner, ast.If | ast.While):
            inside = inner.body[0].lineno <= line and end <= (inner.end_lineno or 0)
            leaves = (inner.end_lineno or 0) < line and any(
                isinstance(last, ast.Return | ast.Continue | ast.Break)
                for body in (inner.body, inner.orelse)
                for last in body[-1:]
            )
            if inside or leaves:
                yield inner.test


def _bound(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets that a statement or a comprehension binds, with the values."""
    match node:
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            yield target, value
        case ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.withitem(optional_vars=ast.expr() as target, context_expr=value):
            yield target, value
        case _:
            yield from ((target, value) for target, value in assigned(node) if value is not None)


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the expressions directly below one; a comprehension has those of its generators too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.comprehension):
            yield from (child.iter, *child.ifs)
        elif isinstance(child, ast.keyword):
            yield child.value


def _truth(value: ast.expr | None, function: Function) -> bool | None:
    """Return whether a value is true in an `if`; None where that depends on what it is made from."""
    match value:
        case ast.Constant(value=constant):
            return bool(constant)
        case ast.ListComp() | ast.Call() | ast.Dict(keys=[_, *_]):
            return True
        case ast.List(elts=members) | ast.Tuple(elts=members):
            return bool(members)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return True if True in (_truth(left, function), _truth(right, function)) else None
        case ast.IfExp(body=body, orelse=orelse):
            truth = _truth(body, function)
            return truth if truth is _truth(orelse, function) else None
        case ast.Name(id=name) if f"{name}.append(" in ast.unparse(function):
            return True
        case ast.Name():
            values = {_truth(operand, function) for operand in values_of_names(value, function)}
            return values.pop() if len(values) == 1 else None
    return None


def _equal(first: ast.expr | None, second: ast.expr | None) -> bool:
    """Return whether two values are the same constant."""
    match first, second:
        case ast.Constant(value=one), ast.Constant(value=other):
            return type(one) is type(other) and bool(one == other)
    return False
