"""Cut the deepstack buffer out of a model class, and compile it unchanged.

These parts are cut: the methods that get, set, clear and resize the buffer; the methods of the same class
that they call; the statements of `__init__` that allocate what they read (`slice_init`); and the module's
own helpers and constants that all of these name (`extract`).

`slice_init` is a backward slice.  Statements are kept as they are, inside their own `if`, `with` and `for`,
so that the slice gives the attributes of the buffer the values that the whole `__init__` would give them.
The rest, which builds a model of billions of weights, is left out.
"""

import ast
import copy
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import CodeType
from typing import cast

from deepstack_harness.engines.carriers import FindMethod, payload_verbs, stored_by
from deepstack_harness.engines.extract import extract
from deepstack_harness.engines.rebinding import Span
from deepstack_harness.engines.syntax import (
    ANY_OF_SELF,
    Function,
    Members,
    NoBuffer,
    asked_of_super,
    asked_with_default,
    binds,
    class_named,
    functions_in,
    members_of,
    own_members,
    own_methods_called,
    read_in_scope,
    reads,
    required,
    writes,
)
from deepstack_harness.errors import Reason, SourceError
from deepstack_harness.sources.source import SourceFile

Block = tuple[ast.AST, ...]
Writes = Callable[[ast.AST], frozenset[str]]

_PARTS = (ast.stmt, ast.ExceptHandler, ast.match_case)
_BLOCKS = (
    ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith,
    ast.Try, ast.TryStar, ast.ExceptHandler, ast.Match, ast.match_case,
)  # fmt: skip
_LEAVES_BLOCK = (ast.Raise, ast.Break, ast.Continue)


def slice_init(
    init: Function, needed: Collection[str], provided: Collection[str], writes: Writes
) -> Function:
    """Return a copy of `init` without the statements that do not matter to the names in `needed`.

    Names in `provided` (such as `self.visual`) exist already: nothing is kept for them.  `writes`
    returns the names that a statement changes.  Checks that only raise are left out.
    """
    kept = _Slice(init, set(needed), set(provided), writes).kept()
    return cast(Function, _pruned_block(init, kept))


class _Slice:
    """Statements to keep: those that write a needed name, whose own reads are then needed too."""

    def __init__(self, init: Function, needed: set[str], provided: set[str], writes: Writes) -> None:
        self._statements = list(_walk(init.body, ()))
        self._needed = needed | {ANY_OF_SELF}
        self._provided = provided
        self._writes = writes
        self._kept: set[ast.AST] = set()

    def kept(self) -> set[ast.AST]:
        """Return all nodes to keep: pass over the statements until a pass adds none."""
        before = -1
        while before != len(self._kept):
            before = len(self._kept)
            for statement, around in self._statements:
                if statement not in self._kept and self._matters(statement, around):
                    self._keep(statement, *around)
        return self._kept

    def _keep(self, *nodes: ast.AST) -> None:
        for node in nodes:
            choices = (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))
            self._kept.update((node, *choices))
            parts = [part for each in (node, *choices) for part in _own_parts(each)]
            self._needed |= {name for part in parts for name in reads(part)}

    def _matters(self, node: ast.AST, around: Block) -> bool:
        if isinstance(node, ast.Return) or _is_base_init(node):
            return True
        if isinstance(node, _LEAVES_BLOCK):
            return bool(around) and around[-1] in self._kept
        changed = {name for part in _own_parts(node) for name in self._writes(part)}
        return bool(changed & self._needed - self._provided)


def _walk(nodes: Iterable[ast.AST], around: Block) -> Iterator[tuple[ast.AST, Block]]:
    """Yield every statement, handler and case, with the blocks it stands in, outermost first."""
    for node in nodes:
        yield node, around
        if isinstance(node, _BLOCKS):
            inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, _PARTS)]
            yield from _walk(inner, (*around, node))


def _own_parts(node: ast.AST) -> list[ast.AST]:
    """Return what runs at the node itself: a statement, or the test, items, subject or type of a block."""
    if not isinstance(node, _BLOCKS):
        return [node]
    return [child for child in ast.iter_child_nodes(node) if not isinstance(child, _PARTS)]


def _is_base_init(node: ast.AST) -> bool:
    """Tell whether a statement is `super().__init__()`, or the same by a base's name."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="__init__"))):
            return True
    return False


def _pruned(node: ast.AST, kept: set[ast.AST]) -> ast.AST:
    """Return a statement as it is, or a copy of a block with only what is kept inside it."""
    return _pruned_block(node, kept) if isinstance(node, _BLOCKS) else node


def _pruned_block(node: ast.AST, kept: set[ast.AST]) -> ast.AST:
    copied = copy.copy(node)
    for part, inner in ast.iter_fields(node):
        if part in {"body", "orelse", "finalbody", "handlers", "cases"} and inner:
            left = [_pruned(each, kept) for each in inner if each in kept]
            setattr(copied, part, left or [ast.copy_location(ast.Pass(), inner[0])])
    return copied


HOST = "__deepstack_host__"
"""The name of the class that takes the place of the model class's bases."""

