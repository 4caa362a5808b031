"""Find everything in a package that gives the objects of a class other methods than its body says.

`Making` tells what Python runs when it makes a class and that may change it: decorators, metaclasses,
`__init_subclass__` and the like of its bases, and statements behind it.  A cut keeps these and runs them.
What provably leaves the class alone is left out: it would only need more of the package.  `unexplained` then
searches the package for whatever else may rebind a name that a cut is driven by.  A place that the cut does
not run, and that is not about another class, refuses the class.
"""

import ast
import functools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeVar

from deepstack_harness.engines.lineage import Defined, Elsewhere, Module, names_of, own_names
from deepstack_harness.engines.syntax import (
    Function,
    functions_in,
    is_setattr,
    own_members,
    parse,
    scope_names,
    set_arguments,
)
from deepstack_harness.errors import Reason, SourceError
from deepstack_harness.sources.source import Source, SourceFile

WORD = "deepstack"
"""A file that has neither this word nor the name of the class knows nothing of the payload."""

ASKED_FIRST = frozenset({"__getattribute__", "__getattr__", "__setattr__", "__delattr__"})
"""Members of a class that decide what every other name stands for."""
_MAKES = frozenset({"__init_subclass__", "__new__"})
_BY_CODE = frozenset({"exec", "eval", "globals", "locals", "vars", "__import__"})
_HARMLESS = frozenset(
    {"isinstance", "issubclass", "getattr", "hasattr", "id", "len", "repr", "str", "type", "super",
     "callable", "print", "dir", "hash"}
)  # fmt: skip
_MARKS = (
    "register",
    "support_torch_compile",
    "ignore_torch_compile",
    "auto_docstring",
    "add_start_docstrings",
)
"""Beginnings of names by which engines register a class, or mark it for a compiler or a manual."""
_NOTES = frozenset({"debug", "info", "warning", "error", "append", "add", "setdefault"})

C = TypeVar("C", bound=Sized)
Span = tuple[str, int, int]
"""A file as tracebacks show it, and the first and last of some lines of it."""


