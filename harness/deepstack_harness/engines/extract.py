"""Compile one class or function of a module, together with the module-level names that it needs.

Everything keeps its file name and line numbers.  A name that would have to be imported from the package is
replaced by a stand-in, or refused; it is never guessed.  `Helpers` follows the functions that a file
imports from its own package, and cuts them out of their files too: the result says, for every imported
name, where its object will come from.  Nothing is executed here.
"""

import __future__

import ast
import builtins
import copy
import dis
import functools
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType
from typing import TypeVar, cast

from deepstack_harness.engines.syntax import function_named, package_imports, parse, writes
from deepstack_harness.errors import Reason, SourceError, UsageError
from deepstack_harness.sources.source import NoSuchMember, Source, SourceFile

_IMPORTABLE = sys.stdlib_module_names | {"torch"}
_ALWAYS_THERE = frozenset(dir(builtins)) | {"__name__", "__annotations__"}
_READS_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}

Import = ast.Import | ast.ImportFrom
T = TypeVar("T", ast.ClassDef, ast.FunctionDef, ast.ClassDef | ast.FunctionDef, ast.stmt)


DECORATED, DEFAULT = "__deepstack_decorated__", "__deepstack_default__"
"""Names of the functions by which cut code makes a decorator, or a default, that may not be supplied."""


@dataclass(frozen=True)
class Extract:
    """Compiled code; `replaced` maps each name in it that needs a stand-in to the imported name.

    `foreign` has the names of other packages, each with the sentence that refuses whoever uses it.  `spans`
    are the lines that run: the file, a first and a last line.
    """

    code: CodeType
    replaced: Mapping[str, str]
    foreign: Mapping[str, Reason] = field(default_factory=dict)
    spans: tuple[tuple[str, int, int], ...] = ()


def extract(
    file: SourceFile,
    root: ast.ClassDef | ast.FunctionDef,
    *,
    stand_ins: Collection[str],
    provided: Collection[str],
    may_be_foreign: bool = False,
    others: Sequence[ast.stmt] = (),
) -> Extract:
    """Compile `root`, which is a node of `file` or a changed copy of one, and `others` of its top level.

    `stand_ins` has the imported names that may be replaced, `provided` the names that will be there
    when the code runs; an import of either inside a function is left out.  Raises `UsageError` with
    file and line for a name that cannot be had; of another package it does no harm where it `may_be_foreign`.
    """
    return _Extraction(file, root, stand_ins, provided, others, may_be_foreign=may_be_foreign).run()


class _Extraction:
    """The nodes of one module that are compiled together: more of them, until no name is missing."""

    def __init__(
        self,
        file: SourceFile,
        root: ast.ClassDef | ast.FunctionDef,
        stand_ins: Collection[str],
        provided: Collection[str],
        others: Sequence[ast.stmt],
        *,
        may_be_foreign: bool,
    ) -> None:
        self._tree = parse(file)
        self._filename = file.filename
        self._may_be_foreign = may_be_foreign
        self._foreign: dict[str, Reason] = {}
        there = frozenset({*provided, *stand_ins})
        self._root = _without_imports(root, there)
        self._others = [_without_imports(each, there) for each in others]
        if may_be_foreign:
            imported = _imported_names(self._tree)
            self._root = _with_late_definitions(self._root, imported)
            self._others = [_with_late_definitions(each, imported) for each in self._others]
        self._stand_ins = stand_ins
        self._provided = provided
        self._replaced: dict[str, str] = {}
        self._brought: list[ast.stmt] = []

    def run(self) -> Extract:
        for each in (self._root, *self._others):
            self._refuse_inner_imports(each)
        while missing := _global_names(code := self._compiled()) - self._known():
            for name in sorted(missing):
                self._bring(name)
        return Extract(code, self._replaced, self._foreign, tuple(self._spans()))

    def _spans(self) -> Iterator[tuple[str, int, int]]:
        """Yield the lines of what is compiled: of a class its members, of anything else all of it."""
        for node in (self._root, *self._others, *self._brought):
            for each in node.body if isinstance(node, ast.ClassDef) else [node]:
                yield self._filename, each.lineno, each.end_lineno or each.lineno

    def _known(self) -> frozenset[str]:
        return _ALWAYS_THERE.union(self._provided, self._replaced, self._foreign, (DECORATED, DEFAULT))

    def _compiled(self) -> CodeType:
        nodes = sorted((*self._brought, self._root, *self._others), key=lambda node: node.lineno)
        module = ast.fix_missing_locations(ast.Module(nodes, []))
        # Annotations name types of the package: unevaluated they need nothing.
        flags = __future__.annotations.compiler_flag
        with warnings.catch_warnings(action="ignore"):
            code: CodeType = compile(module, self._filename, "exec", flags, dont_inherit=True)
            return code

    def _bring(self, name: str) -> None:
        """Add the statements of the module that write `name`, or note a stand-in for it."""
        nodes = [
            node
            for node in self._tree.body
            if name in writes(node) and node not in self._brought and node not in self._others
        ]
        if not nodes and name in self._stand_ins:  # imported inside of a function
            self._replaced[name] = name
        elif not nodes:  # or all of them are there already, and change the name without binding it
            self._refuse(name, "is bound nowhere at the top level of the file")
        for node in nodes:
            if isinstance(node, Import):
                self._bring_import(name, node)
            else:
                self._refuse_inner_imports(node)
                self._brought.append(node)

    def _bring_import(self, name: str, node: Import) -> None:
        alias = next(alias for alias in node.names if _bound_as(alias) == name)
        if _is_importable(node, alias):
            alone = copy.copy(node)
            alone.names = [alias]
            self._brought.append(alone)
        elif alias.name in self._stand_ins:
            self._replaced[name] = alias.name
        elif self._may_be_foreign:
            self._foreign[name] = self._refusal(name, f"comes from {_origin(node, alias)}")
        else:
            self._refuse(name, f"comes from {_origin(node, alias)}")

    def _refuse_inner_imports(self, root: ast.AST) -> None:
        for node in ast.walk(root):
            if isinstance(node, Import) and not all(_is_importable(node, alias) for alias in node.names):
                self._refuse_at(node.lineno, f"the import of {_origin(node, node.names[0])}")

    def _refuse(self, name: str, why: str) -> None:
        raise SourceError(self._refusal(name, why))

    def _refusal(self, name: str, why: str) -> Reason:
        nodes = [each for node in (self._root, *self._others, *self._brought) for each in ast.walk(node)]
        lines = [each.lineno for each in nodes if isinstance(each, ast.Name) and each.id == name]
        return self._refusal_at(min(lines, default=self._root.lineno), f"'{name}', which {why}")

    def _refuse_at(self, line: int, what: str) -> None:
        raise SourceError(self._refusal_at(line, what))

    def _refusal_at(self, line: int, what: str) -> Reason:
        return Reason(
            f"{self._root.name} needs {what}: it cannot be supplied without importing the package",
            self._filename,
            line,
        )