STORAGE = "deepstack_input_embeds"
"""The word that the methods' names share, the attribute of the rows, and the start of the levels' names."""

_VERBS = {verb: re.compile(rf"_{verb}_\w*{STORAGE}\w*") for verb in ("get", "set", "clear", "resize")}
_NEEDED_VERBS = frozenset({"get", "set", "clear"})


def find_verbs(
    names: Collection[str], method: FindMethod, filename: str, definition: ast.ClassDef
) -> dict[str, str]:
    """Return the members of a class that get, set, clear and resize its buffer, by these verbs.

    Raises `NoBuffer` where one of the first three is missing, and another `SourceError` for two of one kind.
    """
    verbs = payload_verbs(method)
    for verb, pattern in _VERBS.items():
        matching, exact = sorted(filter(pattern.fullmatch, names)), f"_{verb}_{STORAGE}"
        if len(matching) > 1 and exact not in matching:
            text = f"cannot tell which of {', '.join(matching)} should {verb} the buffer"
            raise SourceError(Reason(text, filename, definition.lineno))
        if matching:
            verbs[verb] = exact if exact in matching else matching[0]
    if lacking := sorted(_NEEDED_VERBS - verbs.keys()):
        missing = ", ".join(f"_{verb}_{STORAGE}" for verb in lacking)
        text = f"class {definition.name} has no {missing}"
        raise NoBuffer(Reason(text, filename, definition.lineno))
    return verbs


def writes_by_calls(methods: Callable[[str], Iterable[Function]], node: ast.AST) -> frozenset[str]:
    """Return what a statement changes, by the methods of its class that it calls too.

    `methods` gives the functions of a member of the class by its name.
    """
    changes, called, done = writes(node), own_methods_called(node), set[str]()
    while todo := called - done:
        done |= todo
        bodies = [method for name in todo for method in methods(name)]
        changed = {name for method in bodies for inner in method.body for name in writes(inner)}
        changes |= {name for name in changed if name.startswith("self.")}
        called |= {name for method in bodies for name in own_methods_called(method)}
    return changes


@dataclass(frozen=True, kw_only=True)
class ClassFacts:
    """What drives a class of a source needs to know of it, whoever made the class.

    `verbs` names the class's method for each of get, set, clear and resize.  `lines` has every
    method that was cut, with its line.  `replaced` maps each name that needs a stand-in to the
    imported name.  `stood_in` are attributes whose allocation was left out, since it cannot be built, or
    None; `optional` are names that the code asks for with a default of its own.  `storage` are the attributes
    that set stores into.  `places` has `MEMBER:FIRST-LAST` of each method of a class that was loaded.
    """

    class_name: str
    filename: str
    verbs: Mapping[str, str]
    lines: Mapping[str, int]
    replaced: Mapping[str, str]
    stood_in: frozenset[str] | None = None
    optional: frozenset[str] = frozenset()
    storage: frozenset[str] = frozenset()
    places: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ClassCut(ClassFacts):
    """A compiled module that defines the class `class_name`, derived from `HOST`.

    `foreign` has the names of other packages, each with the sentence that refuses whoever
    uses it.  `of_host` has the attributes that nothing in the cut sets, each with the sentence that refuses
    the class where the host lacks it.  `names` are the members of the class that the cut is driven by, and
    `spans` the lines that it runs.
    """

    code: CodeType
    of_host: Mapping[str, Reason]
    foreign: Mapping[str, Reason] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Outside:
    """The code around a class: attributes that instances have before `__init__` runs, and those it reads."""

    provided: Collection[str]
    reads: Collection[str] = ()


@dataclass(frozen=True)
class CutOptions:
    """What a cut keeps, and what it leaves to a rehearsal.

    Without `init` nothing of the class's `__init__` is kept, and what the methods read has to be provided.
    Names of other packages are refused, or, where they `may_be_foreign`, refuse whoever uses them.
    `stood_in` are attributes that stand-ins replace; None where the class allocates all of them itself.
    """

    init: bool = True
    may_be_foreign: bool = False
    stood_in: frozenset[str] | None = None


STRICT = CutOptions()


@dataclass(frozen=True)
class Inherited:
    """The contribution of a base class in another file: its parsed members, and how it was cut."""

    members: Members
    cut: ClassCut


