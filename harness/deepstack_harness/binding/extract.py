"""Compile one class or function of a module, together with the module-level names that it needs.

Everything keeps its file name and line numbers.  A name that would have to be imported from the
package is replaced by a stand-in, or refused; it is never guessed.
"""

import __future__

import ast
import builtins
import copy
import dis
import sys
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import TypeVar, cast

from deepstack_harness.binding.name_usage import writes
from deepstack_harness.binding.syntax import parse
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import SourceFile

_IMPORTABLE = sys.stdlib_module_names | {"torch"}
_ALWAYS_THERE = frozenset(dir(builtins)) | {"__name__", "__annotations__"}
_READS_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}

Import = ast.Import | ast.ImportFrom
T = TypeVar("T", ast.ClassDef, ast.FunctionDef, ast.ClassDef | ast.FunctionDef)


@dataclass(frozen=True)
class Extract:
    """Compiled code; `replaced` maps each name in it that needs a stand-in to the imported name."""

    code: CodeType
    replaced: Mapping[str, str]


def extract(
    file: SourceFile,
    root: ast.ClassDef | ast.FunctionDef,
    *,
    stand_ins: Collection[str],
    given: Collection[str],
) -> Extract:
    """Compile `root`, which is a node of `file` or a changed copy of one.

    `stand_ins` has the imported names that may be replaced, `given` the names that will be there
    when the code runs; an import of such names inside a function is left out.  Raises `UsageError` with
    file and line for a name that cannot be had.
    """
    return _Extraction(file, root, stand_ins, given).run()


class _Extraction:
    """The nodes of one module that are compiled together: more of them, until no name is missing."""

    def __init__(
        self,
        file: SourceFile,
        root: ast.ClassDef | ast.FunctionDef,
        stand_ins: Collection[str],
        given: Collection[str],
    ) -> None:
        self._tree = parse(file)
        self._filename = file.filename
        self._root = _without_imports(root, frozenset(given))
        self._stand_ins = stand_ins
        self._given = given
        self._replaced: dict[str, str] = {}
        self._brought: list[ast.stmt] = []

    def run(self) -> Extract:
        self._refuse_inner_imports(self._root)
        while missing := _global_names(code := self._compiled()) - self._known():
            for name in sorted(missing):
                self._bring(name)
        return Extract(code, self._replaced)

    def _known(self) -> frozenset[str]:
        return _ALWAYS_THERE.union(self._given, self._replaced)

    def _compiled(self) -> CodeType:
        nodes = sorted(self._brought, key=lambda node: node.lineno)
        module = ast.fix_missing_locations(ast.Module([*nodes, self._root], []))
        # Annotations name types of the package: unevaluated they need nothing.
        flags = __future__.annotations.compiler_flag
        with warnings.catch_warnings(action="ignore"):
            code: CodeType = compile(module, self._filename, "exec", flags, dont_inherit=True)
            return code

    def _bring(self, name: str) -> None:
        """Add the statements of the module that write `name`, or note a stand-in for it."""
        nodes = [node for node in self._tree.body if name in writes(node) and node not in self._brought]
        if not nodes:  # or all of them are there already, and change the name without binding it
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
        else:
            self._refuse(name, f"comes from {_origin(node, alias)}")

    def _refuse_inner_imports(self, root: ast.AST) -> None:
        for node in ast.walk(root):
            if isinstance(node, Import) and not all(_is_importable(node, alias) for alias in node.names):
                self._refuse_at(node.lineno, f"the import of {_origin(node, node.names[0])}")

    def _refuse(self, name: str, why: str) -> None:
        nodes = [each for node in (self._root, *self._brought) for each in ast.walk(node)]
        lines = [each.lineno for each in nodes if isinstance(each, ast.Name) and each.id == name]
        self._refuse_at(min(lines, default=self._root.lineno), f"'{name}', which {why}")

    def _refuse_at(self, line: int, what: str) -> None:
        raise UsageError(
            f"{self._filename}:{line}: {self._root.name} needs {what}: "
            "it cannot be supplied without importing the package"
        )


class _GivenImports(ast.NodeTransformer):
    """Replacement of imports of names that the code finds anyway: nothing, or a second name for them."""

    def __init__(self, given: frozenset[str]) -> None:
        self._given = given

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.stmt]:  # named after the node
        if not all(alias.name in self._given for alias in node.names):
            return [node]
        renamed = [f"{alias.asname} = {alias.name}" for alias in node.names if alias.asname]
        made = ast.parse("\n".join(["pass", *renamed])).body
        for each in (inner for statement in made for inner in ast.walk(statement)):
            ast.copy_location(each, node)
        return list(made)


def _without_imports(root: T, given: frozenset[str]) -> T:
    """Return `root`, or a copy that does not import the names in `given` inside its functions."""
    inner = (node for node in ast.walk(root) if isinstance(node, ast.ImportFrom))
    if not any(alias.name in given for node in inner for alias in node.names):
        return root
    return cast(T, _GivenImports(given).visit(copy.deepcopy(root)))


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
