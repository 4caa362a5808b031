"""Optional arguments of models whose `forward` a graph runner captures and replays.

An engine such as SGLang compiles no class by a decorator: its runners call `forward` once to capture it, and
replay that graph in steps.  A runner is a class with methods that capture and that call a `forward` there.
What the capture does not give is None in every replay; what it gives has to be filled before each replay.
The class that a runner captures is the model itself, or the body that a model keeps, around which the
model's own `forward` runs in each step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from deepstack_harness.audit.inputs.calls import argument, optional
from deepstack_harness.audit.inputs.conditions import NEVER, Known, Presence, join
from deepstack_harness.audit.inputs.evaluation import Callers, PresenceOf
from deepstack_harness.audit.inputs.index import Class
from deepstack_harness.audit.inputs.phases import CallSite, Scope
from deepstack_harness.audit.inputs.rows import InputChange, InputSeen, InputStanding, Place, Standing
from deepstack_harness.engines.syntax import Function

_MODELS = "/models/"
"""The folder of models in SGLang 0.5.14 to 0.5.23."""
_FEWEST_MODELS = 3
"""A list in the configuration with fewer names of models is about something else."""


class _Capture(NamedTuple):
    """A call of `forward` in a capture: the runner, the call, and the names that it may give."""

    runner: Class
    call: CallSite
    is_body: bool
    named: frozenset[str]


class Replays:
    """The models of a source, and what its graph runners capture and replay of them."""

    def __init__(self, callers: Callers) -> None:
        """Find the captures of a source."""
        self._callers, self._phases, self._index = callers, callers.phases, callers.index
        self._captures = list(self._found())
        self._entries = dict(self._models())
        self._lists = dict(self._named_lists()) if self._captures else {}

    def regions(self) -> list[Class]:
        """Return the models, and the bodies that they keep, whose `forward` a runner captures."""
        if not self._captures:
            return []
        bodies = {
            id(part.node): part
            for entry in self._entries.values()
            for part in self._bodies(entry)
        }  # fmt: skip
        has_body = any(capture.is_body for capture in self._captures)
        return [*self._entries.values(), *(bodies.values() if has_body else ())]

    def _bodies(self, entry: Class) -> Iterator[Class]:
        """Yield the classes that a model keeps and calls, those with a `forward` of their own."""
        forward = self._index.method(entry, "forward")
        for name in sorted(self._index.kept_in(entry)) if forward else ():
            for part in self._index.parts(entry, name):
                found = self._index.method(part, "forward")
                is_model = _MODELS in f"/{part.member}" and part.node.name not in self._entries
                if is_model and found and forward and _takes_batch(found[1], forward[1]):
                    yield part

    def of_class(self, owner: Class) -> Iterator[InputStanding]:
        """Yield the standing of each optional argument of the `forward` of a model or of a body."""
        forward = self._index.method(owner, "forward")
        if forward is None:
            return
        is_body = owner.node.name not in self._entries
        captures = [capture for capture in self._captures if capture.is_body is is_body]
        for name in optional(forward[1]):
            yield self._row(owner, forward[1], name, captures, is_body=is_body)

    def _row(
        self, owner: Class, forward: Function, name: str, captures: Sequence[_Capture], *, is_body: bool
    ) -> InputStanding:
        known, writers = self._in_steps(owner, forward, name, is_body=is_body)
        first = captures[0] if captures else None
        giving = [capture for capture in captures if name in capture.named]
        without = [capture for capture in captures if name not in capture.named]
        standing, why, change = Standing.SAME, known.why or "no call gives it", None
        where = known.where or f"{owner.member}:{forward.lineno}"
        given = known.presence is not Presence.NEVER
        if first is None:
            standing, why = Standing.NOT_FOLLOWED, "no capture of such a forward was found"
        elif given and known.presence is Presence.UNKNOWN:
            standing = Standing.NOT_FOLLOWED
        elif given and without:
            standing, change = Standing.AT_RISK, InputChange.PRESENCE
            where = _where(without[0])
            why = f"{writers[0]} gives it, and the capture in {without[0].runner.node.name} does not"
        elif given and (stale := [each for each in giving if not self._is_filled(each, name)]):
            standing, change, where = Standing.AT_RISK, InputChange.STORAGE, _where(stale[0])
            why = f"{stale[0].runner.node.name} captures it, and fills it in no replay"
        elif given:
            why, where = (
                f"{giving[0].runner.node.name} captures it, and fills it in each replay",
                _where(giving[0]),
            )
        if standing is Standing.AT_RISK and (guard := self._guard(owner)):
            standing, why, where = Standing.GUARDED, f"{why}; {guard[0]}", guard[1]
        return InputStanding(
            owner.node.name, name, standing, why, where,
            member=owner.member, line=forward.lineno,
            warm_up=InputSeen.GIVEN if giving and not without else InputSeen.NONE,
            steps=InputSeen.EITHER if given else InputSeen.NONE, change=change, writers=tuple(writers),
        )  # fmt: skip

    def _in_steps(
        self, owner: Class, forward: Function, name: str, *, is_body: bool
    ) -> tuple[Known, list[Place]]:
        """Return what the calls in steps give for an argument, and where."""
        values: list[Known] = []
        writers: list[Place] = []
        if is_body:
            for site in self._callers.calls.calls(owner):
                if site.owner.node.name in self._entries and site.function.name == "forward":
                    value = argument(site.call, forward, name)
                    presence = PresenceOf(self._callers, site, "first")
                    values.append(presence.of(value) if value else NEVER)
                    if value is not None:
                        writers.append(
                            Place(site.owner.member, value.lineno, site.owner.node.name, "forward")
                        )
        else:
            captured = {id(capture.call.node) for capture in self._captures}
            for call in self._phases.calls_named("forward"):
                is_model = call.path[-2:] == ("model", "forward") and _runs(call.scope)
                if is_model and id(call.node) not in captured and name in self._names_of(call):
                    why = f"{call.scope.function.name} may give it"
                    values.append(Known(Presence.VARIES, why, f"{call.scope.member}:{call.node.lineno}"))
                    writers.append(_place(call))
        present = [each for each in values if each.presence is not Presence.NEVER]
        return (join(present) if present else NEVER), writers

    def _found(self) -> Iterator[_Capture]:
        """Yield the calls of a `forward` of three or more arguments in the methods that capture."""
        for call in self._phases.calls_named("forward"):
            runner = call.scope.owner
            if (
                runner is None
                or _MODELS in f"/{call.scope.member}"
                or len(call.node.args) < 3
                or not _runs(call.scope)
            ):
                continue
            captures = any(
                each.name.lstrip("_").startswith("capture")
                for base in self._index.order(runner)
                for each in base.node.body
                if isinstance(each, ast.FunctionDef)
            )
            if captures and not self._is_step(call.scope):
                is_body = len(call.path) > 1 and call.path[-2] != "model"
                yield _Capture(runner, call, is_body, self._names_of(call))

    def _is_step(self, scope: Scope) -> bool:
        """Say whether a method replays: by its name, or because it is called from one alone that does."""
        return any(part in scope.function.name for part in ("execute", "replay", "load_batch"))

    def _names_of(self, call: CallSite) -> frozenset[str]:
        """Return the names that a call may give: its keywords, and the words of what makes its `**`."""
        names = {keyword.arg for keyword in call.node.keywords if keyword.arg}
        if any(keyword.arg is None for keyword in call.node.keywords):
            function = call.scope.function
            names |= _words(function)
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    defined = self._index.module_function(call.scope.member, node.func.id)
                    if defined is not None and defined[0] == call.scope.member:
                        names |= _words(defined[1])
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    makers = (
                        self._phases.functions_named(node.func.attr) if "kwargs" in node.func.attr else ()
                    )
                    names = names.union(*(_words(each.function) for each in makers))
        return frozenset(names)

    def _is_filled(self, capture: _Capture, name: str) -> bool:
        """Say whether a method of the runner that does not capture has the name of an input."""
        return any(
            name in _words(node) or name in _attributes(node)
            for each in self._index.order(capture.runner)
            for node in each.node.body
            if isinstance(node, ast.FunctionDef)
            and "capture" not in node.name
            and node is not capture.call.scope.function
        )

    def _models(self) -> Iterator[tuple[str, Class]]:
        """Yield the models that files of the folder of models name as those to be served."""
        for member, tree in list(self._index.trees.items()):
            for node in tree.body if _MODELS in f"/{member}" else ():
                match node:
                    case ast.Assign(targets=[ast.Name(id="EntryClass")], value=value):
                        for name in (each.id for each in ast.walk(value) if isinstance(each, ast.Name)):
                            if (model := self._index.resolve(member, name)) is not None:
                                yield name, model

    def _named_lists(self) -> Iterator[tuple[str, tuple[frozenset[str], str]]]:
        """Yield the lists of names of models by which the engine decides whether it captures."""
        for member, content in self._index.text.items():
            if b"cuda_graph" not in content or b"_archs = [" not in content:
                continue
            tree = self._index.tree(member)
            for node in tree.body if tree else ():
                match node:
                    case ast.Assign(targets=[ast.Name(id=name)], value=ast.List(elts=members)):
                        models = frozenset(
                            each.value for each in members
                            if isinstance(each, ast.Constant) and each.value in self._entries
                        )  # fmt: skip
                        if len(models) >= _FEWEST_MODELS:
                            yield name, (models, f"{member}:{node.lineno}")

    def _guard(self, owner: Class) -> tuple[str, str] | None:
        """Return how the engine leaves out a model: a list names those of its kind that it captures."""
        users = [entry for entry in self._entries.values() if owner in self._bodies(entry) or entry == owner]
        for name, (captured, where) in self._lists.items():
            if "cuda_graph" in name and "support" in name:
                kind, _, _ = name.partition("_")
                of_kind = [
                    models
                    for other, (models, _) in self._lists.items()
                    if other.startswith(kind) and "cuda_graph" not in other
                ]
                models = frozenset[str]().union(*of_kind)
                left_out = [entry for entry in users if entry.node.name in models - captured]
                if users and len(left_out) == len(users):
                    return f"by default no graph is captured for what `{name}` leaves out", where
        return None


def _takes_batch(body: Function, model: Function) -> bool:
    """Say whether a body takes the object with the inputs of a step that the model takes."""

    def kinds(function: Function) -> set[str]:
        parameters = [*function.args.args, *function.args.kwonlyargs]
        return {ast.unparse(each.annotation) for each in parameters if each.annotation is not None}

    return any("Batch" in kind for kind in kinds(body) & kinds(model))


def _runs(scope: Scope) -> bool:
    """Say whether a function is of a file that runs models."""
    return any(part in scope.member for part in ("runner", "worker", "/speculative/"))


def _words(node: ast.AST) -> set[str]:
    """Return the strings and the keywords in a function."""
    words = {
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }
    return words | {each.arg for each in ast.walk(node) if isinstance(each, ast.keyword) and each.arg}


def _attributes(node: ast.AST) -> set[str]:
    return {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def _place(call: CallSite) -> Place:
    owner = call.scope.owner.node.name if call.scope.owner else ""
    return Place(call.scope.member, call.node.lineno, owner, call.scope.function.name)


def _where(capture: _Capture) -> str:
    return str(_place(capture.call))
