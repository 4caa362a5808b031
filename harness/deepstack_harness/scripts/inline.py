"""The source of a buffer class of ours, with everything of ours that it uses, for a standalone program."""

import ast
import importlib
import inspect
from copy import deepcopy
from functools import cache

_OURS = "deepstack_harness."
_ERRORS = "deepstack_harness.errors"
_DROPPED = frozenset({"rule", "arm", "name", "in_graph"})
"""Class attributes that only the harness reads."""


def inlined(made_by: type) -> str:
    """Return the class and what it uses, without docstrings; what is used stands first.

    Names of torch and of the standard library are imported; `import torch` itself is left to the
    program.  Exceptions of the harness become plain ones.
    """
    collected = _Collected()
    collected.add(made_by.__module__, made_by.__name__)
    imports = [
        f"from {module} import {', '.join(sorted(names))}"
        for module, names in sorted(collected.imports.items())
    ]
    return "\n\n\n".join(["\n".join(imports), *collected.definitions])


class _Collected:
    """Definitions in an order in which each stands after those that it uses, and imports."""

    def __init__(self) -> None:
        self.imports: dict[str, set[str]] = {}
        self.definitions: list[str] = []
        self._seen: set[tuple[str, str]] = set()

    def add(self, module: str, name: str) -> None:
        """Collect what `module` binds to `name`; builtins and `import` statements need nothing."""
        if (module, name) in self._seen:
            return
        self._seen.add((module, name))
        node = _top_level(module).get(name)
        if isinstance(node, ast.ImportFrom):
            self._add_imported(str(node.module), name)
        elif node is not None and not isinstance(node, ast.Import):
            bare = _Bare().visit(deepcopy(node))
            for used in ast.walk(bare):
                if isinstance(used, ast.Name):
                    self.add(module, used.id)
            self.definitions.append(ast.unparse(bare))

    def _add_imported(self, source: str, name: str) -> None:
        if source == _ERRORS:
            self.definitions.append(f"class {name}(Exception):\n    pass")
        elif source.startswith(_OURS):
            self.add(source, name)
        else:
            self.imports.setdefault(source, set()).add(name)


@cache
def _top_level(module: str) -> dict[str, ast.stmt]:
    """Return the statement that binds each name at the top level of a module."""
    bound: dict[str, ast.stmt] = {}
    for node in ast.parse(inspect.getsource(importlib.import_module(module))).body:
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                bound |= {alias.asname or alias.name: node for alias in names}
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound[name] = node
            case ast.Assign(targets=targets):
                bound |= {target.id: node for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                bound[name] = node
    return bound


class _Bare(ast.NodeTransformer):
    """Transformer that removes docstrings, `@override`, and class attributes that only the harness reads."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list = [each for each in node.decorator_list if ast.unparse(each) != "override"]
        return self._without_docstring(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [each for each in node.body if not _is_dropped(each)] or [ast.Pass()]
        return self._without_docstring(node)

    def _without_docstring(self, node: ast.FunctionDef | ast.ClassDef) -> ast.AST:
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)


def _is_dropped(node: ast.stmt) -> bool:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name in _DROPPED
    return False
