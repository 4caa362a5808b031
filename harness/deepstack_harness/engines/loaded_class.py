"""Bind a class that Python has made, by importing the package of its source (`engines.load`).

Bases, decorators, metaclasses and patches are those that the import leaves.  Objects are furnished: over a
host that has a tower and a language model that records, and by the statements of each `__init__` that
allocate what the methods read (`slice_init`), compiled into the namespace of their module.

A class is refused, with file and line, where a place of the package may rebind a member later, and where code
that is called meets a stub.
"""

import ast
import copy
import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import TypeVar

import torch
from torch import nn

from deepstack_harness.engines.bound_class import ForwardClass
from deepstack_harness.engines.carriers import stored_by
from deepstack_harness.engines.class_facts import find_verbs, slice_init, writes_by_calls
from deepstack_harness.engines.load import LoadedSource
from deepstack_harness.engines.model_class import HOSTED, CalledMethods, KnownModel, ModelClass
from deepstack_harness.engines.rebinding import WORD, Defined, RebindingPlace, RebindingSearch
from deepstack_harness.engines.stand_ins import (
    FORWARD_STAND_INS,
    METHODS_STAND_INS,
    ForwardHost,
    init_logger,
)
from deepstack_harness.engines.stubs import is_stub
from deepstack_harness.engines.syntax import (
    Function,
    NoBuffer,
    binds,
    class_named,
    read_with_default,
    reads,
    super_attributes,
    writes,
)
from deepstack_harness.errors import Reason, SourceError, UsageError, reason_of
from deepstack_harness.sources.source import SourceFile

H = TypeVar("H", bound=nn.Module)
_INIT = "__init__"
_REPLACING = frozenset({"self.__class__", "self.__dict__"})
"""An object may have attributes in the place of its methods, or another class."""
_MOST_PATCHES = 8
"""Rounds of imports of files that change the class, since each import may lead to another file.

A file that is not imported after these has not run, and the class is refused for it (`check`).
"""


def derive_class(
    loaded: LoadedSource,
    model: ModelClass,
    called: CalledMethods,
    host: type[H],
    names: Mapping[str, object] | None = None,
) -> tuple[KnownModel, type[H]]:
    """Return what is known of a class, and the class derived from it and from `host`.

    Its code finds the objects of `names`, by default those of vLLM's classes. Raises `UsageError` where it
    cannot be made.
    """
    with loaded.without_stubs():
        return construct(loaded, model, called, names).derive(host)


def derive_with_functions(
    loaded: LoadedSource, model: ModelClass, called: CalledMethods, host: type[H]
) -> tuple[type[H], dict[Function, str]]:
    """Return the class derived from a class and from `host`, and the functions it reaches, with their files.

    Raises `UsageError` where it cannot be made.
    """
    with loaded.without_stubs():
        made = construct(loaded, model, called)
        return made.derive(host)[1], made.functions()


def define_by_forward(loaded: LoadedSource, model: ModelClass, called: CalledMethods) -> ForwardClass:
    """Define a class by its forward; where that fails, without the parts that cannot be built.

    Raises `UsageError` where that fails too.
    """
    made = construct(loaded, model, called)
    try:
        with loaded.without_stubs():
            return ForwardClass(*made.derive(ForwardHost)).rehearse()
    except UsageError:
        with suppress(UsageError):
            lenient = made.without_allocation(_unbuildable(made))
            with loaded.without_stubs():
                return ForwardClass(*lenient.derive(ForwardHost)).rehearse()
        raise


def forward_classes(loaded: LoadedSource, model: ModelClass, called: CalledMethods) -> Iterator[ForwardClass]:
    """Yield a class by its forward as it is, and then without the parts that cannot be built; none rehearsed.

    It ends early where the class cannot be made.
    """
    with suppress(UsageError):
        made = construct(loaded, model, called)
        yield ForwardClass(*made.derive(ForwardHost))
        yield ForwardClass(*made.without_allocation(_unbuildable(made)).derive(ForwardHost))


