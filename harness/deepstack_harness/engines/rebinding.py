"""Find code of a package that may give the objects of a class another member, after the class was made.

Importing a package runs what changes a class then: decorators, hooks of bases, statements after the class
and patches of other modules. What is left are places that run later, such as a function that assigns to
`forward`. `RebindingSearch` looks for them in the package. A class is refused for a place that has not run
and that is not about another class.
"""

import ast
import functools
import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import FunctionType, ModuleType

from deepstack_harness.engines.load import LoadedSource
from deepstack_harness.engines.syntax import (
    Function,
    acts_on,
    is_setattr,
    own_members,
    parse,
    set_arguments,
)
from deepstack_harness.sources.source import NoSuchMember, SourceFile

WORD = "deepstack"
"""A file that has neither this word nor the name of the class knows nothing of the payload."""

_MARKS = (
    "register",
    "support_torch_compile",
    "ignore_torch_compile",
    "auto_docstring",
    "add_start_docstrings",
)
"""Beginnings of names by which engines register a class, or mark it for a compiler or a manual."""
_READING_FUNCTIONS = frozenset({"getattr", "hasattr", "print"})
_READING_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "startswith", "get"})


@dataclass(frozen=True, eq=False)
class Defined:
    """A class of the file `member`, by its statement."""

    member: str
    file: SourceFile
    node: ast.ClassDef

    @property
    def place(self) -> tuple[str, str]:
        """Its file and its name."""
        return self.member, self.node.name


class RebindingSearch:
    """The search for code of a package that may give the objects of one class another member."""

    def __init__(self, loaded: LoadedSource, of: Defined, lineage: Mapping[type, Defined]) -> None:
        """Take a class, and its `lineage` as Python has made it."""
        self._loaded, self._of, self._lineage = loaded, of, lineage
        self._places = frozenset(item.place for item in lineage.values())
        members = [own_members(item.node) for item in lineage.values()]
        defined = {name for own in members for name in own}

        def is_value(statement: ast.stmt) -> bool:
            if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
                return False
            try:
                ast.literal_eval(statement.value)
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                return False
            return True

        self.names = frozenset(
            name
            for name in defined
            if not all(is_value(node) for own in members for node in own.get(name, ()))
        )
        """Members but for plain values, which are state that any code may change."""

    def _files(self, classes: Iterable[str]) -> Iterator[tuple[str, SourceFile]]:
        """Yield the files that have the engines' word, or the name of a class."""
        folder = PurePosixPath(self._of.member).parts[0]
        words = (WORD, *sorted(classes))
        for member in sorted({member for word in words for member in self._loaded.mentioning(folder, word)}):
            try:
                yield member, self._loaded.read(member)
            except NoSuchMember:
                continue

    def acting(self, classes: Collection[str]) -> list[str]:
        """Return the files that do more with a class of these names than to import it or to derive one."""
        return [
            member for member, file in self._files(classes) if any(acts_on(file, name) for name in classes)
        ]

    def rebinding(
        self, names: Collection[str], chain: Collection[tuple[str, str]]
    ) -> Iterator[tuple[str, SourceFile, "RebindingPlace"]]:
        """Yield each place that may rebind one of `names`: the name of its file, the file, and the place.

        `chain` are the classes whose members are called.
        """
        lineage = self._lineage.values()
        classes = frozenset(item.node.name for item in lineage if item.place in chain)
        own = {item.member for item in lineage}
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
        """Return whether a place may rebind one of `names`, or one of `classes`, as far as its file shows."""
        is_about = is_about or WORD in name
        of_self = place.method_of is not None
        if name == "__class__" or (of_self and name in names):
            return of_self and (member, place.method_of) in self._places
        if place.owner is None:
            before = place.name.rpartition(".")[0].rpartition(".")[2]
            known = before in classes if before else is_about and (WORD in name or _sets_by_name(file))
            return name in names and known
        is_own = None if of_self else self._is_of_lineage(member, place.owner)
        if not name:
            return is_own is True
        if name in classes and isinstance(place.node, ast.Attribute) and not of_self:
            return True
        return name in names and (is_own is True or (is_own is None and is_about))

    def _is_of_lineage(self, member: str, node: ast.expr) -> bool | None:
        """Return whether an expression of a file is a class of the lineage; None where it is not known."""
        path = list[str]()
        while isinstance(node, ast.Attribute):
            path.append(node.attr)
            node = node.value
        module = self._loaded.imported(member)
        if not isinstance(node, ast.Name) or module is None:
            return None
        if node.id in vars(module)["__builtins__"].stubs:
            return False  # of a package that is missing
        value = vars(module).get(node.id)
        for name in reversed(path):
            value = inspect.getattr_static(value, name, None)
        if isinstance(value, type):
            return value in self._lineage
        return False if isinstance(value, ModuleType | FunctionType) else None


@dataclass(frozen=True)
class RebindingPlace:
    """A place that may give an object or a class another member.

    `name` is empty where code makes it. `owner` is the object; None where a table or a call has the name.
    `method_of` is the class whose method it is in, if `owner` is the first argument of that method.
    """

    name: str
    owner: ast.expr | None
    node: ast.AST
    method_of: str | None = None

    @property
    def member(self) -> str:
        """The name without what is before its last dot, for a sentence."""
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
    search = _PlaceVisitor()
    search.visit(parse(file))
    return tuple(search.places)


class _PlaceVisitor(ast.NodeVisitor):
    """The visitor that collects the places of one file."""

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

    def visit_FunctionDef(self, node: Function) -> None:
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  # named after the node

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
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        name_called = called or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        # Functions that only look a name up, or print it; code that looks the class up in a registry is
        # another place.
        if name_called in (_READING_FUNCTIONS if called else _READING_METHODS) or name_called.startswith(
            _MARKS
        ):
            self._readings |= set(map(id, node.args))
        if is_setattr(node) or called == "delattr":
            arguments = set_arguments(node)
            name = arguments[1] if len(arguments) > 1 else None
            if isinstance(name, ast.Constant):
                self._readings.add(id(name))
            if arguments:
                self._note(str(name.value) if isinstance(name, ast.Constant) else "", arguments[0], node)
        if called in ("dict", "type") or (
            isinstance(node.func, ast.Attribute) and node.func.attr == "update"
        ):
            names = (keyword.arg for keyword in node.keywords)
            self.places += [RebindingPlace(name, None, node) for name in names if name]
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare | ast.Raise) -> None:
        self._readings |= set(map(id, ast.walk(node)))
        self.generic_visit(node)

    visit_Raise = visit_Compare  # noqa: N815  # named after the node

    def visit_Expr(self, node: ast.Expr) -> None:
        self._readings.add(id(node.value))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and id(node) not in self._readings and _DOTTED.fullmatch(node.value):
            self.places.append(RebindingPlace(node.value, None, node))

    def _note(self, name: str, owner: ast.expr, node: ast.AST) -> None:
        """Note a place that gives `owner` another member."""
        method = self._functions[0] if self._classes and self._functions else None
        first = method.args.args[:1] if method else []
        of_self = isinstance(owner, ast.Name) and [owner.id] == [argument.arg for argument in first]
        self.places.append(RebindingPlace(name, owner, node, self._classes[-1].name if of_self else None))
