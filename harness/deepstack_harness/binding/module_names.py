"""The module-level names that a cut-out class needs, brought along or refused."""

import __future__

import ast
import builtins
import copy
import dis
import functools
import sys
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field
from types import CodeType

from deepstack_harness.binding.uses import writes
from deepstack_harness.errors import UsageError

_IMPORTABLE = sys.stdlib_module_names | {"torch"}
_ALWAYS_THERE = frozenset(dir(builtins)) | {"__name__", "__annotations__"}
_READS_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}

Import = ast.Import | ast.ImportFrom


@functools.lru_cache(maxsize=16)
def parse(text: str, filename: str) -> ast.Module:
    """The syntax tree, which nobody may change, or `UsageError` with the line that does not parse."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about style, and about other people's code
            return ast.parse(text, filename)
    except SyntaxError as error:
        python = ".".join(map(str, sys.version_info[:2]))
        raise UsageError(f"{filename}:{error.lineno}: no Python {python} code: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{filename} does not parse: {error}") from error


@dataclass
class Cutting:
    """Nodes of one module that are compiled together, and what they cannot do without.

    `stand_ins` has the names that may be replaced instead of imported; `replaced`
    tells under which name the cut code knows each one that was.
    """

    tree: ast.Module
    filename: str
    root: ast.ClassDef | ast.FunctionDef
    stand_ins: Collection[str]
    given: Collection[str]
    replaced: dict[str, str] = field(default_factory=dict)
    _brought: list[ast.stmt] = field(default_factory=list)

    def compile(self) -> CodeType:
        """Compile with all that is named; raises `UsageError` for a name that cannot be had."""
        self._refuse_inner_imports(self.root)
        while missing := _global_names(code := self._compiled()) - self._known():
            for name in sorted(missing):
                self._bring(name)
        return code

    def _known(self) -> frozenset[str]:
        return _ALWAYS_THERE.union(self.given, self.replaced)

    def _compiled(self) -> CodeType:
        nodes = sorted(self._brought, key=lambda node: node.lineno)
        module = ast.fix_missing_locations(ast.Module([*nodes, self.root], []))
        # Annotations name types of vLLM: unevaluated they ask for nothing.
        flags = __future__.annotations.compiler_flag
        with warnings.catch_warnings(action="ignore"):
            code: CodeType = compile(module, self.filename, "exec", flags, dont_inherit=True)
            return code

    def _bring(self, name: str) -> None:
        nodes = [node for node in self.tree.body if name in writes(node) and node not in self._brought]
        if not nodes:  # or all are here already and change it, without binding it
            self._refuse(name, "is bound nowhere at the top level of the file")
        for node in nodes:
            if isinstance(node, Import):
                self._bring_import(name, node)
            else:
                self._refuse_inner_imports(node)
                self._brought.append(node)

    def _bring_import(self, name: str, node: Import) -> None:
        alias = next(alias for alias in node.names if _bound_as(alias) == name)
        if _importable(node, alias):
            alone = copy.copy(node)
            alone.names = [alias]
            self._brought.append(alone)
        elif alias.name in self.stand_ins:
            self.replaced[name] = alias.name
        else:
            self._refuse(name, f"comes from {_origin(node, alias)}")

    def _refuse_inner_imports(self, root: ast.AST) -> None:
        for node in ast.walk(root):
            if isinstance(node, Import) and not all(_importable(node, alias) for alias in node.names):
                self._refuse_at(node.lineno, f"the import of {_origin(node, node.names[0])}")

    def _refuse(self, name: str, why: str) -> None:
        nodes = [each for node in (self.root, *self._brought) for each in ast.walk(node)]
        lines = [each.lineno for each in nodes if isinstance(each, ast.Name) and each.id == name]
        self._refuse_at(min(lines, default=self.root.lineno), f"'{name}', which {why}")

    def _refuse_at(self, line: int, what: str) -> None:
        raise UsageError(
            f"{self.filename}:{line}: {self.root.name} needs {what}: "
            "it cannot be supplied without importing vLLM"
        )


def _bound_as(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _importable(node: Import, alias: ast.alias) -> bool:
    if isinstance(node, ast.Import):
        return alias.name.partition(".")[0] in _IMPORTABLE
    return not node.level and (node.module or "").partition(".")[0] in _IMPORTABLE


def _origin(node: Import, alias: ast.alias) -> str:
    return alias.name if isinstance(node, ast.Import) else "." * node.level + (node.module or "")


def _global_names(code: CodeType) -> set[str]:
    """The names that `code` looks up outside itself, its functions and classes included."""
    instructions = list(dis.get_instructions(code))
    stored = {str(each.argval) for each in instructions if each.opname == "STORE_NAME"}
    own = {str(each.argval) for each in instructions if each.opname in _READS_GLOBAL} - stored
    inner = {name for each in code.co_consts if isinstance(each, CodeType) for name in _global_names(each)}
    # What a module stores its functions see too; what a class stores only its own body does.
    return own | (inner - stored if code.co_name == "<module>" else inner)
