"""Cut the `forward` of a region for one input that is at risk; no torch, and nothing of the source runs.

The class whose `forward` the region runs is cut, and the classes of the parts that it hands the input to:
whether a part can do without the input is decided by the part's own code.  All other parts are stand-ins.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from deepstack_harness.engines.carriers import FORWARD
from deepstack_harness.engines.cut_model import BY_FORWARD, ModelClass, ModelCut, cut_model
from deepstack_harness.engines.known import engine_of
from deepstack_harness.engines.lineage import Defined, SourceNames, names_of
from deepstack_harness.engines.syntax import Function, class_named, own_members
from deepstack_harness.engines.text_model import TextCut, arguments_of, cut_forward
from deepstack_harness.errors import Reason, SourceError, UsageError
from deepstack_harness.sources.source import Source

_DEEPEST = 3
"""Parts within parts whose own `forward` is run."""
_MOST_PARTS = 40
"""Classes of parts that are searched for the one that reads an attribute."""


@dataclass(frozen=True)
class RegionCut:
    """The `forward` of a region or of one of its parts, and how it uses the input.

    `parameters` are in their order, with `annotations`; `required` has those without a default.  `keys`
    are the texts by which members of the input are looked up, `numbered` the beginnings of texts that end
    in a number. `uses` are the lines that read the input, FILE:LINE.  `refusals` are the files and lines
    of `raise` and `assert`, those of its parts too.  `initial` is the expression that `__init__` assigns
    to an attribute that is driven, None where there is none.  `parts` are cut too, by the attributes that
    hold them.
    """

    text: TextCut
    parameters: tuple[str, ...]
    annotations: Mapping[str, str]
    required: tuple[str, ...]
    keys: tuple[str, ...] = ()
    numbered: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    refusals: frozenset[tuple[str, int]] = frozenset()
    initial: ast.expr | None = None
    parts: Mapping[str, "RegionCut"] = field(default_factory=dict)
    carrier: str = ""

    @property
    def class_name(self) -> str:
        """The class that defines the `forward`."""
        return self.text.model.cut.class_name

    @property
    def filename(self) -> str:
        """The file of the class, as tracebacks show it."""
        return self.text.model.cut.filename


@dataclass(frozen=True)
class CallerCut:
    """The `forward` of a class that calls a region, cut, and its call of the region.

    The region is at `path` below the caller, and takes the input as `parameter`, the one at `position`.
    `initial` has the attributes that `forward` reads and `__init__` assigns a literal to.  `line` is that of
    the call.  `whole` is the class cut with its `embed_input_ids` and what its `__init__` allocates, where it
    can be cut so.
    """

    text: TextCut
    required: tuple[str, ...]
    path: tuple[str, ...]
    parameter: str
    position: int
    line: int
    initial: Mapping[str, object]
    whole: ModelCut | None = None

    @property
    def where(self) -> str:
        """The place of the call, FILE:LINE."""
        return f"{self.text.model.model.member}:{self.line}"

    @property
    def is_known(self) -> bool:
        """True where every attribute that is read, and is no part, begins as a known literal."""
        read = self.text.attributes
        paths = (*read.numbers, *read.tested, *read.sequences, *read.first, *read.last)
        return {path[0] for path in paths} <= self.initial.keys()


def cut_caller(
    source: Source, member: str, class_name: str, line: int, region: RegionCut
) -> CallerCut | None:
    """Cut the `forward` of a class whose statement at `line` hands the input to a region.

    None where no call of a part stands there.  Raises what `cut_region` raises.
    """
    file = source.read(member)
    return _Cutter(source).cut_caller(Defined(member, file, class_named(file, class_name)), line, region)


def cut_region(
    source: Source,
    member: str,
    class_name: str,
    name: str,
    *,
    attribute: bool = False,
    field_of_step: bool = False,
    read_by: str = "",
) -> RegionCut:
    """Cut the `forward` of a class, its own or an inherited one, for an argument or an attribute `name`.

    `read_by` is the class that reads an attribute: the class itself, a base, or that of a part of it, whose
    `forward` is cut then.  A `field_of_step` is read of an argument, the object that carries a step.

    Raises `UsageError`, with file and line, for a class that cannot be cut without its package, and
    `MachineError` where a file cannot be fetched.
    """
    file = source.read(member)
    region = Defined(member, file, class_named(file, class_name))
    cutter = _Cutter(source)
    depth = 0 if field_of_step else _DEEPEST
    return cutter.cut(
        cutter.reader(region, read_by), name, depth, attribute=attribute, field_of_step=field_of_step
    )


class _Cutter:
    """The classes of one source, by the parts that hold them."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._names: SourceNames = names_of(source)
        argument = engine_of(source).argument
        self._stand_ins = argument.text.stand_ins if argument else frozenset[str]()

    def cut(
        self,
        region: Defined,
        name: str,
        depth: int,
        *,
        attribute: bool = False,
        field_of_step: bool = False,
    ) -> RegionCut:
        lineage = self._names.lineage(region)
        defining = next((each for each in lineage if _method(each, FORWARD)), None)
        if defining is None:
            line = region.node.lineno
            raise SourceError(
                Reason(f"{region.node.name} has no forward of its own", region.file.filename, line)
            )
        forward = _method(defining, FORWARD)
        assert forward is not None
        model = ModelClass(defining.member, defining.node.name, "this release")
        text = cut_forward(self._source, model, name, f"{defining.member}:{forward.lineno}", self._stand_ins)
        functions = [each for each in (_method(defining, own) for own in text.model.cut.lines) if each]
        carrier = next(_carriers(forward, functions, name), "") if field_of_step else ""
        read = f"self.{name}" if attribute else f"{carrier}.{name}" if carrier else name
        parts = {} if attribute or not depth else dict(self._parts(lineage, functions, name, depth))
        refusals = {(defining.file.filename, line) for line in _refusal_lines(functions)}
        return RegionCut(
            text,
            tuple(arguments_of(forward)),
            {each.arg: ast.unparse(each.annotation) for each in _parameters(forward) if each.annotation},
            tuple(_required(forward)),
            *_looked_up(functions, read),
            tuple(f"{defining.member}:{line}" for line in _lines_reading(functions, read)),
            frozenset(refusals.union(*(part.refusals for part in parts.values()))),
            self._initial(lineage, name) if attribute else None,
            parts,
            carrier,
        )

    def reader(self, region: Defined, read_by: str) -> Defined:
        """Return the class of a part that is named; the region itself where it or a base has that name.

        Raises `SourceError` where no part of that class is found.
        """
        if not read_by or any(each.node.name == read_by for each in self._names.lineage(region)):
            return region
        todo, seen = [region], {region.place}
        while todo and len(seen) < _MOST_PARTS:
            for made in self._all_made(todo.pop(0)):
                if made.node.name == read_by:
                    return made
                if made.place not in seen:
                    seen.add(made.place)
                    todo.append(made)
        text = f"{region.node.name} makes no part of class {read_by}, which reads it, as far as names show"
        raise SourceError(Reason(text, region.file.filename, region.node.lineno))

    def _all_made(self, owner: Defined) -> Iterator[Defined]:
        """Yield the classes that the `__init__` of a class, or of a base, names."""
        for each in self._names.lineage(owner):
            init = _method(each, "__init__")
            for name in (node for node in ast.walk(init) if isinstance(node, ast.Name)) if init else ():
                meaning = self._names.meaning(each.member, each.file, name)
                if isinstance(meaning, Defined) and isinstance(meaning.node, ast.ClassDef):
                    yield meaning

    def cut_caller(self, caller: Defined, line: int, region: RegionCut) -> CallerCut | None:
        forward = _method(caller, FORWARD)
        calls = _calls_of_parts(forward) if forward else ()
        call = next((each for each in calls if _spans(each, line)), None)
        if forward is None or call is None:
            return None
        name = region.text.argument
        model = ModelClass(caller.member, caller.node.name, "this release")
        text = cut_forward(self._source, model, name, f"{caller.member}:{forward.lineno}", self._stand_ins)
        lineage = self._names.lineage(caller)
        read = text.attributes
        names = {path[0] for path in (*read.numbers, *read.tested, *read.sequences)}
        initial = {each: value for each in names for value in _literal(self._initial(lineage, each))}
        path = tuple(ast.unparse(call.func).removesuffix(".forward").split(".")[1:])
        position = region.parameters.index(name)
        files = engine_of(self._source).files
        known = next((each for each in files.known if each.class_name == caller.node.name), model)
        try:
            whole = cut_model(
                self._source, replace(known, member=caller.member, parts=files.parts), BY_FORWARD
            )
        except UsageError:
            whole = None
        return CallerCut(text, tuple(_required(forward)), path, name, position, call.lineno, initial, whole)

    def _parts(
        self, lineage: Sequence[Defined], functions: Sequence[Function], name: str, depth: int
    ) -> Iterator[tuple[str, RegionCut]]:
        """Yield the parts that the input is handed to by its name, and that may do without it."""
        for call in (
            node for function in functions for node in ast.walk(function) if isinstance(node, ast.Call)
        ):
            match call.func:
                case ast.Attribute(value=ast.Name(id="self"), attr=part):
                    made = self._made(lineage, part)
                    inner = made and next(
                        (each for each in self._names.lineage(made) if _method(each, FORWARD)), None
                    )
                    handed = _bound_name(call, inner, name) if inner else None
                    if made is not None and handed:
                        try:
                            yield part, self.cut(made, handed, depth - 1)
                        except UsageError:
                            continue

    def _made(self, lineage: Sequence[Defined], part: str) -> Defined | None:
        """Return the class that `self.part = Class(..)` in an `__init__` makes the part from."""
        for owner in lineage:
            init = _method(owner, "__init__")
            for node in ast.walk(init) if init else ():
                match node:
                    case ast.Assign(
                        targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)],
                        value=ast.Call(func=func),
                    ):
                        meaning = (
                            self._names.meaning(owner.member, owner.file, func) if name == part else None
                        )
                        if isinstance(meaning, Defined) and isinstance(meaning.node, ast.ClassDef):
                            return meaning
        return None

    def _initial(self, lineage: Sequence[Defined], name: str) -> ast.expr | None:
        for owner in lineage:
            init = _method(owner, "__init__")
            for node in ast.walk(init) if init else ():
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


