"""Optional arguments of what graph runners capture, against what steps of the captured modes give.

An argument is the same where no step that may be replayed gives it, or where the capture has it and a replay
fills it.  It is at risk where a step gives it, and the capture is a call without it, or no replay fills it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping

from deepstack_harness.audit.inputs.calls import optional
from deepstack_harness.audit.inputs.handed import Handed
from deepstack_harness.audit.inputs.index import Class, functions, is_none
from deepstack_harness.audit.inputs.phases import Phase, Scope
from deepstack_harness.audit.inputs.refusals import Refusal, Refusals
from deepstack_harness.audit.inputs.replays import Regions, Visit
from deepstack_harness.audit.inputs.rows import (
    InputChange,
    InputKind,
    InputSeen,
    InputStanding,
    Place,
    Standing,
)
from deepstack_harness.audit.inputs.runners import DRAFTERS, GraphCapture, Runners
from deepstack_harness.audit.inputs.writes import How, assigned, local_paths, path_of, walk, writes_of
from deepstack_harness.engines.syntax import Function


class Captures:
    """The standing of what the captured regions of a source read."""

    def __init__(self, regions: Regions) -> None:
        """Find the runners that capture a model of `regions`."""
        self._regions, self._phases, self._index = regions, regions.phases, regions.index
        self._handed, self._refusals = Handed(regions), Refusals(regions)
        self.captures = Runners(regions).captures
        self._given: dict[tuple[str, frozenset[str]], list[Place]] = {}
        self._outside = {
            id(function)
            for capture in self.captures
            for base in self._index.order(capture.runner)
            for function in functions(base.node)
        }

    def of_class(self, owner: Class) -> Iterator[InputStanding]:
        """Yield the standing of each member of a step and each optional argument of a captured class."""
        bodies = self.bodies.get(id(owner.node), [])
        is_entry = any(owner.node is entry.node for entry in self._regions.entries)
        rows: dict[tuple[str, InputKind], InputStanding] = {}
        for capture in self.captures:
            if capture.is_body if bodies else is_entry and not capture.is_body:
                for row in (*self._not_followed(owner, capture), *self._arguments(owner, capture)):
                    known = rows.get((row.input, row.kind))
                    if known is None or _WORST[row.standing] < _WORST[known.standing]:
                        rows[row.input, row.kind] = row
        yield from rows.values()

    @functools.cached_property
    def bodies(self) -> Mapping[int, list[tuple[Class, Visit, ast.Call]]]:
        """Return the calls of each body that a runner captures, by the class statement of the body."""
        modes = frozenset[str]().union(*(capture.modes for capture in self.captures if capture.is_body))
        bodies: dict[int, list[tuple[Class, Visit, ast.Call]]] = {}
        if modes:
            self._handed.given_to_entries = frozenset(self._given_to_entries(modes))
            for entry in self._regions.entries:
                for call in self._regions.find_code(entry, modes, to_bodies=True).bodies:
                    bodies.setdefault(id(call[0].node), []).append(call)
        return bodies

    def regions(self) -> list[Class]:
        """Return the models, and the bodies of models, that runners capture."""
        found = {id(entry.node): entry for entry in self._regions.entries} if self.captures else {}
        found |= {key: calls[0][0] for key, calls in self.bodies.items()}
        return list(found.values())

    @functools.cache  # noqa: B019  # lives as long as the audit of one source
    def _given_to_entries(self, modes: frozenset[str]) -> dict[str, list[tuple[Visit, ast.expr]]]:
        """Return the arguments that steps of these modes give to a model, outside of captures.

        The last value is what the last call gives; the others are put in its place in some steps.
        """
        given: dict[str, list[tuple[Visit, ast.expr]]] = {}
        for call in self._phases.calls_named("forward"):
            function = call.scope.function
            if call.path[-2:] != ("model", "forward") or len(call.node.args) < 2:
                continue
            if DRAFTERS in f"/{call.scope.member}" or not self._runs_in(call.scope, modes):
                continue
            if (
                self._phases.find_phase(call.scope) in {Phase.BEFORE, Phase.WARM_UP}
                or id(function) in self._outside
            ):
                continue
            if any(node is call.node for node in self._regions.nodes(function, modes)):
                self._handed.values.clear()
                for name, last in self._handed.keywords(
                    call.node, Visit(call.scope, frozenset()), modes
                ).items():
                    given.setdefault(name, []).extend([*self._handed.values.get(name, []), last])
        return given

    def _runs_in(self, scope: Scope, modes: frozenset[str], depth: int = 3) -> bool:
        """Return whether steps of these modes reach a call of a function, or no call of it is known."""
        calls = [call for call in self._phases.calls_of(scope) if call.scope.owner is not None]
        return not depth or not calls or any(
            any(node is call.node for node in self._regions.nodes(call.scope.function, modes))
            and self._runs_in(call.scope, modes, depth - 1)
            for call in calls
        )  # fmt: skip

    def _arguments(self, owner: Class, capture: GraphCapture) -> Iterator[InputStanding]:
        method = self._index.method(owner, "forward")
        if method is None:
            return
        definer, forward = method
        visit = Visit(capture.scope, frozenset())
        captured = self._handed.keywords(capture.call, visit, capture.modes, forward)
        for name in optional(forward):
            givers = list(self._givers(owner, name, capture, forward))
            replayed = [place for place, refusal in givers if refusal is None]
            writers = replayed or [place for place, _ in givers]
            given = name in captured and not is_none(captured[name][1])
            change = InputChange.STORAGE if given else InputChange.PRESENCE
            place = str(writers[0]) if writers else f"{definer.member}:{forward.lineno}"
            if not writers:
                standing, why = Standing.SAME, "no call in such a step gives it"
            elif not any(isinstance(node, ast.Name) and node.id == name for node in walk(forward)):
                standing, why = Standing.SAME, "forward does not read it"
            elif given and name in capture.words:
                standing, why = (
                    Standing.SAME,
                    f"{capture.runner.node.name} captures it, and fills it in a replay",
                )
            elif not replayed:
                reasons = list(dict.fromkeys(refusal for _, refusal in givers if refusal is not None))
                others = [f", and {reason.why} ({reason.where})" for reason in reasons[1:]]
                giver = writers[0].model_class or writers[0].function
                standing, place = Standing.GUARDED, reasons[0].where
                why = f"{giver} gives it, but {reasons[0].why}{''.join(others)}"
            else:
                standing = Standing.AT_RISK
                lacks = "fills it in no replay" if given else "captures a call without it"
                giver = writers[0].model_class or writers[0].function
                why = f"{capture.runner.node.name} {lacks} ({capture.where}), and in a step {giver} gives it"
            yield InputStanding(
                owner.node.name, name, standing, why, place, member=owner.member, line=forward.lineno,
                warm_up=InputSeen.GIVEN if given else InputSeen.NONE,
                steps=InputSeen.EITHER if writers else InputSeen.NONE,
                change=None if standing is Standing.SAME else change,
                writers=tuple(writers),
            )  # fmt: skip

    def _givers(
        self, owner: Class, name: str, capture: GraphCapture, forward: Function
    ) -> Iterator[tuple[Place, Refusal | None]]:
        """Yield where steps of these modes give an argument, and why no graph runs such a step."""
        if not capture.is_body:
            for visit, value in self._given_to_entries(capture.modes).get(name, [])[-1:]:
                if not is_none(value) and self._is_of(value, capture):
                    yield visit.scope.place(value), self._refused(name, capture)
            return
        refused = {entry: self._refused(entry, capture) for entry in self._handed.given_to_entries}
        for _, caller, call in self.bodies[id(owner.node)]:
            handed = self._handed.keywords(call, caller, capture.modes, forward)
            by, value = handed.get(name, (caller, ast.Constant(None)))
            if not self._handed.gives(value, by, capture.modes):
                continue
            refusal = self._refusals.of_model(_entry(caller), owner, capture)
            accepted = frozenset(word for word, why in refused.items() if why is None)
            if refusal is None and not self._handed.gives(value, by, capture.modes, given=accepted):
                reasons = {key: why for key, why in refused.items() if why is not None}
                alone = [
                    why for name, why in reasons.items()
                    if not self._handed.gives(value, by, capture.modes, given=frozenset(refused) - {name})
                ]  # fmt: skip
                refusal = next(iter(alone or reasons.values()))
            yield by.scope.place(value), refusal

    def _is_of(self, value: ast.expr, capture: GraphCapture) -> bool:
        """Return whether steps of the captured modes have one of the members that a value reads, if any."""
        paths = [path_of(node, {}) for node in ast.walk(value) if isinstance(node, ast.Attribute)]
        members = [path[1] for path in paths if len(path) > 1 and path[0] in self._regions.names]
        return not members or any(self._steps(member, capture.modes) for member in members)

    def _refused(self, name: str, capture: GraphCapture) -> Refusal | None:
        """Return why a runner replays no step that gives an argument to a model; None where it may."""
        values = self._given_to_entries(capture.modes).get(name, [])
        lines = [
            self._refusals.of_value(value, visit.scope, capture.runner)
            for visit, value in values
            if not is_none(value)
        ]
        if not lines or not all(lines):
            return None
        return Refusal(f"{capture.runner.node.name} refuses such a step", lines[0])

    def _not_followed(self, owner: Class, capture: GraphCapture) -> Iterator[InputStanding]:
        """Yield a row where a model passes a step to an attribute of which no class was found."""
        for name, member, line in self._regions.find_code(owner, capture.modes, to_bodies=True).unknown[:1]:
            yield InputStanding(
                owner.node.name, name, Standing.NOT_FOLLOWED,
                f"`{name}` is called with the inputs of a step, and its class was not found",
                f"{member}:{line}", kind=InputKind.ATTRIBUTE, member=owner.member, line=line,
            )  # fmt: skip

    @functools.cache  # noqa: B019  # lives as long as the audit of one source
    def _writes(self, name: str) -> tuple[tuple[Scope, ast.expr], ...]:
        """Return where steps give a member: constructors and assignments outside of captures and regions."""
        batch = self._regions.batch
        assert batch is not None
        found: list[tuple[Scope, ast.expr]] = [
            (scope, keyword.value)
            for scope, call in self._constructors
            for keyword in call.keywords
            if keyword.arg == name
        ]
        for scope, written in self._phases.writes_named(name):
            if len(written.path) == 2 and written.how is How.REBOUND and written.value is not None:
                root = written.path[0]
                is_own = root == "self" and scope.owner and self._index.is_a(batch, scope.owner)
                if is_own or root in self._regions.names or root in self._made_in(scope.function):
                    found.append((scope, written.value))
        return tuple(
            (scope, value) for scope, value in found
            if id(scope.function) not in self._outside and id(scope.function) not in self._inside
            and self._phases.find_phase(scope) not in {Phase.BEFORE, Phase.WARM_UP}
            and not any(part in f"/{scope.member}" for part in _NO_GIVERS)
            # What is padded, sliced or moved was given by another statement.
            and not any(isinstance(node, ast.Attribute) and node.attr == name and _is_batch(node, scope)
                        for node in ast.walk(value))
        )  # fmt: skip

    def _made_in(self, function: Function) -> set[str]:
        """Return the names of steps that a function makes."""
        assert self._regions.batch is not None
        return {
            target.id
            for node in walk(function)
            for target, value in assigned(node)
            if isinstance(target, ast.Name) and isinstance(value, ast.Call)
            and ast.unparse(value.func) in {"cls", self._regions.batch.node.name}
        }  # fmt: skip

    @functools.cached_property
    def _constructors(self) -> list[tuple[Scope, ast.Call]]:
        """Return the calls that make the inputs of a step."""
        batch = self._regions.batch
        assert batch is not None
        self._phases.scopes_of(batch.member)  # its calls are known from then on
        calls = [(call.scope, call.node) for call in self._phases.calls_named(batch.node.name)]
        for node in batch.node.body:
            if isinstance(node, ast.FunctionDef):
                scope = Scope(batch.member, batch, node)
                calls += [
                    (scope, inner)
                    for inner in walk(node)
                    if isinstance(inner, ast.Call) and ast.unparse(inner.func) == "cls"
                ]
        return calls

    @functools.cached_property
    def _inside(self) -> frozenset[int]:
        """Return the functions that captured regions run: what they write is there in a replay too."""
        modes = frozenset[str]().union(*(capture.modes for capture in self.captures))
        return frozenset(
            key for owner in self._regions.entries for key in self._regions.find_code(owner, modes).functions
        )

    def _steps(self, name: str, modes: frozenset[str]) -> list[Place]:
        """Return where steps of these modes give a member other than None."""
        key = (name, modes)
        if key not in self._given:
            self._given[key] = [
                scope.place(value)
                for scope, value in self._writes(name)
                if any(inner is value for inner in self._regions.nodes(scope.function, modes))
                and self._handed.gives(value, Visit(scope, frozenset()), modes)
                and not self._of_another_mode(value, scope, modes)
            ]  # fmt: skip
        return self._given[key]

    def _of_another_mode(self, value: ast.expr, scope: Scope, modes: frozenset[str]) -> bool:
        """Return whether a value comes from an object that is given it only for steps of another mode."""
        path = path_of(value, local_paths(scope.function))
        if len(path) != 2 or self._regions.modes is None:
            return False
        holders = self._phases.holders(scope, path) or []
        made = [
            self._modes_made(write.scope.function)
            for holder in holders
            for write in self._phases.writes_to(holder, path[1])
            if write.certain and write.written.value is not None and not is_none(write.written.value)
            and write.how is How.REBOUND
        ]  # fmt: skip
        return bool(made) and all(found and not found & modes for found in made)

    def _modes_made(self, function: Function) -> frozenset[str]:
        modes = self._regions.modes
        assert modes is not None
        return frozenset(
            mode
            for written in writes_of(function)
            if written.path[-1] == modes.field and written.value is not None
            for mode in modes.named(written.value)
        )


def _is_batch(node: ast.Attribute, scope: Scope) -> bool:
    """Return whether an attribute is of the object that a function gives something to."""
    return isinstance(node.value, ast.Name) and any(
        written.path[:1] == (node.value.id,) and written.path[1:] == (node.attr,)
        for written in writes_of(scope.function)
    )


def _entry(visit: Visit) -> Class:
    """Return the model from whose `forward` a call was followed."""
    while visit.caller is not None:
        visit = visit.caller
    assert visit.scope.owner is not None
    return visit.scope.owner


_NO_GIVERS = (DRAFTERS, "/layers/")
"""Drafters give to models of their own; layers and their backends run inside of a capture as in a step."""
_WORST = {standing: at for at, standing in enumerate(Standing)}