def cut_class(
    file: SourceFile,
    classes: tuple[ast.ClassDef, ...],
    *,
    outside: Outside,
    stand_ins: Collection[str],
    inherited: Inherited | None = None,
    verbs: Mapping[str, str] | None = None,
    options: CutOptions = STRICT,
) -> ClassCut:
    """Cut the buffer of a class out of `file`; `classes` are the class and its bases of that file.

    `outside` says what is provided and read around the class, `stand_ins` are the imported names that can
    be replaced, `inherited` a base class that was cut from another file.  `verbs` names the methods to cut,
    where they are not get, set and clear.  Raises `NoBuffer` when there is nothing to cut, and another
    `UsageError`, with file and line, for what does not parse or cannot be supplied.
    """
    outside = replace(outside, provided={*outside.provided, *(options.stood_in or ())})
    buffer = _BufferMembers(classes, file.filename, outside, inherited, verbs, init=options.init)
    *bases, reduced = buffer.reduced()
    extracted = extract(
        file,
        reduced,
        stand_ins=stand_ins,
        provided={HOST},
        may_be_foreign=options.may_be_foreign,
        others=tuple(bases),
    )
    functions = functions_in(node for each in (*bases, reduced) for node in each.body)
    lines = {node.name: node.lineno for node in functions if node.name != "__init__"}
    if inherited is not None:
        lines = {**inherited.cut.lines, **lines}
    return ClassCut(
        class_name=reduced.name, filename=file.filename, code=extracted.code, verbs=buffer.verbs, lines=lines,
        replaced=extracted.replaced, of_host=buffer.of_host, foreign=extracted.foreign,
        stood_in=options.stood_in, optional=asked_with_default(reduced), names=buffer.names,
        spans=extracted.spans, storage=buffer.storage,
    )  # fmt: skip


def allocated(
    file: SourceFile, class_name: str, verbs: Mapping[str, str], provided: Collection[str]
) -> frozenset[str]:
    """Return the attributes that `__init__` sets and only other methods read, without `self.`.

    `verbs` names the methods that are called; what they store themselves is storage, and not among these.
    """
    members = members_of(class_named(file, class_name), file)
    names, todo = set[str](), set(verbs.values())
    while todo:
        nodes = [node for name in todo for node in members.get(name, ())]
        names |= todo
        todo = {name for node in nodes for name in own_methods_called(node)} - names
    functions = [node for name in names for node in members.get(name, ()) if isinstance(node, Function)]
    stored = {name for function in functions for node in function.body for name in writes(node)}
    read = {name for function in functions for name in reads(function)} - stored
    inits = [node for node in members.get("__init__", ()) if isinstance(node, Function)]
    bound = {name for init in inits for node in init.body for name in binds(node)}
    attributes = {name.removeprefix("self.") for name in read & bound if name.startswith("self.")}
    return frozenset(attributes - set(provided))