def _unbuildable(made: "ClassConstruction") -> frozenset[str]:
    """Return the attributes whose allocation fails, under settings that nobody gave; else all."""
    attributes, found = made.allocated(), frozenset[str]()
    while True:
        bound = ForwardClass(*made.without_allocation(found).derive(ForwardHost))
        try:
            with made.loaded.without_stubs():
                bound.model(4, 5, 3, dtype=torch.float32, device=torch.device("cpu"), convention=None)
        except UsageError as error:
            more = made.set_at(reason_of(error).line) & attributes - found
            if not more:
                return attributes
            found |= more
        else:
            return found


def construct(
    loaded: LoadedSource, model: ModelClass, called: CalledMethods, names: Mapping[str, object] | None = None
) -> "ClassConstruction":
    """Return the construction of a class after everything that changes it was imported.

    Raises `SourceError` for a class that cannot be made, or may be another one later.
    """
    words = (WORD, model.class_name)
    loaded.watch(
        [
            member
            for root in sorted(loaded.roots)
            for word in words
            for member in loaded.mentioning(root, word)
        ]
    )
    # A file that is not there with the others, and makes what many functions use.
    loaded.absent.values["vllm.logger.init_logger"] = init_logger
    loaded.absent.values.update(model.parts.libraries)
    made = ClassConstruction(loaded, model, called)
    for _ in range(_MOST_PATCHES):
        is_changed = False
        for member in made.patching():
            if loaded.imported(member) is None:
                with suppress(SourceError):
                    loaded.module(member)
                    is_changed = True
        if not is_changed:
            break
        made = ClassConstruction(loaded, model, called)
    made.check()
    loaded.check_instrument()
    if names is None:
        table = METHODS_STAND_INS if called.verbs is None else FORWARD_STAND_INS
        names = {**table, **model.parts.stand_ins}
    loaded.supply(names)
    return made


