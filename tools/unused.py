"""`python -m tools.unused`: definitions and files of the package that nothing in the package uses.

A name counts as used if code, or a string that is no docstring, of the package, its templates, the examples,
the fixtures or pyproject.toml names it. Strings count, because the registry, workers and templates name code
in strings. A name that only tests use is dead too: nobody who installs the package reaches it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "harness" / "deepstack_harness"
_WORD = re.compile(r"[A-Za-z_]\w*")
_DATA = {".toml", ".html", ".css", ".js", ".jinja"}
# pytest, ast, logging and hypothesis call these by their names; the catalogue finds mutants and right buffers
# by their modules, other buffers of models/ by their names, and callers by an attribute.
_CALLED_BY_NAME = ("pytest_", "visit_", "emit")
_BY_DECORATOR = {"rule", "impl", "register_fake", "fixture", "hookimpl"}
_FOUND_BY_MODULE = ("models/mutants/", "models/correct.py", "models/histories/", "models/regions/")
_BUFFER, _CALLER = "Buffer", "faulty"

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def unused() -> list[str]:
    """Return "path name" of each definition, and "path" of each file, that nothing uses."""
    trees = {
        path: ast.parse(path.read_text()) for folder in ("harness", "examples") for path in _python(folder)
    }
    used = {word for tree in trees.values() for text in _uses(tree) for word in _WORD.findall(text)}
    for path in [ROOT / "pyproject.toml", *PACKAGE.rglob("*"), *(ROOT / "fixtures").rglob("*")]:
        if path.suffix in _DATA:
            used |= set(_WORD.findall(path.read_text()))
    found = []
    for path, tree in trees.items():
        where = path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else _FOUND_BY_MODULE[0]
        if where.startswith(_FOUND_BY_MODULE):
            continue
        found += [
            f"{where} {node.name}"
            for node in _definitions(tree)
            if node.name not in used and not (where.startswith("models/") and _is_catalogued(node))
        ]
        if path.stem not in used | {"__init__", "__main__"} and "__main__" not in _strings(tree):
            found.append(where)
    return found


def _python(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def _uses(tree: ast.AST) -> Iterator[str]:
    """Yield the texts in which a file can name a definition: names, attributes, imports, strings."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (alias.name for alias in names)
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
    yield from _strings(tree)


def _strings(tree: ast.AST) -> set[str]:
    """Return the strings of a file but its docstrings, and notes that stand alone under a name."""
    nodes = list(ast.walk(tree))
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone
    }


def _is_catalogued(node: Definition) -> bool:
    """Return True for a class of models/ that the catalogue reads: a buffer, or a caller."""
    if not isinstance(node, ast.ClassDef):
        return False
    stated = {
        ast.unparse(target) for line in node.body if isinstance(line, ast.Assign) for target in line.targets
    }
    return node.name.endswith(_BUFFER) or _CALLER in stated


def _definitions(tree: ast.AST) -> Iterator[Definition]:
    """Yield the definitions that only our own code can use."""
    for node in ast.walk(tree):
        if (
            not isinstance(node, Definition)
            or node.name == "_"
            or node.name.startswith(("__", *_CALLED_BY_NAME))
        ):
            continue
        decorators = {word for each in node.decorator_list for word in _WORD.findall(ast.unparse(each))}
        if not decorators & _BY_DECORATOR:
            yield node


if __name__ == "__main__":
    lines = unused()
    print(*lines, sep="\n")
    sys.exit(bool(lines))
