"""What the names of a file stand for in a package, and the order in which Python asks the classes.

Nothing runs: names are followed through imports, assignments and the branches of `if` and `try`.  What comes
from another package is `OUTSIDE`.
"""

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from deepstack_harness.engines.syntax import Function, absolute_module, own_members, parse, scope_names
from deepstack_harness.errors import Reason, SourceError
from deepstack_harness.sources.source import NoSuchMember, Source, SourceFile


class Elsewhere(Enum):
    """What a name stands for that no file of the package defines as a class or a function."""

    OUTSIDE = auto()
    """It comes from another package, or is bound nowhere."""
    UNKNOWN = auto()
    """It is the result of code."""


@dataclass(frozen=True, eq=False)
class Defined:
    """A class or function at the top level of the file `member`."""

    member: str
    file: SourceFile
    node: ast.ClassDef | Function

    @property
    def place(self) -> tuple[str, str]:
        """Its file and its name."""
        return self.member, self.node.name


@dataclass(frozen=True)
class Module:
    """A file of the package, under a name that another file imports."""

    member: str
    file: SourceFile


Meaning = Defined | Module | Elsewhere


class SourceNames:
    """The names of one source, and its files, each read once."""

    def __init__(self, source: Source) -> None:
        """Take a source; its files are read as names lead to them."""
        self._source = source
        self._read: dict[str, SourceFile | None] = {}
        self._mentioning: dict[tuple[str, str], list[str]] = {}
        self._meanings: dict[tuple[str, str], Meaning] = {}
        self._lineages: dict[tuple[str, str], tuple[Defined, ...]] = {}

    def file(self, member: str) -> SourceFile | None:
        """Return a file; None where the source does not have it."""
        if member not in self._read:
            try:
                self._read[member] = self._source.read(member)
            except NoSuchMember:
                self._read[member] = None
        return self._read[member]

    def mentioning(self, folder: str, word: str) -> list[str]:
        """Return the files below a folder whose text has a word."""
        if (folder, word) not in self._mentioning:
            self._mentioning[folder, word] = self._source.mentioning(folder, word)
        return self._mentioning[folder, word]

    def meaning(self, member: str, file: SourceFile, node: ast.expr) -> Meaning:
        """Return what an expression at the top level of a file stands for."""
        match node:
            case ast.Name(id=name):
                return self._named(member, file, name)
            case ast.Subscript(value=inner):  # Generic[T]
                return self.meaning(member, file, inner)
            case ast.Attribute(value=inner, attr=name):
                of = self.meaning(member, file, inner)
                if isinstance(of, Module):
                    return self._named(of.member, of.file, name)
                return Elsewhere.OUTSIDE if of is Elsewhere.OUTSIDE else Elsewhere.UNKNOWN
            case ast.Constant():
                return Elsewhere.OUTSIDE
        return Elsewhere.UNKNOWN

    def _named(self, member: str, file: SourceFile, name: str) -> Meaning:
        if (member, name) not in self._meanings:
            self._meanings[member, name] = Elsewhere.UNKNOWN  # which it stays where it leads to itself
            self._meanings[member, name] = self._bound_as(member, file, name)
        return self._meanings[member, name]

    def _bound_as(self, member: str, file: SourceFile, name: str) -> Meaning:
        statements = _bindings(file).get(name, ())
        if not statements:
            # A package's own file has its modules as attributes.
            inside = member.removesuffix("/__init__.py")
            inner = self._module(f"{inside}/{name}") if inside != member else None
            return inner or Elsewhere.OUTSIDE
        meanings = [self._bound(member, file, name, statement) for statement in reversed(statements)]
        known = [each for each in meanings if not isinstance(each, Elsewhere)]
        return known[0] if known else meanings[0]

    def _bound(self, member: str, file: SourceFile, name: str, statement: ast.stmt) -> Meaning:
        match statement:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                return Defined(member, file, statement)
            case ast.Assign(targets=[ast.Name()], value=value):
                return self.meaning(member, file, value)
            case ast.AnnAssign(target=ast.Name(), value=ast.expr() as value):
                return self.meaning(member, file, value)
            case ast.Import(names=aliases):
                alias = next(each for each in aliases if (each.asname or each.name.partition(".")[0]) == name)
                path = alias.name if alias.asname else name
                return self._of_module(member, path)
            case ast.ImportFrom(names=aliases):
                real = [each.name for each in aliases if (each.asname or each.name) == name]
                if real:
                    return self._imported(member, absolute_module(statement, member), real[0])
        return Elsewhere.UNKNOWN

    def _of_module(self, member: str, path: str) -> Meaning:
        inside = path.partition(".")[0] == member.partition("/")[0]
        return (self._module(path.replace(".", "/")) if inside else None) or Elsewhere.OUTSIDE

    def _imported(self, member: str, path: str, name: str) -> Meaning:
        module = self._of_module(member, path)
        if isinstance(module, Module):
            return self._named(module.member, module.file, name)
        return self._of_module(member, f"{path}.{name}")

    def _module(self, path: str) -> Module | None:
        for member in (f"{path}.py", f"{path}/__init__.py"):
            if (file := self.file(member)) is not None:
                return Module(member, file)
        return None

    def lineage(self, of: Defined) -> tuple[Defined, ...]:
        """Return a class and its bases of the package in the order in which Python asks them.

        Raises `SourceError`, with file and line, for a base that is the result of code.
        """
        if of.place not in self._lineages:
            self._lineages[of.place] = tuple(self._lineage(of, ()))
        return self._lineages[of.place]

    def _lineage(self, of: Defined, derived: tuple[tuple[str, str], ...]) -> list[Defined]:
        on_the_way = (*derived, of.place)
        bases = [base for base in self._bases(of) if base.place not in on_the_way]
        return [of, *_merged([*(self._lineage(base, on_the_way) for base in bases), bases])]

    def _bases(self, of: Defined) -> Iterator[Defined]:
        assert isinstance(of.node, ast.ClassDef)
        for base in of.node.bases:
            meaning = self.meaning(of.member, of.file, base)
            if isinstance(meaning, Defined) and isinstance(meaning.node, ast.ClassDef):
                yield meaning
            elif meaning is not Elsewhere.OUTSIDE:
                text = f"a base of {of.node.name} is made by code: nobody knows what it defines"
                raise SourceError(Reason(text, of.file.filename, base.lineno))