class _ProvidedImports(ast.NodeTransformer):
    """Replacement of imports of names that the code finds anyway: nothing, or a second name for them."""

    def __init__(self, provided: frozenset[str]) -> None:
        self._provided = provided

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.stmt]:  # named after the node
        if not all(alias.name in self._provided for alias in node.names):
            return [node]
        renamed = [f"{alias.asname} = {alias.name}" for alias in node.names if alias.asname]
        made = ast.parse("\n".join(["pass", *renamed])).body
        for each in (inner for statement in made for inner in ast.walk(statement)):
            ast.copy_location(each, node)
        return list(made)


def _without_imports(root: T, provided: frozenset[str]) -> T:
    """Return `root`, or a copy that does not import the names in `provided` inside its functions."""
    inner = (node for node in ast.walk(root) if isinstance(node, ast.ImportFrom))
    if not any(alias.name in provided for node in inner for alias in node.names):
        return root
    return cast(T, _ProvidedImports(provided).visit(copy.deepcopy(root)))


class _LateDefinitions(ast.NodeTransformer):
    """Wrapping of decorators and defaults that name an import, so that none of them fails a definition."""

    def __init__(self, imported: frozenset[str]) -> None:
        self._imported = imported

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:  # named after the node
        self.generic_visit(node)
        node.decorator_list = [self._late(DECORATED, each) for each in node.decorator_list]
        node.args.defaults = [self._late(DEFAULT, each) for each in node.args.defaults]
        node.args.kw_defaults = [each and self._late(DEFAULT, each) for each in node.args.kw_defaults]
        return node

    def _late(self, function: str, node: ast.expr) -> ast.expr:
        if not any(isinstance(each, ast.Name) and each.id in self._imported for each in ast.walk(node)):
            return node
        none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        call = ast.Call(ast.Name(function, ast.Load()), [ast.Lambda(none, node)], [])
        for each in (call, call.func, call.args[0]):
            ast.copy_location(each, node)
        return call


def _with_late_definitions(root: T, imported: frozenset[str]) -> T:
    return cast(T, _LateDefinitions(imported).visit(copy.deepcopy(root)))


def _imported_names(tree: ast.Module) -> frozenset[str]:
    """Return the names that a file imports at its top level, but for the standard library and torch."""
    imports = [node for node in tree.body if isinstance(node, Import)]
    return frozenset(
        _bound_as(alias) for node in imports for alias in node.names if not _is_importable(node, alias)
    )