class _BufferMembers:
    """Members of one class that belong to its buffer."""

    def __init__(
        self,
        classes: tuple[ast.ClassDef, ...],
        filename: str,
        outside: Outside,
        inherited: Inherited | None,
        verbs: Mapping[str, str] | None,
        *,
        init: bool,
    ) -> None:
        self._definition = classes[0]
        self._own = [(definition, own_members(definition)) for definition in classes]
        self._inherited = inherited
        self._members: dict[str, list[ast.stmt]] = {**(inherited.members if inherited else {})}
        for _, own in reversed(self._own):
            self._members |= own
        theirs = inherited.members.get("__init__", ()) if inherited else ()
        self._inherited_init = [node for node in theirs if isinstance(node, Function)]
        self._filename = filename
        self._provided = {f"self.{name}" for name in outside.provided}
        self.verbs = self._find_verbs() if verbs is None else self._named(verbs)
        # An object may have attributes in the place of its methods, or another class.
        replacing = {"__class__", "__dict__", *self.verbs.values()}
        self._read_outside = {f"self.{name}" for name in (*outside.reads, *replacing)}
        self._init = self._find_init() if init else self._no_init()
        self.names: frozenset[str] = frozenset()
        self._body = self._needed_members()
        self.of_host = self._unset_attributes()

    def reduced(self) -> list[ast.ClassDef]:
        """Return the class with nothing but its buffer, last, and before it the bases that it needs.

        The lowest one is over `HOST`.
        """
        wanted, init = {id(node) for node in self._body}, self._body[-1]
        classes: list[ast.ClassDef] = []
        host = HOST
        for definition, own in reversed(self._own):
            nodes = {id(node): node for nodes in own.values() for node in nodes if id(node) in wanted}
            if self._init in own.get("__init__", ()):
                nodes[id(init)] = init
            is_last = definition is self._definition
            if is_last and not any(self._init in theirs.get("__init__", ()) for _, theirs in self._own):
                nodes[id(init)] = init
            if not (nodes or is_last):
                continue
            reduced = copy.copy(definition)
            reduced.bases = [ast.copy_location(ast.Name(host, ast.Load()), definition)]
            reduced.keywords, reduced.decorator_list = [], []
            empty = [ast.copy_location(ast.Pass(), definition)]
            reduced.body = sorted(nodes.values(), key=lambda node: node.lineno) or list[ast.stmt](empty)
            classes.append(reduced)
            host = definition.name
        return classes

    def _find_verbs(self) -> dict[str, str]:
        return find_verbs(self._members, self._method, self._filename, self._definition)

    def _method(self, name: str) -> Function | None:
        return next(iter(self._methods(name)), None)

    @property
    def storage(self) -> frozenset[str]:
        """The attributes that set stores into, without `self.`."""
        return frozenset(stored_by(self.verbs["set"], self._method) if "set" in self.verbs else ())

    def _named(self, verbs: Mapping[str, str]) -> dict[str, str]:
        if lacking := sorted(set(verbs.values()) - self._members.keys()):
            raise NoBuffer(self._reason(f"class {self._definition.name} has no {', '.join(lacking)}"))
        return dict(verbs)

    def _find_init(self) -> Function:
        for node in self._members.get("__init__", ()):
            if isinstance(node, Function):
                return node
        raise NoBuffer(
            self._reason(f"class {self._definition.name} has no __init__ that allocates the buffer")
        )

    def _reason(self, text: str) -> Reason:
        """Return a reason with the place of the class."""
        return Reason(text, self._filename, self._definition.lineno)

    def _no_init(self) -> Function:
        """Return an `__init__` that does nothing, at the place of the class."""
        made = ast.parse("def __init__(self): pass").body[0]
        assert isinstance(made, ast.FunctionDef)
        for node in ast.walk(made):
            ast.copy_location(node, self._definition)
        return made

    def _needed_members(self) -> list[ast.stmt]:
        """Return the buffer's methods, what they call and read, and last the slice of `__init__`."""
        names = set(self.verbs.values())
        while True:
            nodes = self._nodes(names)
            init = self._slice({name for node in nodes for name in reads(node)} | self._read_outside)
            used = {name for node in (*nodes, init) for name in reads(node)}
            used |= {f"self.{name}" for node in nodes for name in asked_of_super(node)}
            of_class = {name for name in self._members if f"self.{name}" in used - self._provided}
            of_class |= {name for node in nodes for name in read_in_scope(node)} & self._members.keys()
            more = of_class - names - {"__init__"}
            if not more:
                used_names = {name.removeprefix("self.") for name in used if name.startswith("self.")}
                self.names = frozenset(names | used_names)
                return [*nodes, init]
            names |= more

    def _nodes(self, names: Collection[str]) -> list[ast.stmt]:
        """Return what defines members: of several classes the first one, and what it asks of super."""
        nodes: dict[int, ast.stmt] = {}
        for name in sorted(names):
            for _, own in self._own:
                nodes |= {id(node): node for node in own.get(name, ())}
                asks_on = any(name in asked_of_super(node) for node in own.get(name, ()))
                if name in own and not asks_on:
                    break
            else:
                if not any(name in own for _, own in self._own):
                    nodes |= {id(node): node for node in self._members.get(name, ())}
        return list(nodes.values())

    def _slice(self, read: set[str]) -> Function:
        of_instances = {name for name in read if "." in name}  # `x` is another variable in every method
        return slice_init(self._init, of_instances, self._provided, partial(writes_by_calls, self._methods))

    def _methods(self, name: str) -> list[Function]:
        return [node for node in self._members.get(name, ()) if isinstance(node, Function)]

    def _unset_attributes(self) -> dict[str, Reason]:
        """Return the attributes that are read and that nothing in the cut sets, with a refusal for each."""
        functions = list(functions_in(self._body))
        bound = {
            name
            for function in (*functions, *self._inherited_init)
            for inner in function.body
            for name in binds(inner)
        }
        there = bound | self._provided | {f"self.{name}" for name in self._members}
        if ANY_OF_SELF in there:
            return {}
        refusals: dict[str, Reason] = {}
        for function in functions:
            for name, line in required(function).items():
                if name not in there:
                    refusals.setdefault(name.removeprefix("self."), self._lacks(function, name, line))
        return refusals

    def _lacks(self, function: Function, name: str, line: int) -> Reason:
        return Reason(
            f"{self._definition.name}.{function.name} needs {name}, "
            "which its __init__ does not set: it cannot be supplied",
            self._filename,
            line,
        )
