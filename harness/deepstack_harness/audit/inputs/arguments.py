"""Optional arguments of compiled classes, followed back through the calls to what decides their presence."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from deepstack_harness.audit.inputs.calls import argument, optional
from deepstack_harness.audit.inputs.conditions import Known, Presence, join
from deepstack_harness.audit.inputs.evaluation import Callers, PresenceOf
from deepstack_harness.audit.inputs.index import Class
from deepstack_harness.audit.inputs.phases import CallSite
from deepstack_harness.audit.inputs.rows import InputChange, InputSeen, InputStanding, Place, Standing
from deepstack_harness.audit.inputs.writes import assigned, walk
from deepstack_harness.engines.kinds.vllm import RUNNER_INPUTS
from deepstack_harness.engines.syntax import Function

_SEEN = {
    Presence.ALWAYS: (InputSeen.GIVEN, InputSeen.GIVEN),
    Presence.NEVER: (InputSeen.NONE, InputSeen.NONE),
    Presence.FIXED: (InputSeen.FIXED, InputSeen.FIXED),
    Presence.VARIES: (InputSeen.UNKNOWN, InputSeen.EITHER),
    Presence.UNKNOWN: (InputSeen.UNKNOWN, InputSeen.UNKNOWN),
}
"""What the warm-up and later steps see of an input with each presence."""


class Arguments:
    """The standings of the optional arguments of compiled classes."""

    def __init__(self, calls: Callers, unread: Sequence[str]) -> None:
        """Follow `calls`, which has the index of the source; `unread` is of `RunnerInputs.not_read_in`."""
        self._calls, self._index, self._unread = calls, calls.index, unread

    def of_class(self, owner: Class) -> Iterator[InputStanding]:
        """Yield the standing of each optional argument of the `forward` of a class."""
        forward = self._index.method(owner, "forward")
        if forward is None:
            place = Place(owner.member, owner.node.lineno, owner.node.name)
            yield InputStanding(
                owner.node.name, "forward", Standing.NOT_FOLLOWED, "its forward was not found", str(place),
                member=owner.member, line=owner.node.lineno,
            )  # fmt: skip
            return
        calls = self._calls.calls.calls(owner)
        for name in optional(forward[1]):
            given = [(site, value) for site in calls if (value := argument(site.node, forward[1], name))]
            yield self._row(owner, forward, name, self._known(forward, name, calls, given), given)

    def _known(
        self,
        forward: tuple[Class, Function],
        name: str,
        calls: Sequence[CallSite],
        given: Sequence[tuple[CallSite, ast.expr]],
    ) -> Known:
        """Return what is known of an argument from the calls of a class; `given` are those that give it."""
        if name in RUNNER_INPUTS.names:
            return self._of_every_class(name)
        if not calls:
            unknown = Known(Presence.UNKNOWN, "no call of the class was found")
            return self._calls.from_runner(name) or unknown
        if not given:
            return Known(Presence.NEVER, "no call gives it")
        known = self._over_stages(given, forward, name)
        others = [site for site in calls if all(site is not giver for giver, _ in given)]
        if others and known.presence is Presence.ALWAYS:
            where = str(others[0].scope.place(others[0].node))
            return Known(Presence.FIXED, "another call leaves it out", where)
        return known

    def _of_every_class(self, name: str) -> Known:
        """Return what is known of an argument that the runner gives to every model.

        That was read in functions with other texts than those of this source, where `unread` has some: there
        the runner's own files are followed.
        """
        why = "the runner decides it for a model and a rank, in the profile run as in steps"
        if not self._unread:
            return Known(Presence.FIXED, f"{why}: its functions are those of {RUNNER_INPUTS.releases}")
        followed = self._calls.from_runner(name)
        if followed is not None and followed.presence is Presence.VARIES:
            return followed
        functions = ", ".join(self._unread)
        why = f"{why} of {RUNNER_INPUTS.releases}; not read here: the text of {functions}"
        return Known(Presence.FIXED, why)

    def _row(
        self,
        owner: Class,
        forward: tuple[Class, Function],
        name: str,
        known: Known,
        given: Sequence[tuple[CallSite, ast.expr]],
    ) -> InputStanding:
        """Return the row of an argument of which this is known."""
        standing = {
            Presence.VARIES: Standing.AT_RISK, Presence.UNKNOWN: Standing.NOT_FOLLOWED,
        }.get(known.presence, Standing.SAME)  # fmt: skip
        why = known.why or {
            Presence.ALWAYS: "always given", Presence.NEVER: "never given",
        }.get(known.presence, "decided by the configuration, before the first call")  # fmt: skip
        where = known.where or f"{forward[0].member}:{forward[1].lineno}"
        if standing is Standing.AT_RISK and "encoder" in known.why and (flag := self._guard(owner)):
            standing, why, where = Standing.GUARDED, f"{known.why}; {flag[0]}", flag[1]
        warm_up, steps = _SEEN[known.presence]
        return InputStanding(
            owner.node.name, name, standing, why, where,
            member=owner.member, line=forward[1].lineno,
            warm_up=known.warm_up if known.presence is Presence.VARIES else warm_up,
            steps=InputSeen.NONE if known.change is InputChange.LOST else steps,
            change=known.change or (InputChange.PRESENCE if known.presence is Presence.VARIES else None),
            writers=tuple(site.scope.place(value) for site, value in given),
        )  # fmt: skip

    def _over_stages(
        self, given: Sequence[tuple[CallSite, ast.expr]], forward: tuple[Class, Function], name: str
    ) -> Known:
        """Return what is known over all calls and pipeline stages."""
        by_stage = {
            stage: join(
                [
                    PresenceOf(self._calls, site.scope, site.node, stage).find_presence(value)
                    for site, value in given
                ]
            )
            for stage in ("first", "later")
        }
        first, later = by_stage["first"], by_stage["later"]
        if later.presence is Presence.NEVER and first.presence is not Presence.NEVER:
            received = _received_under(forward[1], name)
            if received is not None:
                return Known(
                    Presence.VARIES,
                    f"it is None on later pipeline ranks, where forward takes it from the rank before only "
                    f"if it is given (line {received})",
                    f"{forward[0].member}:{received}",
                    InputSeen.NONE,
                    InputChange.LOST,
                )
        return join([first, later])

    def _guard(self, owner: Class) -> tuple[str, str] | None:
        """Return how the engine avoids the graph: the flag by which a step runs the region uncompiled."""
        if b"encoder" not in self._index.text[owner.member]:
            return None
        for member, content in self._index.text.items():
            if b"skip_compiled=" in content:
                line = content[: content.index(b"skip_compiled=")].count(b"\n") + 1
                return "a step with encoder inputs runs uncompiled (skip_compiled)", f"{member}:{line}"
        return None


def _received_under(forward: Function, name: str) -> int | None:
    """Return the line where forward takes an input from the stage before only if the caller gave one."""
    for node in walk(forward):
        if isinstance(node, ast.If) and ast.unparse(node.test) == f"{name} is not None":
            for inner in node.body:
                for target, value in assigned(inner):
                    is_input = isinstance(target, ast.Name) and target.id == name and value is not None
                    if is_input and "intermediate_tensors" in ast.unparse(inner):
                        return node.lineno
    return None