class Making:
    """The making of one class of a source."""

    def __init__(self, source: Source, of: Defined, lineage: tuple[Defined, ...] = ()) -> None:
        """Take a class, and its `lineage` where Python has made it.

        Raises `SourceError` where a base is the result of code, or the class is bound once more.
        """
        self.source = source
        self._names = names_of(source)
        self.lineage = lineage or self._names.lineage(of)
        self.of = of
        self._places = frozenset(each.place for each in self.lineage)
        defined = {name for each in self.lineage for name in own_names(each)}
        self.names = frozenset(name for name in defined if not all(map(_is_value, self._definitions(name))))
        """Members but for plain values, which are state that any code may change."""

    def provider(self, name: str) -> Defined | None:
        """Return the class that has a name first."""
        return next((each for each in self.lineage if name in own_names(each)), None)

    def method(self, name: str) -> Function | None:
        """Return the method of a name."""
        return next((node for node in self._definitions(name) if isinstance(node, Function)), None)

    def _definitions(self, name: str) -> Iterator[ast.stmt]:
        for each in self.lineage:
            if isinstance(each.node, ast.ClassDef):
                yield from own_members(each.node).get(name, ())

    def classes_in(self, member: str) -> tuple[ast.ClassDef, ...]:
        """Return the class and its bases of a file, in method order.

        Raises `SourceError` where code runs that may change one of them, as a decorator does: only an import
        shows what it does.
        """
        here = [each for each in self.lineage if each.member == member]
        file = here[0].file
        classes = tuple(each.node for each in here if isinstance(each.node, ast.ClassDef))
        self._refuse_second(file, classes)
        aliases = {node.name: node.name for node in classes}
        changing: list[ast.AST] = [
            *(each for node in classes for each in self._decorators(member, file, node)),
            *(each for node in classes for each in self._keywords(member, file, node)),
            *(node for node in classes if self._has_hooks(node)),
            *(
                node
                for node in self._behind(member, file, aliases, after=min(node.lineno for node in classes))
                if not (isinstance(node, ast.Assign) and _is_name(node.value, aliases))
            ),
        ]
        if changing:
            raise rebound(classes[0].name, file, changing[0])
        return classes

    def _refuse_second(self, file: SourceFile, classes: Sequence[ast.ClassDef]) -> None:
        names = {node.name for node in classes}
        for node in parse(file).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) or node in classes:
                continue
            if again := scope_names(node) & names:
                first = next(each for each in classes if each.name in again)
                if node.lineno > first.lineno:
                    raise rebound(min(again), file, node)

    def _decorators(self, member: str, file: SourceFile, node: ast.ClassDef) -> list[ast.expr]:
        return [each for each in node.decorator_list if not self._leaves(member, file, each)]

    def _leaves(self, member: str, file: SourceFile, decorator: ast.expr) -> bool:
        """Tell whether a decorator returns the class as it is."""
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        meaning = self._names.meaning(member, file, called)
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if isinstance(meaning, Defined):
            if name.startswith(_MARKS) and meaning.member != member:
                return True
            function: ast.AST | None = meaning.node
            if isinstance(decorator, ast.Call) and isinstance(function, Function):
                function = _inner(function)
            return isinstance(function, Function) and self._is_neutral(meaning, function, returns=True)
        if meaning is Elsewhere.OUTSIDE:
            return True
        return name.startswith(_MARKS)

    def _keywords(self, member: str, file: SourceFile, node: ast.ClassDef) -> list[ast.keyword]:
        kept = []
        for keyword in node.keywords:
            if keyword.arg == "metaclass":
                meaning = self._names.meaning(member, file, keyword.value)
                if meaning is Elsewhere.OUTSIDE:
                    continue
            kept.append(keyword)
        return kept

    def _has_hooks(self, node: ast.ClassDef) -> bool:
        """Return whether Python calls members of a class by itself that may change it, or its objects."""
        of = next(each for each in self.lineage if each.node is node)
        members = own_members(node)
        if not ASKED_FIRST.isdisjoint(members):
            return True
        makes = [each for name in _MAKES & members.keys() for each in members[name]]
        return not all(isinstance(each, Function) and self._is_neutral(of, each) for each in makes)

    def _is_neutral(self, of: Defined, function: Function, *, returns: bool = False, depth: int = 0) -> bool:
        """Tell whether a function changes no member of the class that is its first argument.

        With `returns` it has to return that argument too.
        """
        arguments = [*function.args.posonlyargs, *function.args.args]
        if not arguments or depth > _MOST_CALLS:
            return False
        subject = arguments[0].arg
        for node in ast.walk(function):
            if self._changes(of, node, {subject}, depth):
                return False
            if isinstance(node, ast.Name) and node.id == subject and not isinstance(node.ctx, ast.Load):
                return False
            if returns and isinstance(node, ast.Return) and not _is_name(node.value, {subject}):
                return False
        return not returns or any(isinstance(node, ast.Return) for node in ast.walk(function))

    def _changes(
        self, of: Defined | Module, node: ast.AST, subjects: Collection[str], depth: int = 0
    ) -> bool:
        """Tell whether a node may change a member of a class that is one of the names `subjects`."""
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del(), attr=name):
                return name in self.names or name.startswith("__")
            case ast.Subscript(ctx=ast.Store() | ast.Del(), value=ast.Attribute(attr="__dict__")):
                return True
            case ast.Call():
                return self._changes_by_call(of, node, subjects, depth)
        return False

    def _changes_by_call(
        self, of: Defined | Module, call: ast.Call, subjects: Collection[str], depth: int
    ) -> bool:
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in _BY_CODE or (name == "type" and len(call.args) > 2):  # it makes a class
            return True
        if name == "delattr" or is_setattr(call):
            named = set_arguments(call)[1:2]
            return not (named and isinstance(named[0], ast.Constant) and named[0].value not in self.names)
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        passed = any(_is_name(value, subjects) for value in values)
        return passed and not self._takes(of, call.func, subjects, depth)

    def _takes(self, of: Defined | Module, called: ast.expr, subjects: Collection[str], depth: int) -> bool:
        """Tell whether a function that is called with a class leaves it alone."""
        match called:
            case ast.Name(id=name) if name in _HARMLESS:
                return True
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                return True
            case ast.Attribute(attr=name) if name in _NOTES:
                return True
        meaning = self._names.meaning(of.member, of.file, called)
        if isinstance(meaning, Defined):
            return isinstance(meaning.node, Function) and self._is_neutral(
                meaning, meaning.node, depth=depth + 1
            )
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if isinstance(called, ast.Attribute) and _is_name(called.value, subjects):
            return True  # a method of its own
        return meaning is Elsewhere.OUTSIDE or name.startswith(_MARKS)

    def _behind(
        self, member: str, file: SourceFile, aliases: dict[str, str], after: int = 0
    ) -> Iterator[ast.stmt]:
        """Yield the statements at the top level of a file that may change a class; note its other names."""
        of = Module(member, file)
        for node in parse(file).body:
            if node.lineno <= after or isinstance(node, (*_DEFINES, ast.Import, ast.ImportFrom)):
                continue
            inner = list(ast.walk(node))
            if isinstance(node, ast.Assign) and _is_name(node.value, aliases):
                real = aliases[node.value.id] if isinstance(node.value, ast.Name) else ""
                aliases |= {target.id: real for target in node.targets if isinstance(target, ast.Name)}
                yield node
                continue
            rebinds = bool(scope_names(node) & aliases.keys())
            by_code = any(isinstance(each, ast.Call) and _is_name(each.func, _BY_CODE) for each in inner)
            mentions = any(_is_name(each, aliases) for each in inner)
            if (
                rebinds
                or (by_code and after)
                or (mentions and any(self._changes(of, each, aliases) for each in inner))
            ):
                yield node

    def refuse_patches(self, chain: Collection[tuple[str, str]]) -> None:
        """Raise `SourceError` where another module changes one of the classes `chain` when it is imported."""
        wanted = {each.node.name: each for each in self.lineage if each.place in chain}
        own = {member for member, _ in chain}
        for member, file in self._files(wanted):
            if member in own or not any(acts_on(file, name) for name in wanted):
                continue
            aliases = self._aliases(member, file, wanted.values())
            for node in self._behind(member, file, aliases) if aliases else ():
                if not isinstance(node, ast.Assign) or not _is_name(node.value, aliases):
                    raise rebound(next(iter(aliases.values())), file, node)

    def _aliases(self, member: str, file: SourceFile, classes: Iterable[Defined]) -> dict[str, str]:
        """Return the names that a file imports the classes under."""
        found = {}
        for node in parse(file).body:
            if not isinstance(node, ast.ImportFrom):
                continue
            for alias in node.names:
                bound = alias.asname or alias.name
                if alias.name not in {each.node.name for each in classes}:
                    continue
                meaning = self._names.meaning(member, file, ast.Name(bound, ast.Load()))
                if isinstance(meaning, Defined) and meaning.place in self._places:
                    found[bound] = meaning.node.name
        return found

    def _files(self, classes: Iterable[str]) -> Iterator[tuple[str, SourceFile]]:
        """Yield the files that have the engines' word, or the name of a class."""
        folder = PurePosixPath(self.of.member).parts[0]
        words = (WORD, *sorted(classes))
        for member in sorted({member for word in words for member in self._names.mentioning(folder, word)}):
            if (file := self._names.file(member)) is not None:
                yield member, file

    def unexplained(
        self, names: Collection[str], chain: Collection[tuple[str, str]], spans: Collection[Span]
    ) -> SourceError | None:
        """Return the refusal for the first place that may rebind one of `names`, and that no cut runs.

        `chain` are the classes that were cut, and `spans` the lines that run.
        """
        for _, file, place in self.rebinding(names, chain):
            if not _runs(place.node, file, spans):
                return rebound(place.member, file, place.node)
        return None

    def acting(self, classes: Collection[str]) -> list[str]:
        """Return the files that do more with a class of these names than to import it or to derive one."""
        return [
            member for member, file in self._files(classes) if any(acts_on(file, name) for name in classes)
        ]

    def rebinding(
        self, names: Collection[str], chain: Collection[tuple[str, str]]
    ) -> Iterator[tuple[str, SourceFile, "RebindingPlace"]]:
        """Yield each place that may rebind one of `names`, with its file, by the name of that too.

        `chain` are the classes that are driven.
        """
        classes = frozenset(each.node.name for each in self.lineage if each.place in chain)
        own = {each.member for each in self.lineage}
        for member, file in self._files(classes):
            is_named = any(name in file.text for name in classes)
            words = _words(file)
            wanted = [name for name in names if name in words and (is_named or member in own or WORD in name)]
            by_code = is_named and _sets_by_name(file)
            if not wanted and words.isdisjoint(classes) and not by_code:
                continue
            # Many classes have a forward: a file that does nothing with this class means that of another one.
            is_about = any(acts_on(file, name) for name in classes)
            for place in _places(file):
                name = place.name.rpartition(".")[2]
                if name and name not in names and name not in classes and name != "__class__":
                    continue
                if self._rebinds(place, name, member, file, names, classes, is_about=is_about):
                    yield member, file, place

    def _rebinds(
        self,
        place: "RebindingPlace",
        name: str,
        member: str,
        file: SourceFile,
        names: Collection[str],
        classes: Collection[str],
        *,
        is_about: bool,
    ) -> bool:
        """Tell whether a place may rebind one of `names`, or one of `classes`, as far as its file shows."""
        is_about = is_about or WORD in name
        of_self = place.method_of is not None
        if name == "__class__" or (of_self and name in names):
            return of_self and (member, place.method_of) in self._places
        if place.of is None:
            before = place.name.rpartition(".")[0].rpartition(".")[2]
            known = before in classes if before else is_about and (WORD in name or _sets_by_name(file))
            return name in names and known
        is_mine = None if of_self else self.is_mine(member, file, place.of)
        if not name:
            return is_mine is True
        if name in classes and isinstance(place.node, ast.Attribute) and not of_self:
            return True
        return name in names and (is_mine is True or (is_mine is None and is_about))

    def is_mine(self, member: str, file: SourceFile, node: ast.expr) -> bool | None:
        """Tell whether an expression is a class of the lineage; None where nobody knows."""
        meaning = self._names.meaning(member, file, node)
        if isinstance(meaning, Defined):
            return meaning.place in self._places
        if isinstance(meaning, Module) or (meaning is Elsewhere.OUTSIDE and _is_imported(file, node)):
            return False
        return None


