"""Attributes that a compiled region reads, and that something outside of the region writes.

A region is the `forward` of a class, and what it calls in the class and in the objects that it holds, as far
as their classes are known.  A write into the storage of a tensor is seen by a graph; another object in its
place is not, unless the warm-up finds it as later steps do.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from deepstack_harness.audit.inputs.index import Class, is_none
from deepstack_harness.audit.inputs.phases import Phase, Phases, Write
from deepstack_harness.audit.inputs.rows import (
    InputChange,
    InputKind,
    InputSeen,
    InputStanding,
    Standing,
)
from deepstack_harness.audit.inputs.writes import (
    How,
    Path,
    local_paths,
    path_of,
    values_of_names,
    walk,
)
from deepstack_harness.engines.syntax import Function


class AttributeRead(NamedTuple):
    """An attribute of objects of a class that a region reads, and the first line that does."""

    owner: Class
    name: str
    member: str
    line: int


class _Verdict(NamedTuple):
    """What one write does to a reader."""

    standing: Standing
    why: str
    change: InputChange | None = None
    steps: InputSeen = InputSeen.GIVEN


_SCALAR_CALLS = frozenset({"len", "int", "bool", "float", "str", "min", "max", "sum", "any", "all"})


class ReadAttributes:
    """The standings of the attributes that compiled regions read."""

    def __init__(self, phases: Phases) -> None:
        """Follow the writes of `phases`, which has the index of the source."""
        self._phases, self._index = phases, phases.index
        self._known: dict[tuple[int, str], tuple[Write, ...]] = {}

    def of_class(self, owner: Class) -> Iterator[InputStanding]:
        """Yield a row for each attribute that the region of a class reads and something outside of it writes.

        Attributes that only `__init__` and what it calls write have no row.
        """
        found = self._index.method(owner, "forward")
        if found is None:
            return
        readings, scopes, holders = self._region(owner)
        for reading in readings:
            writes = [
                write for write in self._writes(reading.owner, reading.name)
                if id(write.scope.function) not in scopes and self._leads_here(write, owner, holders)
            ]  # fmt: skip
            later = [write for write in writes if not self._is_making(write)]
            if later:
                yield self._row(owner, reading, writes, later)

    def _writes(self, owner: Class, name: str) -> Sequence[Write]:
        key = (id(owner.node), name)
        if key not in self._known:
            self._known[key] = tuple(self._phases.writes_to(owner, name))
        return self._known[key]

    def _leads_here(self, write: Write, owner: Class, holders: frozenset[int]) -> bool:
        """Return whether the path of a write leads to an object of the region, not to one of another model.

        It begins in the region, or the class of the region is on the way.
        """
        path, begin = write.written.path, write.scope.owner
        is_followed = len(path) > 2 and path[0] == "self" and self._phases.holders(write.scope, path)
        if begin is None or not is_followed:
            return True
        if id(begin.node) in holders or any(id(base.node) in holders for base in self._index.order(begin)):
            return True
        return any(
            self._index.related(holder, owner)
            for end in range(2, len(path) + 1)
            for holder in self._phases.holders(write.scope, path[:end]) or ()
        )

    def _is_making(self, write: Write) -> bool:
        """Return whether a write makes the object: in `__init__`, or in what only it calls."""
        return write.scope.function.name in {"__init__", "__post_init__", "__new__"}

    def _region(self, owner: Class) -> tuple[list[AttributeRead], frozenset[int], frozenset[int]]:
        """Return what the region of a class reads, its functions, and the classes that they are called of."""
        todo: list[tuple[Class, str]] = [(owner, "forward")]
        asked: set[tuple[int, str]] = set()
        readings: dict[tuple[int, str], AttributeRead] = {}
        scopes: set[int] = set()
        while todo:
            holder, name = todo.pop()
            found = self._index.method(holder, name)
            if (id(holder.node), name) in asked or found is None:
                continue
            asked.add((id(holder.node), name))
            definer, function = found
            scopes.add(id(function))
            local = local_paths(function)
            for node in walk(function):
                match node:
                    case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(), *_]):
                        path = path_of(node, local)
                    case ast.Attribute(ctx=ast.Load()):
                        path = path_of(node, local)
                    case ast.Call(func=func):
                        path = path_of(func, local)
                        if len(path) > 1 and path[0] == "self":
                            todo += self._called(holder, path)
                        continue
                    case _:
                        continue
                if len(path) < 2 or path[0] != "self":
                    continue
                for target, attribute in self._read(holder, path):
                    key = (id(target.node), attribute)
                    if self._index.method(target, attribute) is not None:
                        todo.append((target, attribute))  # a property, or a method that a call is made of
                    elif key not in readings:
                        readings[key] = AttributeRead(target, attribute, definer.member, node.lineno)
        return list(readings.values()), frozenset(scopes), frozenset(key for key, _ in asked)

    def _called(self, holder: Class, path: Path) -> Iterator[tuple[Class, str]]:
        """Yield the methods that a call of a path runs; an object that is called runs its `forward`."""
        holders = [holder]
        for name in path[1:-1]:
            holders = [part for owner in holders for part in self._index.parts(owner, name)]
        for owner in holders:
            if self._index.method(owner, path[-1]) is not None:
                yield owner, path[-1]
            else:
                yield from ((part, "forward") for part in self._index.parts(owner, path[-1]))

    def _read(self, holder: Class, path: Path) -> Iterator[tuple[Class, str]]:
        """Yield the attributes that a path reads, those on the way included."""
        holders = [holder]
        for name in path[1:]:
            yield from ((owner, name) for owner in holders)
            holders = [part for holder in holders for part in self._index.parts(holder, name)]

    def _row(
        self, owner: Class, reading: AttributeRead, writes: Sequence[Write], later: Sequence[Write]
    ) -> InputStanding:
        """Return the row of an attribute that is written after it was made."""
        begins = [
            write
            for write in writes
            if self._is_making(write) or self._phases.find_phase(write.scope) is Phase.BEFORE
        ]
        values = [write.written.value for write in begins] + [
            made.value
            for made in self._index.assignments(reading.owner, reading.name)
            if made.function is None and made.value is not None
        ]
        order = {standing: at for at, standing in enumerate(Standing)}
        judged = [(self._judge(write, values, reading), write) for write in later]
        (worst, write) = min(judged, key=lambda verdict: order[verdict[0].standing])
        warm_up = _seen(values)
        return InputStanding(
            owner.node.name, reading.name, worst.standing, worst.why, write.where,
            kind=InputKind.ATTRIBUTE, member=owner.member, line=reading.line, warm_up=warm_up,
            steps=worst.steps, change=worst.change,
            writers=tuple(
                write.scope.place(write.written.line)
                for verdict, write in judged if verdict.standing is worst.standing
            ),
            read_by=reading.owner.node.name,
        )  # fmt: skip

    def _judge(self, write: Write, values: Sequence[ast.expr | None], reading: AttributeRead) -> _Verdict:
        """Return what a write after `__init__` does to the region; `values` are those of `__init__`."""
        name, function = f"`{reading.name}`", write.scope.function.name
        phase = self._phases.find_phase(write.scope)
        if phase and not phase & Phase.STEP:
            when = "before the first call" if phase is Phase.BEFORE else "in the warm-up alone"
            return _Verdict(Standing.SAME, f"{name} is written {when}, by {function}")
        if _in_place(write, values):
            why = f"{name} is written in place by {function}"
            return _Verdict(Standing.SAME, why, steps=InputSeen.IN_PLACE)
        if not phase:
            why = f"{name} is written by {function}, of which no caller was found"
            return _Verdict(Standing.NOT_FOLLOWED, why, steps=InputSeen.UNKNOWN)
        if not write.certain:
            why = f"{name} of an object of unknown class is written by {function}"
            return _Verdict(Standing.NOT_FOLLOWED, why, steps=InputSeen.UNKNOWN)
        return self._rebound(write, values, name, Phase.WARM_UP in phase)

    def _rebound(self, write: Write, values: Sequence[ast.expr | None], name: str, seen: bool) -> _Verdict:
        """Return what another object in its place does; `seen`: the warm-up runs the writer too."""
        value, function = write.written.value, write.scope.function.name
        constants = [expression.value for expression in values if isinstance(expression, ast.Constant)]
        same = isinstance(value, ast.Constant) and all(
            type(constant) is type(value.value) and constant == value.value for constant in constants
        )
        if same and constants and len(constants) == len(values):
            return _Verdict(Standing.SAME, f"{name} is given the same value again by {function}")
        begins = _seen(values)
        if write.how in {How.CONTENTS, How.ITEM}:
            why = f"members of {name} change in {function}"
            if seen:
                return _Verdict(Standing.SAME, f"{why}, which the warm-up runs too")
            return _Verdict(
                Standing.AT_RISK,
                f"{why}, which the warm-up does not run",
                InputChange.PRESENCE,
                InputSeen.CHANGED,
            )
        if _is_scalar(value, values):
            return _Verdict(
                Standing.AT_RISK, f"{name} is a Python value that {function} changes", InputChange.VALUE,
                InputSeen.CHANGED,
            )  # fmt: skip
        if seen:
            if _is_fresh(value, write.scope.function):
                why = f"{function} puts a new tensor in {name} each time, which a captured graph does not see"
                return _Verdict(Standing.AT_RISK, why, InputChange.STORAGE, InputSeen.CHANGED)
            return _Verdict(Standing.SAME, f"{name} is written by {function}, which the warm-up runs too")
        if begins is InputSeen.NONE or is_none(value) or write.how is How.DELETED or not values:
            was = "None" if begins is InputSeen.NONE else "absent" if not values else "given"
            why = f"{name} is {was} until {function} writes it"
            return _Verdict(Standing.AT_RISK, why, InputChange.PRESENCE, InputSeen.EITHER)
        why = f"{function} puts another object in the place of {name}, which the warm-up does not see"
        return _Verdict(Standing.AT_RISK, why, InputChange.STORAGE, InputSeen.CHANGED)


def _seen(values: Sequence[ast.expr | None]) -> InputSeen:
    """Return what a reader finds after `__init__`."""
    none = [is_none(value) for value in values]
    if not values or all(none):
        return InputSeen.NONE
    return InputSeen.FIXED if any(none) else InputSeen.GIVEN


def _in_place(write: Write, values: Sequence[ast.expr | None]) -> bool | None:
    """Return whether a write goes into the storage of a tensor."""
    if write.how is How.IN_PLACE:
        return True
    if write.how is How.AUGMENTED:  # of a tensor, as far as the text of its value shows
        calls = [ast.unparse(value.func) for value in values if isinstance(value, ast.Call)]
        return any(text.startswith(("torch.", "nn.", "self.register_")) for text in calls)
    if write.how is How.ITEM:
        return not any(
            isinstance(value, ast.List | ast.Dict | ast.ListComp | ast.DictComp) for value in values
        )
    return False


def _is_scalar(value: ast.expr | None, values: Sequence[ast.expr | None]) -> bool:
    """Return whether a value is a number, a word or a truth, by itself or by those of `__init__`."""
    for operand in (value, *values):
        match operand:
            case ast.Constant(value=constant) if constant is not None:
                return True
            case ast.Compare() | ast.BoolOp() | ast.JoinedStr() | ast.UnaryOp(op=ast.Not()):
                return True
            case ast.Call(func=ast.Name(id=name)) if name in _SCALAR_CALLS:
                return True
    return False


def _is_fresh(value: ast.expr | None, function: Function) -> bool:
    """Return whether a value is a tensor that is made where it is assigned."""
    match value:
        case ast.Name():
            values = values_of_names(value, function)
            return any(
                _is_fresh(operand, function) for operand in values if not isinstance(operand, ast.Name)
            )
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"))):
            return True
        case ast.Call(func=ast.Attribute(attr=method)):
            return method in {"clone", "contiguous", "new_zeros", "new_empty", "new_tensor"}
    return False
