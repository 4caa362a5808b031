"""Whether a value is there: decided before the first call, by each request, or not known.

Follows assignments, both sides of open tests, methods of the same object, and parameters to their callers.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator

from deepstack_harness.audit.inputs.calls import (
    ClassCalls,
    argument,
    optional,
)
from deepstack_harness.audit.inputs.conditions import (
    ALWAYS,
    FIXED,
    NEVER,
    Aspect,
    Conditions,
    Known,
    Presence,
    join,
)
from deepstack_harness.audit.inputs.index import RUNNER_FOLDERS, Class, is_none
from deepstack_harness.audit.inputs.phases import Phase, Scope, Write
from deepstack_harness.audit.inputs.rows import InputSeen
from deepstack_harness.audit.inputs.writes import How, assigned, defaults_of, walk
from deepstack_harness.engines.kinds.vllm import RUNNER_INPUTS
from deepstack_harness.engines.syntax import Function


class PresenceOf:
    """Presence of values in a function of a class, on the first pipeline stage or on a later one."""

    def __init__(
        self, calls: Callers, scope: Scope, until: ast.AST | None, stage: str, depth: int = 4
    ) -> None:
        """Follow a function up to a node of it, or to its end."""
        self._calls, self._scope, self._stage, self._depth = calls, scope, stage, depth
        self._until = getattr(until, "lineno", sys.maxsize)
        assert scope.owner is not None
        self._owner = scope.owner
        self._values: dict[str, Known] = {}
        self.returned: list[Known] = []
        self.chosen: Known | None = None
        """What decides which `return` is taken."""
        self.optional = set(optional(scope.function))
        self._walk(scope.function.body)

    def _local(self, name: str) -> Known:
        """Return the presence of a variable; parameters are followed when they are first read."""
        if name not in self._values:
            self._values[name] = self._parameter(name) if name in self.optional else ALWAYS
        return self._values[name]

    def _parameter(self, name: str) -> Known:
        given = {"intermediate_tensors": self._stage == "later", "inputs_embeds": self._stage == "first"}
        if name in given:
            return ALWAYS if given[name] else NEVER
        if name in RUNNER_INPUTS.names:
            return FIXED
        known = self._calls.given(self._scope, name, self._stage, self._depth - 1)
        function = self._scope.function
        why = f"`{name}` is an argument of {function.name}, of which no call was found"
        return (
            known
            or self._calls.from_runner(name)
            or self._calls.never_by_runner(self._scope, name)
            or self._unknown(why, function)
        )

    def _unknown(self, why: str, node: ast.AST) -> Known:
        return Known(Presence.UNKNOWN, why, str(self._scope.place(node)))

    def _walk(self, statements: Iterable[ast.stmt]) -> None:
        """Follow assignments in order, up to the call that is looked at.

        Both sides of a test that is open.
        """
        for node in statements:
            if node.lineno > self._until:
                return
            if isinstance(node, ast.If):
                self._branch(node)
            elif isinstance(node, ast.Return):
                self.returned.append(self.find_presence(node.value) if node.value else NEVER)
            elif isinstance(node, ast.For | ast.While | ast.With | ast.Try):
                self._walk(node.body)
            elif (node.end_lineno or 0) >= self._until:  # what the statement of the call assigns comes later
                return
            else:
                for target, value in assigned(node):
                    if isinstance(target, ast.Name) and value is not None:
                        self._values[target.id] = self.find_presence(value)

    def _branch(self, node: ast.If) -> None:
        decided, by = self._test(node.test)
        if decided is None and any(isinstance(inner, ast.Return) for inner in ast.walk(node)):
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
            unset = before.get(name) or (self._parameter(name) if name in self.optional else NEVER)
            sides = [known.get(name) or unset for known in (first, self._values)]
            self._values[name] = join(sides, by)

    def find_presence(self, node: ast.expr) -> Known:  # noqa: PLR0911  # one for each kind of expression
        """Return the presence of the value of an expression."""
        match node:
            case ast.Constant(value=value):
                return NEVER if value is None else ALWAYS
            case ast.Name(id=name):
                return self._local(name)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                decided, by = self._test(test)
                if decided is not None:
                    return self.find_presence(body if decided else orelse)
                return join([self.find_presence(body), self.find_presence(orelse)], by)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self._attribute(name, node)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                return self._answer(name, node)
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_]):
                unknown = self._unknown(f"it comes from the runner as '{key}'", node)
                return self._calls.from_runner(key) or self._item(key) or unknown
            case ast.Subscript(value=inner) | ast.Attribute(value=inner):
                known = self.find_presence(inner)
                return known if known.presence is Presence.UNKNOWN else ALWAYS
        return ALWAYS

    def _attribute(self, name: str, node: ast.expr) -> Known:
        """Return the presence of an attribute: fixed where it is written only before the first call."""
        phases = self._calls.phases
        if (found := self._calls.index.method(self._owner, name)) is not None:
            return self._answered(self._owner, found)
        begins: list[Known] = []
        later: list[tuple[Known, Write]] = []
        for write in phases.writes_to(self._owner, name):
            if write.certain and write.how in {How.REBOUND, How.DELETED}:
                known = NEVER if is_none(write.written.value) or write.how is How.DELETED else ALWAYS
                phase = phases.find_phase(write.scope)
                if phase and not phase & Phase.STEP:
                    begins.append(known)
                else:
                    later.append((known, write))
        if not begins and not later:
            return self._unknown(f"`self.{name}` is assigned nowhere in the class", node)
        first = join(begins)
        for known, write in later:
            if known.presence is not first.presence:
                kind = "None" if first.presence is Presence.NEVER else "given"
                why = f"`self.{name}` is {kind} until {write.scope.function.name} stores it"
                seen = InputSeen.NONE if first.presence is Presence.NEVER else InputSeen.GIVEN
                return Known(Presence.VARIES, why, write.where, seen)
        return first

    def _item(self, key: str) -> Known | None:
        """Return the presence of what the methods of the object store in a dictionary under a key."""
        values = [
            PresenceOf(self._calls, scope, node, self._stage, self._depth - 1).find_presence(value)
            for base in self._calls.index.order(self._owner) if self._depth
            for method in base.node.body if isinstance(method, ast.FunctionDef)
            for scope in [Scope(base.member, self._owner, method)]
            for node, value in _given_by(method, key) if value is not None
        ]  # fmt: skip
        return join(values) if values else None

    def _answer(self, name: str, node: ast.expr) -> Known:
        """Return the presence of what a method of the same object returns, or the `forward` of a part."""
        index = self._calls.index
        method = index.method(self._owner, name)
        methods = [(self._owner, method)] if method is not None else [
            (part, forward)
            for part in index.parts(self._owner, name) if (forward := index.method(part, "forward"))
        ]  # fmt: skip
        if not methods or not self._depth:
            return self._unknown(f"`self.{name}(..)` was not followed", node)
        return join([self._answered(owner, found) for owner, found in methods])

    def _answered(self, owner: Class, method: tuple[Class, Function]) -> Known:
        scope = Scope(method[0].member, owner, method[1])
        inner = PresenceOf(self._calls, scope, None, self._stage, self._depth - 1)
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
                known = self.find_presence(left)
                if known.presence in (Presence.ALWAYS, Presence.NEVER):
                    return (known.presence is Presence.NEVER) ^ isinstance(op, ast.IsNot), known
                return None, known
            case ast.Name(id=name) if name in self._values or name in self.optional:
                return None, self._local(name)
        known = self._calls.conditions.find_dependence(test, self._scope, aspect=Aspect.TRUTH)
        return None, known


def _given_by(function: Function, name: str) -> Iterator[tuple[ast.AST, ast.expr | None]]:
    """Yield where a function puts an input among the arguments of a model, or into a dictionary of them."""
    for node in walk(function):
        for target, value in assigned(node):
            match target:
                case ast.Subscript(slice=ast.Constant(value=key)) if key == name:
                    yield target, value
        match node:
            case ast.Dict(keys=keys, values=values):
                for word, value in zip(keys, values, strict=True):
                    if isinstance(word, ast.Constant) and word.value == name:
                        yield word, value
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), keywords=keywords):
                if called in {"model", "dict", "update", "_model_forward"}:
                    yield from ((keyword.value, keyword.value) for keyword in keywords if keyword.arg == name)


class Callers:
    """What the callers of a source give: classes, their own methods, and the runners as keywords."""

    def __init__(self, conditions: Conditions) -> None:
        """Follow the calls of the index of `conditions`, when they are first needed."""
        self.conditions, self.phases, self.index = conditions, conditions.phases, conditions.phases.index
        self.calls = ClassCalls(self.phases)
        self._by_runner: dict[str, Known | None] = {}

    def from_runner(self, name: str) -> Known | None:
        """Return what is known of an input that the runner gives as a keyword; None where it gives none."""
        if name not in self._by_runner:
            self._by_runner[name] = self._read_runner(name)
        return self._by_runner[name]

    def _read_runner(self, name: str) -> Known | None:
        """Return what steps give, where the warm-up gives it too; else that it varies."""
        steps, warm_ups = self._given_in(name)
        if not steps:
            return None
        for known, scope, where in steps:
            if known.presence is Presence.VARIES:
                why = f"the runner gives it under a condition, in {scope.function.name}: {known.why}"
                return Known(Presence.VARIES, why, where)
        for known, scope, where in steps:
            is_open = known.presence is not Presence.ALWAYS or self._is_warmed(scope)
            if is_open and not any(self._beside(scope, other) for _, other, _ in warm_ups):
                why = f"the runner gives it in {scope.function.name}, and its warm-up does not"
                return Known(Presence.VARIES, why, where, InputSeen.NONE)
        known, scope, where = steps[0]
        how = "always" if known.presence is Presence.ALWAYS else "as the configuration says"
        beside = f" and in {warm_ups[0][1].function.name}" if warm_ups else ""
        return Known(known.presence, f"the runner gives it {how}, in {scope.function.name}{beside}", where)

    def _given_in(self, name: str) -> tuple[list[tuple[Known, Scope, str]], list[tuple[Known, Scope, str]]]:
        """Return where runners give an input in steps and in the warm-up, with the conditions."""
        steps: list[tuple[Known, Scope, str]] = []
        warm_ups: list[tuple[Known, Scope, str]] = []
        for member in list(self.index.trees):
            is_runner = any(part in f"/{member}" for part in RUNNER_FOLDERS)
            if is_runner and name.encode() in self.index.text[member]:
                for scope in self.phases.scopes_of(member):
                    for node, _ in _given_by(scope.function, name):
                        where = f"{member}:{getattr(node, 'lineno', 0)}"
                        site = (self.conditions.on_the_way(node, scope), scope, where)
                        phase = self.phases.find_phase(scope)
                        if phase & Phase.STEP or not phase:
                            steps.append(site)
                        if phase & Phase.WARM_UP:
                            warm_ups.append(site)
        return steps, warm_ups

    def _beside(self, step: Scope, warm_up: Scope) -> bool:
        """Return whether a warm-up is that of the runner of a step: of its file, or a related class."""
        first, second = step.owner, warm_up.owner
        return step.member == warm_up.member or bool(first and second and self.index.related(first, second))

    def _is_warmed(self, scope: Scope) -> bool:
        """Return whether the runner of a step calls a model in its warm-up; else its first step is one."""
        owners = self.index.order(scope.owner) if scope.owner else []
        beside = [
            Scope(owner.member, owner, node)
            for owner in owners
            for node in owner.node.body
            if isinstance(node, ast.FunctionDef)
        ]
        return any(
            self.phases.find_phase(caller) & (Phase.WARM_UP | Phase.STEP) == Phase.WARM_UP
            and any(
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "model"
                for node in walk(caller.function)
            )
            for caller in beside or self.phases.scopes_of(scope.member)
        )

    def never_by_runner(self, scope: Scope, name: str) -> Known | None:
        """Return that runners leave out an argument of a model that a registry names; None if they may not.

        They may give whatever is a word in their files.
        """
        if scope.function.name != "forward" or not is_none(defaults_of(scope.function).get(name)):
            return None
        assert scope.owner is not None
        model, word = f'"{scope.owner.node.name}"'.encode(), f'"{name}"'.encode()
        is_named = any(model in text for text in self.index.text.values())
        givers = [
            text
            for member, text in self.index.text.items()
            if any(part in f"/{member}" for part in RUNNER_FOLDERS)
        ]
        return NEVER if is_named and not any(word in text for text in givers) else None

    def given(self, scope: Scope, name: str, stage: str, depth: int) -> Known | None:
        """Return what the callers of a method give for a parameter; None where no caller was found."""
        if depth <= 0 or scope.owner is None:
            return None
        if scope.function.name == "forward":
            sites = self.calls.calls(scope.owner)
        else:
            sites = list(self.calls.calls_of(scope.owner, ("self", scope.function.name)))
        values = [
            PresenceOf(self, site.scope, site.node, stage, depth).find_presence(value)
            if value is not None
            else NEVER
            for site in sites
            for value in [argument(site.node, scope.function, name)]
        ]
        return join(values) if values else None