_known: list[tuple[Source, SourceNames]] = []


def names_of(source: Source) -> SourceNames:
    """Return the names of a source: the same ones, until other sources are asked about."""
    for known, names in _known:
        if known is source:
            return names
    _known[:] = [*_known[-1:], (source, SourceNames(source))]
    return _known[-1][1]


def _merged(orders: Sequence[list[Defined]]) -> list[Defined]:
    """Merge orders of classes as Python does (C3); where that cannot be done, in the order they are named."""
    merged: list[Defined] = []
    left = [list(order) for order in orders if order]
    while left:
        heads = [order[0] for order in left]
        later = {each.place for order in left for each in order[1:]}
        head = next((each for each in heads if each.place not in later), heads[0])
        merged.append(head)
        left = [rest for order in left if (rest := [each for each in order if each.place != head.place])]
    return merged


@functools.lru_cache(maxsize=64)
def _bindings(file: SourceFile) -> Mapping[str, list[ast.stmt]]:
    """Return the statements at the top level of a file, also in its blocks, by the names that they bind."""
    bound: dict[str, list[ast.stmt]] = {}
    todo: list[ast.AST] = list(reversed(parse(file).body))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            inner = list(ast.iter_child_nodes(node))
            todo += [each for each in reversed(inner) if isinstance(each, ast.stmt | ast.ExceptHandler)]
        elif isinstance(node, ast.stmt):
            for name in scope_names(node):
                bound.setdefault(name, []).append(node)
    return bound


@functools.lru_cache(maxsize=1024)
def own_names(of: Defined) -> frozenset[str]:
    """Return the names that the body of a class binds."""
    assert isinstance(of.node, ast.ClassDef)
    return frozenset(own_members(of.node))