def _is_value(statement: ast.stmt) -> bool:
    """Tell whether a statement of a class binds a plain value."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return False
    try:
        ast.literal_eval(statement.value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def rebound(name: str, file: SourceFile, node: ast.AST) -> SourceError:
    """Return the refusal for a name that `node` may rebind."""
    line = getattr(node, "lineno", 1)
    return SourceError(
        Reason(f"not driven: {name} is rebound at {file.filename}:{line}", file.filename, line)
    )


_MOST_CALLS = 3
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _is_imported(file: SourceFile, node: ast.expr) -> bool:
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and any(
        isinstance(each, ast.Import | ast.ImportFrom) and root.id in scope_names(each)
        for each in parse(file).body
    )


def _is_name(node: ast.AST | None, names: Collection[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _inner(function: Function) -> Function | None:
    """Return the function that a function defines and returns."""
    own = {each.name: each for each in functions_in(function.body)}
    returned = [each.value for each in function.body if isinstance(each, ast.Return)]
    return own.get(returned[-1].id) if returned and isinstance(returned[-1], ast.Name) else None


@dataclass(frozen=True)
class RebindingPlace:
    """A place that may give an object or a class another member.

    `name` is empty where code makes it.  `of` is the object; None where a table has the name, or a call.
    `method_of` is the class whose method it stands in, if `of` is the first argument of that method.
    """

    name: str
    of: ast.expr | None
    node: ast.AST
    method_of: str | None = None

    @property
    def member(self) -> str:
        """The name alone, for a sentence."""
        return self.name.rpartition(".")[2] or "a member"

    @property
    def line(self) -> int:
        """The line of its node."""
        return int(getattr(self.node, "lineno", 0))


_WORDS = re.compile(r"""\.\s*(\w+)\b(?!\s*\()|["']([\w.]+)["']|[(,]\s*(\w+)\s*=(?!=)|\b(setattr|delattr)\b""")
_DOTTED = re.compile(r"[A-Za-z_][\w.]*")


def _sets_by_name(file: SourceFile) -> bool:
    return not _words(file).isdisjoint({"setattr", "delattr"})


@functools.lru_cache(maxsize=512)
def _words(file: SourceFile) -> frozenset[str]:
    """Return the words of a file that may be in a `RebindingPlace`, and the names after a dot."""
    found = {word for words in _WORDS.findall(file.text) for word in words if word}
    return frozenset(word.rpartition(".")[2] for word in found)


@functools.lru_cache(maxsize=512)
def _places(file: SourceFile) -> tuple[RebindingPlace, ...]:
    """Return all places of a file that may give an object or a class another member."""
    search = _Search()
    search.visit(parse(file))
    return tuple(search.places)


def _runs(node: ast.AST, file: SourceFile, spans: Collection[Span]) -> bool:
    line: int = getattr(node, "lineno", 0)
    return any(name == file.filename and first <= line <= last for name, first, last in spans)


_WITHOUT_ACT = re.compile(
    r"""^\s*from\s[^\n]*?import\s*\([^)]*\)|^\s*from\s[^\n]*|^\s*class\s+\w+\s*\([^)]*\)|["'][^"'\n]*["']""",
    re.MULTILINE,
)


@functools.lru_cache(maxsize=512)
def _acting_words(file: SourceFile) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", _WITHOUT_ACT.sub("", file.text)))


def acts_on(file: SourceFile, name: str) -> bool:
    """Tell whether a file does more with a class than to import it, to derive one and to write its name."""
    return name in file.text and name in _acting_words(file)


class _Search(ast.NodeVisitor):
    """The search of one file."""

    def __init__(self) -> None:
        self.places: list[RebindingPlace] = []
        self._classes: list[ast.ClassDef] = []
        self._functions: list[Function] = []
        self._readings: set[int] = set()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:  # named after the node
        self._classes.append(node)
        outer, self._functions = self._functions, []
        self.generic_visit(node)
        self._functions = outer
        self._classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._note(node.attr, node.value, node)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, ast.Load):
            self._readings.add(id(node.slice))
        elif isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            self._readings.add(id(node.slice))
            of = node.value.value if isinstance(node.value, ast.Attribute) else node.value
            self._note(node.slice.value, of, node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _reads_names(node.func):
            self._readings |= {id(each) for each in node.args}
        if is_setattr(node) or _is_name(node.func, {"delattr"}):
            arguments = set_arguments(node)
            name = arguments[1] if len(arguments) > 1 else None
            if isinstance(name, ast.Constant):
                self._readings.add(id(name))
            if arguments:
                self._note(str(name.value) if isinstance(name, ast.Constant) else "", arguments[0], node)
        if _makes_members(node.func):
            self.places += [
                RebindingPlace(keyword.arg, None, node) for keyword in node.keywords if keyword.arg
            ]
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        self._readings |= {id(each) for each in ast.walk(node)}
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        self._readings.add(id(node.value))
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._readings |= {id(each) for each in ast.walk(node)}
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and id(node) not in self._readings and _DOTTED.fullmatch(node.value):
            self.places.append(RebindingPlace(node.value, None, node))

    def _note(self, name: str, of: ast.expr, node: ast.AST) -> None:
        """Note a place that gives `of` another member."""
        method = self._functions[0] if self._classes and self._functions else None
        first = method.args.args[:1] if method else []
        of_self = isinstance(of, ast.Name) and any(of.id == each.arg for each in first)
        self.places.append(RebindingPlace(name, of, node, self._classes[-1].name if of_self else None))


def _reads_names(called: ast.expr) -> bool:
    """Tell whether a function does no more with a name than to look it up, or to show it."""
    match called:
        case ast.Name(id="getattr" | "hasattr" | "print"):
            return True
        case ast.Attribute(attr="debug" | "info" | "warning" | "error" | "exception" | "startswith" | "get"):
            return True
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name.startswith(_MARKS)  # whoever asks the registry is another place


def _makes_members(called: ast.expr) -> bool:
    match called:
        case ast.Name(id="dict" | "type") | ast.Attribute(attr="update"):
            return True
    return False
