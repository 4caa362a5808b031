"""Syntax trees of source files, and what is looked up in them."""

import ast
import functools
import sys
import warnings
from collections.abc import Mapping, Sequence

from deepstack_harness.errors import UsageError
from deepstack_harness.sources.limits import DEPTH, MOST_DEPTH
from deepstack_harness.sources.source import SourceFile

Function = ast.FunctionDef | ast.AsyncFunctionDef
Members = Mapping[str, list[ast.stmt]]
"""The statements of a class by the name that they define; overloads share a name."""


class NoBuffer(UsageError):
    """The class is not there, or has no deepstack buffer."""


@functools.lru_cache(maxsize=16)
def parse(file: SourceFile) -> ast.Module:
    """Parse a file; raise `UsageError` with the line that does not parse.

    The tree is shared by all who ask for it: copy what you change.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # about style, and about other people's code
            return ast.parse(file.text, file.filename)
    except SyntaxError as error:
        python = ".".join(map(str, sys.version_info[:2]))
        raise UsageError(
            f"{file.filename}:{error.lineno or 1}: not valid in Python {python}: {error.msg}"
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:  # MemoryError: the parser's stack is full
        deep = f"nested too deeply: {DEPTH.advice}, up to {MOST_DEPTH:,}"
        why = str(error) if isinstance(error, ValueError) else deep
        raise UsageError(f"{file.filename} cannot be parsed: {why}") from error


def class_named(file: SourceFile, name: str) -> ast.ClassDef:
    """Return the class statement at the top level of a file; raise `NoBuffer` when there is none."""
    for node in parse(file).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise NoBuffer(f"{file.filename} has no class {name}")


def function_named(file: SourceFile, name: str) -> ast.FunctionDef | None:
    """Return the function at the top level of a file, if there is one."""
    functions = (node for node in parse(file).body if isinstance(node, ast.FunctionDef) and node.name == name)
    return next(functions, None)


def members_of(definition: ast.ClassDef, file: SourceFile) -> Members:
    """Return what a class and its bases in the same file define, by name; the class's own come first."""
    classes = [node for node in parse(file).body if isinstance(node, ast.ClassDef)]
    return _members_of(definition, classes, (definition,))


def _members_of(
    definition: ast.ClassDef, classes: Sequence[ast.ClassDef], derived: tuple[ast.ClassDef, ...]
) -> dict[str, list[ast.stmt]]:
    """Collect members; `derived` are the classes on the way here, which a damaged file may name as bases."""
    members: dict[str, list[ast.stmt]] = {}
    for node in definition.body:
        for name in _names_of(node):
            members.setdefault(name, []).append(node)
    names = [base.id for base in definition.bases if isinstance(base, ast.Name)]
    for base in (node for name in names for node in classes if node.name == name and node not in derived):
        members = {**_members_of(base, classes, (*derived, base)), **members}
    return members


def package_imports(file: SourceFile, member: str) -> dict[str, tuple[str, str]]:
    """Return what a file imports from its own package at the top level: bound name -> (module, real name).

    `member` is the file's place in the package, such as `vllm/model_executor/models/qwen3_vl.py`.
    """
    found: dict[str, tuple[str, str]] = {}
    for node in parse(file).body:
        if isinstance(node, ast.ImportFrom) and (node.level or _is_in(member, node.module)):
            module = _absolute(node, member)
            found |= {alias.asname or alias.name: (module, alias.name) for alias in node.names}
    return found


def _is_in(member: str, module: str | None) -> bool:
    return (module or "").startswith(f"{member.partition('/')[0]}.")


def _absolute(node: ast.ImportFrom, member: str) -> str:
    """Return the full name of the module, also for `from ..x import y`."""
    packages = member.split("/")[: -node.level] if node.level else []
    return ".".join([*packages, *filter(None, [node.module])])


def _names_of(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]):
            return [name]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return [name]
    return []