def _bound_as(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _is_importable(node: Import, alias: ast.alias) -> bool:
    """Tell whether an import is of the standard library or torch."""
    if isinstance(node, ast.Import):
        return alias.name.partition(".")[0] in _IMPORTABLE
    return not node.level and (node.module or "").partition(".")[0] in _IMPORTABLE


def _origin(node: Import, alias: ast.alias) -> str:
    return alias.name if isinstance(node, ast.Import) else "." * node.level + (node.module or "")


def _global_names(code: CodeType) -> set[str]:
    """Return the names that `code` looks up outside itself, its functions and classes included."""
    instructions = list(dis.get_instructions(code))
    stored = {str(each.argval) for each in instructions if each.opname == "STORE_NAME"}
    own = {str(each.argval) for each in instructions if each.opname in _READS_GLOBAL} - stored
    inner = {name for each in code.co_consts if isinstance(each, CodeType) for name in _global_names(each)}
    # Functions see what their module stores; they do not see what the body of a class stores.
    return own | (inner - stored if code.co_name == "<module>" else inner)


@dataclass(frozen=True)
class StandIn:
    """A name that is replaced by an object of ours, known under its real name."""

    name: str


@dataclass(frozen=True)
class Unavailable:
    """A name that cannot be supplied; `why` has file and line.

    Importing it does no harm, only using it does.
    """

    why: Reason


@dataclass(frozen=True, eq=False)
class HelperCut:
    """A compiled function of the package, and what its own code finds under imported names."""

    name: str
    file: SourceFile
    extract: Extract
    supplies: Mapping[str, "Supply"]


Supply = StandIn | Unavailable | HelperCut


class Helpers:
    """Finder of what model files of one source import: stand-ins first, then real functions.

    Functions are compiled under their own file names and lines, with the functions that they
    import in turn, each of them once.
    """

    def __init__(self, source: Source, stand_ins: Collection[str], provided: Collection[str] = ()) -> None:
        """Take a source; `stand_ins` has the real names that are never looked up.

        `provided` are top-level names of its files that objects of ours replace.
        """
        self._source = source
        self._stand_ins = frozenset(stand_ins)
        self._provided = frozenset(provided)
        self._found: dict[tuple[str, str], Supply] = {}

    def supply(self, member: str, file: SourceFile, wanted: Mapping[str, str]) -> dict[str, Supply]:
        """Return what the code of `file`, which is `member`, finds under the bound names of `wanted`.

        `wanted` maps them to imported names.  Raises `MachineError` when a file cannot be fetched.
        """
        origins = package_imports(file, member)
        # What has a stand-in may come from another package, which this source does not have.
        return {
            bound: StandIn(name) if name in self._stand_ins else self._resolve(*origins[bound])
            for bound, name in wanted.items()
        }

    def _resolve(self, module: str, name: str) -> Supply:
        key = (module, name)
        if key not in self._found:
            self._found[key] = Unavailable(Reason(f"{module}.{name} imports itself"))
            try:
                self._found[key] = self._cut(module, name)
            except UsageError as error:
                self._found[key] = Unavailable(Reason(f"{name} cannot be supplied: {error}"))
        return self._found[key]

    def _cut(self, module: str, name: str) -> Supply:
        member, file = self._read(module)
        names = importable(file, member) | self._stand_ins
        extracted = _extracted(file, name, names, self._provided)
        if extracted is None:
            return self._passed_on(member, file, name)
        provided = {each: StandIn(each) for each in self._provided}
        return HelperCut(name, file, extracted, {**self.supply(member, file, extracted.replaced), **provided})

    def _passed_on(self, member: str, file: SourceFile, name: str) -> Supply:
        """Look up a name that its module imports from yet another one."""
        if name not in package_imports(file, member):
            raise UsageError(f"{file.filename} defines no function {name}")
        _, imported = package_imports(file, member)[name]
        return self.supply(member, file, {name: imported})[name]

    def _read(self, module: str) -> tuple[str, SourceFile]:
        path = module.replace(".", "/")
        try:
            return f"{path}.py", self._source.read(f"{path}.py")
        except NoSuchMember:
            with suppress(NoSuchMember):
                return f"{path}/__init__.py", self._source.read(f"{path}/__init__.py")
            raise


def cut_function(
    source: Source, member: str, name: str, *, stand_ins: Collection[str], provided: Collection[str]
) -> HelperCut:
    """Cut a function at the top level of `member`; `provided` are found instead of names of its own.

    Raises `NoSuchMember` and another `UsageError`, with file and line, for what cannot be had.
    """
    file = source.read(member)
    root = function_named(file, name)
    if root is None:
        raise UsageError(f"{file.filename} defines no function {name}")
    known = importable(file, member) | set(stand_ins)
    extracted = extract(file, root, stand_ins=known, provided=provided)
    supplies = Helpers(source, stand_ins, provided).supply(member, file, extracted.replaced)
    return HelperCut(name, file, extracted, supplies)


def importable(file: SourceFile, member: str) -> frozenset[str]:
    """Return the real names that `file`, which is `member`, imports from its package at its top level."""
    return frozenset(name for _, name in package_imports(file, member).values())


def stand_ins_of(replaced: Mapping[str, str]) -> dict[str, Supply]:
    """Return a stand-in for each name that was replaced."""
    return {bound: StandIn(real) for bound, real in replaced.items()}


@functools.lru_cache(maxsize=256)
def _extracted(
    file: SourceFile, name: str, names: frozenset[str], provided: frozenset[str]
) -> Extract | None:
    """Compile one function; every class of a source needs the same ones."""
    root = function_named(file, name)
    return None if root is None else extract(file, root, stand_ins=names, provided=provided)