def _carriers(forward: Function, functions: Sequence[Function], name: str) -> Iterator[str]:
    """Yield the parameters of `forward` of which an attribute `name` is read."""
    parameters = set(arguments_of(forward))
    for node in (each for function in functions for each in ast.walk(function)):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=attr) if attr == name and owner in parameters:
                yield owner


def _calls_of_parts(function: Function) -> Iterator[ast.Call]:
    """Yield the calls of `self.a(..)` and `self.a.b(..)`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and re.fullmatch(r"self(\.\w+)+", ast.unparse(node.func)):
            yield node


def _spans(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _literal(value: ast.expr | None) -> Iterator[object]:
    """Yield the value of a literal."""
    with suppress(ValueError):
        if value is not None:
            yield ast.literal_eval(value)


def _method(owner: Defined, name: str) -> ast.FunctionDef | None:
    assert isinstance(owner.node, ast.ClassDef)
    own = own_members(owner.node).get(name, ())
    return next((node for node in reversed(own) if isinstance(node, ast.FunctionDef)), None)


def _parameters(function: Function) -> list[ast.arg]:
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs][1:]


def _required(function: Function) -> Iterator[str]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args][1:]
    yield from (each.arg for each in positional[: len(positional) - len(arguments.defaults)])
    yield from (
        each.arg
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    )


def _bound_name(call: ast.Call, inner: Defined, name: str) -> str | None:
    """Return the optional parameter of the inner `forward` that a call gives the input for."""
    forward = _method(inner, FORWARD)
    if forward is None:
        return None
    names, needed = arguments_of(forward), set(_required(forward))
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
    for node in (each for function in functions for each in ast.walk(function)):
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


def _lines_reading(functions: Sequence[Function], read: str) -> list[int]:
    """Return the lines that read a name; a `del` reads nothing, a test for None does."""
    return sorted(
        {
            node.lineno
            for function in functions
            for node in ast.walk(function)
            if isinstance(node, ast.Name | ast.Attribute)
            and isinstance(node.ctx, ast.Load)
            and ast.unparse(node) == read
        }
    )


def _refusal_lines(functions: Sequence[Function]) -> Iterator[int]:
    for node in (each for function in functions for each in ast.walk(function)):
        if isinstance(node, ast.Raise | ast.Assert):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