class ClassConstruction:
    """The construction of a class out of one of an imported package, by the members that are called.

    `names` are those that the methods reach, and `inits` each `__init__` of the source, sliced.
    """

    def __init__(
        self,
        loaded: LoadedSource,
        model: ModelClass,
        called: CalledMethods,
        stood_in: frozenset[str] | None = None,
    ) -> None:
        """Take the class that the module has now; raise `SourceError` where there is none.

        `stood_in` are attributes that are not allocated.
        """
        self.loaded, self._model, self._called, self._stood_in = loaded, model, called, stood_in
        cls = loaded.named(model.member, model.class_name)
        if not isinstance(cls, type):
            of = self._whole()
            text = f"not driven: {model.class_name} is no class"
            raise SourceError(Reason(text, of.file.filename, of.node.lineno))
        self._cls = cls
        self._owners = {item: place for item in cls.__mro__ if (place := self._defined(item))}
        self._whole_inits = {
            owner: node
            for owner in self._owners
            if isinstance(function := vars(owner).get(_INIT), FunctionType)
            and (node := loaded.statement_of(function))
        }
        self._provided = {f"self.{name}" for name in (*called.provided, *(stood_in or ()))}
        self._search = RebindingSearch(loaded, self._whole(), self._owners)
        self.inits: dict[type, Function] = {}
        self.verbs: dict[str, str] = {}
        self.names: set[str] = set()
        self._reach()

    def _whole(self) -> Defined:
        file = self.loaded.read(self._model.member)
        return Defined(self._model.member, file, class_named(file, self._model.class_name))

    def _defined(self, cls: type) -> Defined | None:
        """Return the statement of a class; None for a class of another package."""
        module = self.loaded.by_name(cls.__module__)
        if module is None:
            return None
        node = self.loaded.class_in(module, cls.__name__)
        return Defined(module, self.loaded.read(module), node) if node else None

    # -- members

    def _functions(self, name: str) -> Iterator[FunctionType]:
        """Yield the functions of a member, and those of the next classes that it calls by super."""
        for owner in self._cls.__mro__:
            if name not in vars(owner):
                continue
            found = list(functions_in(vars(owner)[name]))
            yield from found
            nodes = filter(None, map(self.loaded.statement_of, found))
            if not any(name in super_attributes(node) for node in nodes):
                return

    def _nodes(self, name: str) -> list[Function]:
        return [node for item in self._functions(name) if (node := self.loaded.statement_of(item))]

    def functions(self) -> dict[Function, str]:
        """Return the statements of all functions that are called, each with its file."""
        called = [item for name in sorted(self.names) for item in self._functions(name)]
        members = ((item, self.loaded.member_of(item.__code__.co_filename)) for item in called)
        return {
            node: member for item, member in members if member and (node := self.loaded.statement_of(item))
        }

    def _method(self, name: str) -> Function | None:
        return next(iter(self._nodes(name)), None)

    def _reach(self) -> None:
        """Find the members that are called, and slice each `__init__` for what they read."""
        there, of = set(dir(self._cls)), self._whole()
        if self._called.verbs is None:
            self.verbs = find_verbs(there, self._method, of.file.filename, of.node)
        else:
            self.verbs = dict(self._called.verbs)
            if lacking := sorted(name for name in self.verbs.values() if self._method(name) is None):
                text = f"class {self._cls.__name__} has no {', '.join(lacking)}"
                raise NoBuffer(Reason(text, of.file.filename, of.node.lineno))
        self.names = set(self.verbs.values())
        read_outside = {f"self.{name}" for name in (*self._model.parts.reads_too, *self.verbs.values())}
        while True:
            nodes = [node for name in sorted(self.names) for node in self._nodes(name)]
            used = {name for node in nodes for name in reads(node)}
            if self._called.init:
                needed = {name for name in used | read_outside | _REPLACING if "." in name}
                self.inits = {
                    owner: slice_init(node, needed, self._provided, partial(writes_by_calls, self._nodes))
                    for owner, node in self._whole_inits.items()
                }
            used |= {name for node in self.inits.values() for name in reads(node)}
            more = {name for name in there if f"self.{name}" in used - self._provided}
            more = {name for name in more if any(True for _ in self._functions(name))} - self.names - {_INIT}
            if not more:
                return
            self.names |= more

    # -- what may change it

    def patching(self) -> list[str]:
        """Return the files that may change the class, as their text shows."""
        classes = {item.node.name for item in self._providers()}
        members = [member for member, _, _ in self._rebinding()]
        return sorted({*self._search.acting(classes), *members})

    def _providers(self) -> Iterator[Defined]:
        """Yield the class itself, and those that it has a called member from."""
        called = {_INIT, *self.names} if self._called.init else self.names
        for owner, place in self._owners.items():
            if owner is self._cls or not called.isdisjoint(vars(owner)):
                yield place

    def _rebinding(self) -> Iterator[tuple[str, SourceFile, RebindingPlace]]:
        chain = {item.place for item in self._providers()}
        yield from self._search.rebinding((self.names | self._read()) & self._search.names, chain)

    def _read(self) -> set[str]:
        """Return the attributes of the object that the called functions read."""
        nodes = [node for name in self.names for node in self._nodes(name)]
        return _of_self(name for node in (*nodes, *self.inits.values()) for name in reads(node))

    def check(self) -> None:
        """Refuse a class that code may change which has not run, or whose member a missing base may have."""
        nodes = [(item, node) for name in (*self.names, _INIT) for item in self._functions(name)
                 if (node := self.loaded.statement_of(item))]  # fmt: skip
        called = {
            (self.loaded.member_of(item.__code__.co_filename), line)
            for item, node in nodes
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        for member, file, place in self._rebinding():
            # A name in a text or a table is used by code elsewhere, whenever that runs.
            has_run = place.owner is not None and self.loaded.ran(member, place.line)
            if (member, place.line) not in called and not has_run:
                text = f"not driven: {place.member} is rebound at {file.filename}:{place.line}"
                raise SourceError(Reason(text, file.filename, place.line))
        words = frozenset(item.__name__ for item in self._owners) | self.names
        own = {item.member for item in self._owners.values()}
        for why in self.loaded.raised({*own, *self.patching()}, words):
            raise SourceError(
                Reason(f"not driven: a statement about the class raised {why.text}", why.file, why.line)
            )
        # A base after one that is missing, which may have the member too.
        order = self._cls.__mro__
        missing = next((n for n, item in enumerate(order) if "stub_path" in vars(item)), len(order))
        for name in sorted(self.names - HOSTED):
            owner = next((item for item in order if name in vars(item)), None)
            if owner in self._owners and owner in order[missing:]:
                of, path = self._owners[owner], vars(order[missing])["stub_path"]
                text = f"not driven: {name} is taken from {owner.__name__}, after {path}, which is not there"
                raise SourceError(Reason(text, of.file.filename, of.node.lineno))
        self._check_values([function for function, _ in nodes])

    def _check_values(self, functions: Sequence[FunctionType]) -> None:
        """Refuse a class of which an attribute, or a value that a method has by itself, is a stub.

        Such a value may be compared with None, which no stub can notice.
        """
        of = self._whole()
        for name in sorted(self._read()):
            if is_stub(inspect.getattr_static(self._cls, name, None)):
                text = f"not driven: self.{name} is not there"
                raise SourceError(Reason(text, of.file.filename, of.node.lineno))
        for function in functions:
            values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
            values += [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
            if any(map(is_stub, values)):
                code = function.__code__
                text = f"not driven: a value of {code.co_name} is not there"
                raise SourceError(Reason(text, code.co_filename, code.co_firstlineno))

    # -- the derived class

    def without_allocation(self, attributes: frozenset[str]) -> "ClassConstruction":
        """Return the same class without the allocation of some attributes."""
        return ClassConstruction(self.loaded, self._model, self._called, attributes)

    def allocated(self) -> frozenset[str]:
        """Return the attributes that an `__init__` sets and only other methods read, without `self.`."""
        methods = [node for name in self.names for node in self._nodes(name)]
        stored = {name for method in methods for node in method.body for name in writes(node)}
        read = {name for method in methods for name in reads(method)} - stored
        inits = self._whole_inits.values()
        bound = {name for init in inits for node in init.body for name in binds(node)}
        return frozenset(_of_self(read & bound) - set(self._called.provided))

    def set_at(self, line: int | None) -> frozenset[str]:
        """Return the attributes that the statement of an `__init__` at a line sets, without `self.`."""
        statements = [
            node
            for init in self._whole_inits.values()
            for node in ast.walk(init)
            if isinstance(node, ast.stmt) and line and node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        innermost = max(statements, key=lambda node: node.lineno, default=None)
        return frozenset(_of_self(binds(innermost)) if innermost else ())

    def _known(self) -> KnownModel:
        nodes = {name: self._method(name) for name in self.names}
        optional = frozenset[str]().union(*(read_with_default(node) for node in nodes.values() if node))
        storage = stored_by(self.verbs["set"], self._method) if "set" in self.verbs else ()
        places, globals_named = dict[str, str](), set[str]()
        for name in (*self.names, _INIT):
            for function in self._functions(name):
                globals_named.update(function.__code__.co_names)
                member = self.loaded.member_of(function.__code__.co_filename)
                node = self.loaded.statement_of(function)
                if member and node and name != _INIT:
                    places.setdefault(name, f"{member}:{node.lineno}-{node.end_lineno}")
        return KnownModel(
            source=self.loaded.source, model=self._model, filename=self._whole().file.filename,
            verbs=self.verbs, lines={name: node.lineno for name, node in nodes.items() if node},
            replaced=frozenset(METHODS_STAND_INS.keys() & globals_named), stood_in=self._stood_in,
            optional=optional, storage=frozenset(storage), places=places,
        )  # fmt: skip

    def derive(self, host: type[H]) -> tuple[KnownModel, type[H]]:
        """Return what is known of it, and a class derived from it and from `host`, which runs the slices."""
        file, own, known = self._whole().file, self._whole().member, self._known()
        hosted = {
            name: vars(kind)[name]
            for name in (*HOSTED, *self._called.provided)
            for kind in reversed(host.__mro__)
            if name in vars(kind) and (name in self._called.provided or self._provider(name) != own)
        }
        inits = {owner: _compiled(vars(owner)[_INIT], node) for owner, node in self.inits.items()}
        namespace: dict[str, object] = {
            "__module__": self._cls.__module__,
            "__qualname__": self._cls.__qualname__,
            **hosted,
        }
        if self._provider("__new__") != own:
            namespace["__new__"] = host.__new__
        if inits:
            namespace[_INIT] = _furnishing(inits)
        try:
            made = type(self._cls)(self._cls.__name__, (self._cls, host), namespace)
        except Exception as error:
            text = f"not driven: a class derived from {self._cls.__name__} cannot be made: {error}"
            raise SourceError(Reason(text, file.filename, self._whole().node.lineno)) from error
        if not issubclass(made, host):
            raise SourceError(Reason(f"not driven: {self._cls.__name__} is no class", file.filename))
        return known, made

    def _provider(self, name: str) -> str:
        owner = next((item for item in self._cls.__mro__ if name in vars(item)), None)
        return self._owners[owner].member if owner in self._owners else ""


def _of_self(names: Iterable[str]) -> set[str]:
    """Return the x of every name `self.x`."""
    return {name.removeprefix("self.") for name in names if name.startswith("self.")}


def functions_in(value: object) -> Iterator[FunctionType]:
    """Yield the functions of a member: what decorators wrapped, and what a property calls."""
    todo, seen = [value], set[int]()
    while todo:
        item = todo.pop(0)
        if id(item) in seen or is_stub(item):
            continue
        seen.add(id(item))
        if isinstance(item, FunctionType):
            yield item
            todo += [cell.cell_contents for cell in item.__closure__ or () if _is_filled(cell)]
            todo += [vars(item).get("__wrapped__")]
        elif isinstance(item, property):
            todo += [item.fget, item.fset]
        elif isinstance(item, staticmethod | classmethod):
            todo.append(item.__func__)
        elif isinstance(item, functools.partial | functools.partialmethod):
            todo.append(item.func)


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _compiled(function: FunctionType, node: Function) -> FunctionType:
    """Compile the slice of a function into its module, with its own cells and defaults."""
    owner = function.__qualname__.rpartition(".")[0].rpartition(".")[2]
    owner = owner if owner.isidentifier() else "Assigned"
    plain = ast.parse("def outer(): pass").body[0]
    assert isinstance(plain, ast.FunctionDef)
    free = function.__code__.co_freevars
    plain.args.args = [ast.arg(name) for name in free]
    inner = ast.parse(f"class {owner}: pass").body[0]  # private names are those of the class
    assert isinstance(inner, ast.ClassDef)
    inner.body, plain.body = [_without_expressions(node)], [inner]
    module = ast.fix_missing_locations(ast.Module([plain], []))
    code = _code_named(compile(module, function.__code__.co_filename, "exec", dont_inherit=True), node.name)
    cells = dict(zip(free, function.__closure__ or (), strict=True))
    made = FunctionType(
        code, function.__globals__, node.name, function.__defaults__,
        tuple(cells[name] for name in code.co_freevars),
    )  # fmt: skip
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _without_expressions(node: Function) -> Function:
    """Return a function without decorators, defaults and annotations: they were evaluated in its class."""
    arguments = node.args
    bare = [ast.arg(item.arg) for item in (*arguments.posonlyargs, *arguments.args)]
    only = [ast.arg(item.arg) for item in arguments.kwonlyargs]
    made = copy.copy(node)
    made.args = ast.arguments(
        bare[: len(arguments.posonlyargs)], bare[len(arguments.posonlyargs) :],
        arguments.vararg and ast.arg(arguments.vararg.arg), only, [None] * len(only),
        arguments.kwarg and ast.arg(arguments.kwarg.arg), [],
    )  # fmt: skip
    made.decorator_list, made.returns = [], None
    return made


def _code_named(code: CodeType, name: str) -> CodeType:
    """Return the code of a name among those nested in `code`."""
    inner = [item for item in code.co_consts if isinstance(item, CodeType)]
    found = next((item for item in inner if item.co_name == name), None)
    return found or _code_named(inner[0], name)


def _furnishing(inits: Mapping[type, FunctionType]) -> FunctionType:
    """Return an `__init__` that runs the first slice; meanwhile those of the bases are their slices."""
    first, *above = inits

    @functools.wraps(inits[first])
    def furnished(self: object, *args: object, **named: object) -> None:
        before = {owner: vars(owner)[_INIT] for owner in above}
        try:
            for owner in above:
                type.__setattr__(owner, _INIT, inits[owner])
            inits[first](self, *args, **named)
        finally:
            for owner, function in before.items():
                type.__setattr__(owner, _INIT, function)

    return furnished  # type: ignore[return-value]  # a function
