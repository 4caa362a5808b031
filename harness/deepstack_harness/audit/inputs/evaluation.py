"""Whether a value is there: decided before the first call, by each request, or not known.

Follows assignments, both sides of open tests, methods of the same object, and parameters to their callers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from deepstack_harness.audit.inputs.index import (
    RUNNER_FOLDERS,
    Class,
    ClassIndex,
    Site,
    argument,
    assigned,
    functions,
    is_none,
    optional,
)
from deepstack_harness.audit.inputs.rows import InputChange, InputSeen
from deepstack_harness.engines.syntax import Function

BY_RUNNER = frozenset({"input_ids", "positions", "inputs_embeds", "intermediate_tensors"})
"""Inputs whose presence the runner fixes for a model and a rank, profile run included."""


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


ALWAYS, NEVER = Known(Presence.ALWAYS), Known(Presence.NEVER)
_ORDER = (Presence.VARIES, Presence.UNKNOWN, Presence.FIXED)


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
    return by or Known(Presence.FIXED)


class PresenceOf:
    """Presence of values in a function of a class, on the first pipeline stage or on a later one."""

    def __init__(self, calls: Calls, site: Site, stage: str, depth: int = 4) -> None:
        self._calls, self._site, self._stage, self._depth = calls, site, stage, depth
        self._values: dict[str, Known] = {}
        self.returned: list[Known] = []
        self.chosen: Known | None = None
        """What decides which `return` is taken."""
        arguments = site.function.args
        self._arguments = {each.arg for each in [*arguments.args, *arguments.kwonlyargs]} - {"self"}
        self.optional = set(optional(site.function))
        self._walk(site.function.body)

    def _unset(self, name: str) -> Known:
        return self._parameter(name) if name in self.optional else NEVER

    def _local(self, name: str) -> Known:
        """Return the presence of a variable; parameters are followed when they are first read."""
        if name not in self._values:
            self._values[name] = self._parameter(name) if name in self.optional else ALWAYS
        return self._values[name]

    def _parameter(self, name: str) -> Known:
        given = {"intermediate_tensors": self._stage == "later", "inputs_embeds": self._stage == "first"}
        if name in given:
            return ALWAYS if given[name] else NEVER
        if name in BY_RUNNER:
            return Known(Presence.FIXED)
        function = self._site.function
        known = self._calls.given(self._site.owner, function, name, self._stage, self._depth - 1)
        why = f"`{name}` is an argument of {function.name}, of which no call was found"
        return known or self._calls.from_runner(name) or Known(Presence.UNKNOWN, why, self._at(function))

    def _at(self, node: ast.AST) -> str:
        return f"{self._site.owner.member}:{getattr(node, 'lineno', 0)}"

    def _walk(self, statements: Iterable[ast.stmt]) -> None:
        """Follow assignments in order, up to the call that is looked at.

        Both sides of a test that is open.
        """
        for node in statements:
            if node.lineno > self._site.call.lineno:
                return
            if isinstance(node, ast.If):
                self._branch(node)
            elif isinstance(node, ast.Return):
                self.returned.append(self.of(node.value) if node.value else NEVER)
            elif isinstance(node, ast.For | ast.While | ast.With | ast.Try):
                self._walk(node.body)
            else:
                for target, value in assigned(node):
                    if isinstance(target, ast.Name) and value is not None:
                        self._values[target.id] = self.of(value)

    def _branch(self, node: ast.If) -> None:
        decided, by = self._test(node.test)
        if decided is None and any(isinstance(each, ast.Return) for each in ast.walk(node)):
            self.chosen = join([by, *([self.chosen] if self.chosen else [])])
        if decided is not None:
            self._walk(node.body if decided else node.orelse)
            return
        before = dict(self._values)
        self._walk(node.body)
        first = self._values
        self._values = dict(before)
        self._walk(node.orelse)
        for name in {*first, *self._values}:
            sides = [
                known.get(name) or before.get(name) or self._unset(name) for known in (first, self._values)
            ]
            self._values[name] = join(sides, by)

    def of(self, node: ast.expr) -> Known:  # noqa: PLR0911  # one for each kind of expression
        """Return the presence of the value of an expression."""
        match node:
            case ast.Constant(value=value):
                return NEVER if value is None else ALWAYS
            case ast.Name(id=name):
                return self._local(name)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                decided, by = self._test(test)
                if decided is not None:
                    return self.of(body if decided else orelse)
                return join([self.of(body), self.of(orelse)], by)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self._attribute(name, node)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                return self._answer(name, node)
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_]):
                unknown = Known(Presence.UNKNOWN, f"it comes from the runner as '{key}'", self._at(node))
                return self._calls.from_runner(key) or unknown
            case ast.Subscript(value=inner) | ast.Attribute(value=inner):
                known = self.of(inner)
                return known if known.presence is Presence.UNKNOWN else ALWAYS
        return ALWAYS

    def _attribute(self, name: str, node: ast.expr) -> Known:
        """Return the presence of an attribute: fixed where it is assigned in `__init__` alone."""
        made: list[tuple[Known, Function, str]] = []
        stored: list[tuple[Known, Function, str]] = []
        for owner, function, value, line in self._calls.index.stored(self._site.owner, name):
            known = NEVER if is_none(value) else ALWAYS
            (made if function.name == "__init__" else stored).append(
                (known, function, f"{owner.member}:{line}")
            )
        if not made and not stored:
            return Known(Presence.UNKNOWN, f"`self.{name}` is assigned nowhere in the class", self._at(node))
        begins = join([known for known, _, _ in made])
        for known, function, where in stored:
            if known.presence is not begins.presence:
                kind = "None" if begins.presence is Presence.NEVER else "given"
                why = f"`self.{name}` is {kind} until {function.name} stores it"
                seen = InputSeen.NONE if begins.presence is Presence.NEVER else InputSeen.GIVEN
                return Known(Presence.VARIES, why, where, seen)
        return begins

    def _answer(self, name: str, node: ast.expr) -> Known:
        """Return the presence of what a method of the same object answers."""
        method = self._calls.index.method(self._site.owner, name)
        if method is None or not self._depth:
            return Known(Presence.UNKNOWN, f"`self.{name}(..)` was not followed", self._at(node))
        end = ast.Call(ast.Name("end"), [], [], lineno=10**9)
        site = Site(self._site.owner, method[1], end)
        inner = PresenceOf(self._calls, site, self._stage, self._depth - 1)
        return join(inner.returned, inner.chosen or None)

    def _test(self, test: ast.expr) -> tuple[bool | None, Known]:  # noqa: PLR0911  # one for each kind
        """Return the result of a test where the stage decides it, and what the choice depends on."""
        text = ast.unparse(test)
        if text.endswith(".is_first_rank"):
            return text.startswith("not ") ^ (self._stage == "first"), ALWAYS
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                decided, by = self._test(inner)
                return (None if decided is None else not decided), by
            case ast.BoolOp(op=op, values=values):
                results = [self._test(value) for value in values]
                short = isinstance(op, ast.Or)
                if any(decided is short for decided, _ in results):
                    return short, ALWAYS
                if all(decided is not None for decided, _ in results):
                    return not short, ALWAYS
                return None, join([by for decided, by in results if decided is None])
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[right]) if is_none(
                right
            ):
                known = self.of(left)
                if known.presence in (Presence.ALWAYS, Presence.NEVER):
                    return (known.presence is Presence.NEVER) ^ isinstance(op, ast.IsNot), known
                return None, known
            case ast.Name(id=name) if name in self._values or name in self.optional:
                return None, self._local(name)
        contents = [self._content(name, test) for name in _own_names(test)]
        if varying := [each for each in contents if each.presence is Presence.VARIES]:
            return None, varying[0]
        for word in ast.walk(test):
            if isinstance(word, ast.Name) and word.id in self._arguments and word.id not in BY_RUNNER:
                why = f"it depends on `{word.id}` of {self._site.function.name}"
                return None, Known(Presence.VARIES, why, self._at(test))
        return None, Known(Presence.FIXED)

    def _content(self, name: str, node: ast.expr) -> Known:
        """Return what the truth of an attribute depends on: requests, where a method makes it true or false.

        An attribute that always holds a list or what a call made is as true in each call.
        """
        begins: set[bool | None] = set()
        later: list[tuple[bool | None, Function, str]] = []
        for owner, function, value, line in self._calls.index.stored(self._site.owner, name):
            truth = _truth(value, function)
            if function.name == "__init__":
                begins.add(truth)
            else:
                later.append((truth, function, f"{owner.member}:{line}"))
        for truth, function, where in later:
            if truth is not True or begins - {True}:
                why = f"`self.{name}` changes in {function.name}"
                return Known(Presence.VARIES, why, where)
        return Known(Presence.FIXED, "", self._at(node))


def _own_names(test: ast.expr) -> Iterator[str]:
    """Yield the attributes of `self` that a test reads, `getattr(self, "name", ..)` included."""
    for node in ast.walk(test):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                yield name
            case ast.Call(
                func=ast.Name(id="getattr"), args=[ast.Name(id="self"), ast.Constant(value=str(name)), *_]
            ):
                yield name


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
        case ast.Name(id=name):
            values = {
                _truth(each, function)
                for node in ast.walk(function)
                for target, each in assigned(node)
                if isinstance(target, ast.Name) and target.id == name and each is not value
            }
            return values.pop() if len(values) == 1 else None
    return None


def _given_by(function: Function, name: str) -> int | None:
    """Return the line where a function of the runner puts an input among the arguments of the model."""
    for node in ast.walk(function):
        match node:
            case ast.Subscript(slice=ast.Constant(value=key), ctx=ast.Store()) if key == name:
                return node.lineno
            case ast.Dict(keys=keys) if any(
                isinstance(key, ast.Constant) and key.value == name for key in keys
            ):
                return node.lineno
    return None


def _is_conditional(function: Function, line: int) -> bool:
    """Say whether a line is reached by some calls only: below an `if`, or behind a return in one."""
    for node in ast.walk(function):
        if isinstance(node, ast.If):
            inside = node.lineno <= line <= (node.end_lineno or node.lineno)
            leaves = any(isinstance(each, ast.Return) for each in ast.walk(node))
            if inside or (leaves and node.lineno < line):
                return True
    return False


class Calls:
    """What the callers of a source give: classes, their own methods, and the runners as keywords."""

    def __init__(self, index: ClassIndex) -> None:
        """Follow the calls of an index, when they are asked for."""
        self.index = index
        self._by_runner: dict[str, Known | None] = {}

    def from_runner(self, name: str) -> Known | None:
        """Return what is known of an input that the runner gives as a keyword; None where it gives none."""
        if name not in self._by_runner:
            self._by_runner[name] = self._read_runner(name)
        return self._by_runner[name]

    def _read_runner(self, name: str) -> Known | None:
        for member, tree in self.index.trees.items():
            if not any(part in f"/{member}" for part in RUNNER_FOLDERS):
                continue
            for function in functions(tree):
                if line := _given_by(function, name):
                    if _is_conditional(function, line):
                        why = f"the runner gives it under a condition, in {function.name}"
                        return Known(Presence.VARIES, why, f"{member}:{line}")
                    return Known(
                        Presence.ALWAYS, f"the runner gives it, in {function.name}", f"{member}:{line}"
                    )
        return None

    def given(self, owner: Class, function: Function, name: str, stage: str, depth: int) -> Known | None:
        """Return what the callers of a method give for a parameter; None where no caller was found."""
        if depth <= 0:
            return None
        if function.name == "forward":
            sites = self.index.calls(owner)
        else:
            called = f"self.{function.name}"
            sites = [
                Site(owner, each, call) for text, each, call in self.index.self_calls(owner) if text == called
            ]
        values = [
            PresenceOf(self, site, stage, depth).of(value) if value is not None else NEVER
            for site in sites
            for value in [argument(site.call, function, name)]
        ]
        return join(values) if values else None
