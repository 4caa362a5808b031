"""The `forward` of a region for one input that is at risk, made by importing the package of its source.

The class whose `forward` the region runs is the imported one, and so are those of the parts that it passes
the input to: whether a part can do without the input is decided by the part's own code.  All other parts are
stand-ins.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import FunctionType, ModuleType
from typing import TypeVar

from torch import nn

from deepstack_harness.audit.inputs.rows import InputChange, InputKind, InputStanding, Place
from deepstack_harness.audit.inputs.writes import defaults_of
from deepstack_harness.engines.bound_class import ForwardClass
from deepstack_harness.engines.carriers import FORWARD
from deepstack_harness.engines.engine import Overlay, StoredPayload
from deepstack_harness.engines.kinds.sglang_stand_ins import STAND_INS as SGLANG_STAND_INS
from deepstack_harness.engines.known import engine_of
from deepstack_harness.engines.load import LoadedSource
from deepstack_harness.engines.loaded_class import derive_with_functions, forward_classes, functions_in
from deepstack_harness.engines.model_class import BY_FORWARD, PLAIN_PARTS, ModelClass
from deepstack_harness.engines.stand_ins import FORWARD_STAND_INS
from deepstack_harness.engines.stubs import is_stub
from deepstack_harness.engines.syntax import (
    Function,
    arguments_of,
    class_named,
    parameters_of,
    parse,
    reads,
)
from deepstack_harness.engines.text_decoder import TextHost
from deepstack_harness.engines.text_model import ONLY_FORWARD, Attributes, attributes_of
from deepstack_harness.errors import Reason, SourceError, UsageError

N = TypeVar("N", bound=ast.AST)
_DEEPEST = 3
"""Parts within parts whose own `forward` is run."""
_MOST_PARTS = 40
"""Classes of parts that are searched for the one that reads an attribute."""


class PipelineStage:
    """The pipeline stage that a region runs as; one for the process, which is no state of a region."""

    is_first_rank = True
    is_last_rank = True
    rank_in_group = 0
    world_size = 1
    passed: object = None
    """What the first of two stages has passed on."""

    def __deepcopy__(self, _: object) -> "PipelineStage":
        return self


STAGE = PipelineStage()
_STAND_INS: Mapping[str, object] = {**SGLANG_STAND_INS, **FORWARD_STAND_INS, "get_pp_group": lambda: STAGE}


@dataclass(frozen=True)
class LoadedRegion:
    """The `forward` of an imported class, over stand-ins for its parts, and how it uses the input `name`.

    `functions` are the statements of `forward` and of what it calls on its object, each with its file.
    `keys` are the texts by which members of the input are looked up, `numbered` the beginnings of texts that
    end in a number. `uses` are the lines that read the input, FILE:LINE.  `initial` is the expression that
    `__init__` assigns to the attribute that is tried, None where there is none.  `parts` are made too, by the
    attributes that hold them.
    """

    made: type[TextHost]
    functions: Mapping[Function, str]
    forward: Function
    name: str = ""
    keys: tuple[str, ...] = ()
    numbered: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    initial: ast.expr | None = None
    parts: Mapping[str, "LoadedRegion"] = field(default_factory=dict)

    @property
    def place(self) -> Reason:
        """The file and the line of the `forward`."""
        return Reason("", self.functions[self.forward], self.forward.lineno)

    @cached_property
    def attributes(self) -> Attributes:
        """The way in which the functions use the attributes of their object; see `attributes_of`."""
        return attributes_of([*self.functions])

    @cached_property
    def complete(self) -> Attributes:
        """The same for an object that has the parts which may be missing."""
        return attributes_of([*self.functions], complete=True)

    @cached_property
    def annotations(self) -> dict[str, str]:
        """The annotations of the arguments."""
        return {
            parameter.arg: ast.unparse(parameter.annotation)
            for parameter in parameters_of(self.forward)[1:]
            if parameter.annotation
        }


@dataclass(frozen=True)
class LoadedCaller:
    """A class `of` whose `forward` calls a region, and its call of the region.

    The region is at `path` below the caller, and takes the input as `parameter`, the one at `position`.
    `initial` has the attributes that `forward` reads and `__init__` assigns a literal to.  `where` is the
    place of the call.  `whole` is the class with its `embed_input_ids` and what its `__init__` allocates, in
    each way in which it can be made so.
    """

    of: LoadedRegion
    path: tuple[str, ...]
    parameter: str
    position: int
    where: str
    initial: Mapping[str, object]
    whole: tuple[ForwardClass, ...] = ()

    @property
    def is_known(self) -> bool:
        """True where every attribute that is read, and is no part, begins as a known literal."""
        read = self.of.attributes
        paths = (*read.numbers, *read.tested, *read.sequences, *read.first, *read.last)
        return {path[0] for path in paths} <= self.initial.keys()


class RegionMaker:
    """Makes the regions of one source, and those who call them."""

    def __init__(self, loaded: LoadedSource) -> None:
        """Take the package of a source, as it is imported in this process."""
        self.loaded = loaded
        engine = engine_of(loaded.source)
        # One that stores no payload, such as SGLang, has no model files of its own.
        stores = isinstance(engine.payload, StoredPayload | Overlay)
        self._known = engine.files.known if stores else ()
        parts = engine.files.parts if stores else PLAIN_PARTS
        self._parts = replace(parts, stand_ins={**parts.stand_ins, **_STAND_INS})
        loaded.absent.values.update(parts.libraries)

    def region(self, wanted: InputStanding) -> LoadedRegion:
        """Return the region of an input: the class that reads it, which may be that of a part.

        Raises `UsageError`, with file and line, for a class that cannot be made.
        """
        cls = self._class(wanted.member, wanted.model_class)
        if wanted.is_attribute and wanted.read_by:
            cls = self._reader(cls, wanted)
        return self._region(cls, wanted.name, wanted.kind, _DEEPEST)

    def callers(self, wanted: InputStanding, region: LoadedRegion) -> list[LoadedCaller]:
        """Return the classes whose `forward` passes the input to the region.

        None of them where one cannot be made, or has attributes of which the first values are not known.
        """
        by_argument = wanted.kind is InputKind.ARGUMENT and wanted.change is InputChange.PRESENCE
        places = [place for place in wanted.writers if by_argument and place.function == FORWARD]
        callers = []
        for place in places:
            with suppress(UsageError):
                callers.append(self._caller(place, region))
        known = [caller for caller in callers if caller is not None and (caller.is_known or caller.whole)]
        return known if len(known) == len(places) else []

    def is_refusal(self, file: str, line: int, name: str, text: str) -> bool:
        """Return whether an error came from a `raise` or `assert`, or from None in the place of an input."""
        member = self.loaded.member_of(file)
        if member is None:
            return False
        source = self.loaded.read(member)
        refusing = (node for node in ast.walk(parse(source)) if isinstance(node, ast.Raise | ast.Assert))
        if any(node.lineno <= line <= (node.end_lineno or node.lineno) for node in refusing):
            return True
        return (
            "NoneType" in text and re.search(rf"\b{name}\b", source.text.splitlines()[line - 1]) is not None
        )

    def _class(self, member: str, name: str) -> type:
        node = class_named(self.loaded.read(member), name)
        cls = self.loaded.named(member, name)
        if not isinstance(cls, type):
            raise SourceError(Reason(f"not driven: {name} is no class", member, node.lineno))
        return cls

    def _model(self, cls: type) -> ModelClass:
        return ModelClass(
            self.loaded.by_name(cls.__module__) or cls.__module__, cls.__name__, "", parts=self._parts
        )

    def _forward(self, cls: type) -> LoadedRegion:
        """Return the `forward` of a class, in a class that has only the members which it reads.

        An engine puts more around a class that it compiles: a `__call__` of its own, and bases that lead to
        all of its package, whose state nobody can put back before each run.
        """
        made, functions = derive_with_functions(self.loaded, self._model(cls), ONLY_FORWARD, TextHost)
        forward = next(node for node in functions if node.name == FORWARD)
        made.__call__ = nn.Module.__call__  # type: ignore[method-assign]  # a class that nothing else derives from
        if any(
            isinstance(inner, ast.Name) and inner.id == "super"
            for node in functions
            for inner in ast.walk(node)
        ):
            return LoadedRegion(made, functions, forward)
        read = {FORWARD, *(name.removeprefix("self.") for node in functions for name in reads(node))}
        members: dict[str, object] = {"__module__": made.__module__}
        for owner in reversed(cls.__mro__):
            if self.loaded.by_name(owner.__module__):
                members |= {name: value for name, value in vars(owner).items() if name in read}
        return LoadedRegion(type(made.__name__, (TextHost,), members), functions, forward)

    def _region(self, cls: type, name: str, kind: InputKind, depth: int) -> LoadedRegion:
        loaded = self._forward(cls)
        functions = loaded.functions
        is_attribute = kind is InputKind.ATTRIBUTE
        read = f"self.{name}" if is_attribute else name
        parts = {} if is_attribute or not depth else dict(self._parts_of(cls, functions, name, depth))
        keys, numbered = _looked_up([*functions], read)
        return replace(
            loaded, name=name, keys=keys, numbered=numbered, uses=tuple(_lines_reading(functions, read)),
            initial=self._initial(cls, name) if is_attribute else None, parts=parts,
        )  # fmt: skip

    def _reader(self, region: type, wanted: InputStanding) -> type:
        """Return the class of a part that is named; the region itself where it or a base has that name."""
        name = wanted.read_by
        if any(base.__name__ == name for base in region.__mro__):
            return region
        todo, seen = [region], {region}
        while todo and len(seen) < _MOST_PARTS:
            for node, names in self._in_init(todo.pop(0), ast.Name):
                made = names.get(node.id)
                if not isinstance(made, type) or made in seen or self.loaded.by_name(made.__module__) is None:
                    continue
                if made.__name__ == name:
                    return made
                seen.add(made)
                todo.append(made)
        text = f"{region.__name__} makes no part of class {name}, which reads it, as far as names show"
        raise SourceError(Reason(text, wanted.member, wanted.line))

    def _caller(self, place: Place, region: LoadedRegion) -> LoadedCaller | None:
        """Return the class whose statement at a place calls a region; None where no part is called there."""
        cls = self._class(place.member, place.model_class)
        loaded = self._forward(cls)
        calls = (node for node in ast.walk(loaded.forward) if isinstance(node, ast.Call))
        of_parts = (call for call in calls if re.fullmatch(r"self(\.\w+)+", ast.unparse(call.func)))
        call = next((call for call in of_parts if call.lineno <= place.line <= (call.end_lineno or 0)), None)
        if call is None:
            return None
        read = loaded.attributes
        names = {path[0] for path in (*read.numbers, *read.tested, *read.sequences)}
        initial = {name: value for name in names for value in _literal(self._initial(cls, name))}
        known = (member for member in self._known if member.class_name == cls.__name__)
        model = replace(next(known, self._model(cls)), member=place.member, parts=self._parts)
        path = tuple(ast.unparse(call.func).removesuffix(".forward").split(".")[1:])
        position = arguments_of(region.forward).index(region.name)
        whole = tuple(forward_classes(self.loaded, model, BY_FORWARD))
        return LoadedCaller(
            loaded, path, region.name, position, f"{place.member}:{call.lineno}",
            initial, whole,
        )  # fmt: skip

    def _parts_of(
        self, cls: type, functions: Mapping[Function, str], name: str, depth: int
    ) -> Iterator[tuple[str, LoadedRegion]]:
        """Yield the parts that the input is passed to by its name, and that may do without it."""
        for call in (node for function in functions for node in ast.walk(function)):
            match call:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=part)):
                    made = self._made(cls, part)
                    inner = made and next((node for node, _ in self._functions(made, FORWARD)), None)
                    handed = _bound_name(call, inner, name) if inner else None
                    if made is not None and handed:
                        with suppress(UsageError):
                            yield part, self._region(made, handed, InputKind.ARGUMENT, depth - 1)

    def _made(self, cls: type, part: str) -> type | None:
        """Return the class of the source of which `self.part = Class(..)` in an `__init__` makes a part."""
        for node, names in self._in_init(cls, ast.Assign):
            match node:
                case ast.Assign(
                    targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=ast.Call(func=func)
                ) if name == part:
                    made = _value(func, names)
                    if isinstance(made, type) and self.loaded.by_name(made.__module__):
                        return made
        return None

    def _initial(self, cls: type, name: str) -> ast.expr | None:
        """Return the expression that the first `__init__` which sets an attribute assigns to it."""
        for node, _ in self._in_init(cls, ast.stmt):
            match node:
                case ast.Assign(
                    targets=[ast.Attribute(value=ast.Name(id="self"), attr=attr)], value=value
                ) if attr == name:
                    return value
                case ast.AnnAssign(
                    target=ast.Attribute(value=ast.Name(id="self"), attr=attr), value=ast.expr() as value
                ) if attr == name:
                    return value
        return None

    def _in_init(self, cls: type, kind: type[N]) -> Iterator[tuple[N, Mapping[str, object]]]:
        """Yield the nodes of a kind in each `__init__` of a class, with the names of its module."""
        for node, function in self._functions(cls, "__init__"):
            for inner in ast.walk(node):
                if isinstance(inner, kind):
                    yield inner, function.__globals__

    def _functions(self, cls: type, name: str) -> Iterator[tuple[Function, FunctionType]]:
        """Yield the functions of a method of a class, and of each base, that have a statement."""
        for owner in cls.__mro__:
            for function in functions_in(vars(owner).get(name)):
                if node := self.loaded.statement_of(function):
                    yield node, function


def _value(node: ast.expr, names: Mapping[str, object]) -> object:
    """Return what a name, or a name of a module, is."""
    match node:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Attribute(value=inner, attr=name):
            module = _value(inner, names)
            return vars(module).get(name) if isinstance(module, ModuleType) and not is_stub(module) else None
    return None


def _literal(value: ast.expr | None) -> Iterator[object]:
    """Yield the value of a literal."""
    with suppress(ValueError):
        if value is not None:
            yield ast.literal_eval(value)


def required_of(function: Function) -> list[str]:
    """Return the arguments of a method that have no default."""
    return [name for name, default in [*defaults_of(function).items()][1:] if default is None]


def _bound_name(call: ast.Call, forward: Function, name: str) -> str | None:
    """Return the optional parameter of an inner `forward` that a call gives the input for."""
    names, needed = arguments_of(forward), set(required_of(forward))
    given = [(keyword.arg, keyword.value) for keyword in call.keywords]
    given += zip(names, call.args, strict=False)
    for parameter, value in given:
        if isinstance(value, ast.Name) and value.id == name and parameter in set(names) - needed:
            return parameter
    return None


def _looked_up(functions: Sequence[Function], read: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the texts that members of the input are looked up by, and what numbered ones begin with."""
    keys: list[str] = []
    numbered: list[str] = []
    for node in (below for function in functions for below in ast.walk(function)):
        match node:
            case ast.Subscript(value=inner, slice=ast.Constant(value=str(key))) if _is_of(inner, read):
                keys.append(key)
            case ast.Compare(left=ast.Constant(value=str(key)), comparators=[inner]) if _is_of(inner, read):
                keys.append(key)
            case ast.Call(
                func=ast.Attribute(value=inner, attr="get"), args=[ast.Constant(value=str(key)), *_]
            ) if _is_of(inner, read):
                keys.append(key)
            case ast.JoinedStr(values=[ast.Constant(value=str(key)), ast.FormattedValue()]):
                numbered.append(key)
    return tuple(dict.fromkeys(keys)), tuple(dict.fromkeys(numbered))


def _is_of(node: ast.expr, read: str) -> bool:
    text = ast.unparse(node)
    return text in (read, f"{read}.tensors")


def _lines_reading(functions: Mapping[Function, str], read: str) -> list[str]:
    """Return the lines that read a name, FILE:LINE; a `del` reads nothing, a test for None does."""
    lines = {
        (member, node.lineno)
        for function, member in functions.items()
        for node in ast.walk(function)
        if isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and ast.unparse(node) == read
    }
    return [f"{member}:{line}" for member, line in sorted(lines)]
