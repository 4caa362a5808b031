"""Derive the names of torch and triton that `torch_compat` uses, and check that a torch has them.

`used_names` reads the imports and attributes of our sources by `ast`.  `has_at_run_time` looks a name up in
the installed packages, `Sources` in the source files of another release without running them.
"""

import ast
import functools
import importlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

PACKAGES = ("torch", "triton")
_MOVED = re.compile(r"torch[\w.]*:[\w.]+")


@dataclass(frozen=True)
class Name:
    """A dotted name, such as `torch._inductor.ir.Switch`; with several `spellings`, one is enough."""

    spellings: tuple[str, ...]

    def __str__(self) -> str:
        return " or ".join(self.spellings) or "a name that SPELLINGS does not declare"


MOVED = "moved.py"
"""A table of what some releases have and others have not: `cases/torch_facts/test_moved.py` compares it."""


def used_names(folder: Path, moved: Mapping[str, tuple[str, ...]]) -> dict[Name, str]:
    """Return each name of `PACKAGES` that the modules in `folder` use, with the `FILE:LINE` of its first use.

    `moved` has the spellings of `MODULE:NAME` (`torch_compat.inductor.SPELLINGS`).  A name that is passed as
    text counts too, in calls such as `patch.object(GraphLowering, "compile_to_module")`.  `MOVED` has
    none of them.
    """
    found: dict[Name, str] = {}
    for path in sorted(set(folder.glob("*.py")) - {folder / MOVED}):
        tree = ast.parse(path.read_text())
        known = dict(_imported(tree))
        for node in ast.walk(tree):
            for name in _names_in(node, known, moved):
                found.setdefault(name, f"{path.name}:{getattr(node, 'lineno', 0)}")
    return found


def has_at_run_time(dotted: str) -> bool:
    """Import as much of `dotted` as is a module, and look the rest up in it."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        try:
            attrgetter(".".join(parts[length:]))(module) if parts[length:] else None
        except AttributeError:
            return False
        return True
    return False


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the local names that imports of `PACKAGES` bind, each with its dotted name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module and _is_ours(node.module):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _names_in(
    node: ast.AST, known: Mapping[str, str], moved: Mapping[str, tuple[str, ...]]
) -> Iterator[Name]:
    if isinstance(node, ast.Import):
        yield from (Name((alias.name,)) for alias in node.names if _is_ours(alias.name))
    elif isinstance(node, ast.ImportFrom) and node.module and _is_ours(node.module):
        yield from (Name((f"{node.module}.{alias.name}",)) for alias in node.names)
    elif isinstance(node, ast.Attribute) and (dotted := _dotted(node, known)):
        yield Name((dotted,))
    elif isinstance(node, ast.Call):
        yield from _named_by_text(node, known)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _MOVED.fullmatch(node.value):
        module = node.value.partition(":")[0]
        yield Name(tuple(f"{module}.{spelling}" for spelling in moved.get(node.value, ())))


def _named_by_text(call: ast.Call, known: Mapping[str, str]) -> Iterator[Name]:
    """Yield names in `f(OWNER, "name")`, such as setattr, and the options in `CONFIG.patch(option=..)`."""
    match call.args:
        case [owned, ast.Constant(value=str() as text), *_] if text.isidentifier():
            owner = _dotted(owned, known)
            if owner:
                yield Name((f"{owner}.{text}",))
    function = _dotted(call.func, known)
    if function and function.endswith("config.patch"):
        module = function.removesuffix(".patch")
        yield from (Name((f"{module}.{option.arg}",)) for option in call.keywords if option.arg)


def _dotted(node: ast.expr, known: Mapping[str, str]) -> str | None:
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, known)
        return f"{owner}.{node.attr}" if owner else None
    found = known.get(node.id) if isinstance(node, ast.Name) else None
    return found if found and _is_ours(found) else None


def _is_ours(dotted: str) -> bool:
    return dotted.partition(".")[0] in PACKAGES


class Sources:
    """Python sources of a package, searched for dotted names that they define or import.

    Attributes of a value that is neither a module nor a class cannot be known, and count as present.
    """

    def __init__(self, members: Collection[str], read: Callable[[str], str]) -> None:
        """Take the file names (`torch/_guards.py`), and `read`, which returns the text of a file."""
        self._members = frozenset(members)
        self._read = read

    def has(self, dotted: str) -> bool:
        """Return whether the module of `dotted` defines or imports it; TYPE_CHECKING blocks do not count."""
        module, rest = self._split(dotted)
        return bool(module) and (not rest or self._module_has(module, rest))

    def _split(self, dotted: str) -> tuple[str, tuple[str, ...]]:
        """Return the longest prefix that is a module, and the attributes after it."""
        parts = tuple(dotted.split("."))
        for length in range(len(parts), 0, -1):
            if self._file(".".join(parts[:length])):
                return ".".join(parts[:length]), parts[length:]
        return "", parts

    def _file(self, module: str) -> str | None:
        stem = module.replace(".", "/")
        # torch ships stubs for modules that are written in C++.
        ends = (".py", "/__init__.py", ".pyi", "/__init__.pyi")
        return next((stem + end for end in ends if stem + end in self._members), None)

    def _module_has(self, module: str, rest: tuple[str, ...]) -> bool:
        bound, stars = self._bound(module)
        first, *behind = rest
        if first in bound:
            return not behind or self._member(module, bound[first], tuple(behind))
        return any(self.has(".".join((star, *rest))) for star in stars)

    def _member(self, module: str, bound: ast.AST | str, rest: tuple[str, ...]) -> bool:
        if isinstance(bound, str):  # imported from there
            return not self._split(bound)[0] or self.has(".".join((bound, *rest)))
        return not isinstance(bound, ast.ClassDef) or self._class_has(module, bound, rest[0])

    def _class_has(self, module: str, one: ast.ClassDef, name: str) -> bool:
        if name in dict(_bound_in(one.body, module)):
            return True
        bases = [ast.unparse(base).partition("[")[0] for base in one.bases]
        return any(self._module_has(module, (*base.split("."), name)) for base in bases)

    @functools.cache  # noqa: B019  # one object for each run of a test
    def _bound(self, module: str) -> tuple[Mapping[str, ast.AST | str], tuple[str, ...]]:
        """Return the names that the module's statements bind, and the modules of its star imports."""
        path = self._file(module)
        assert path is not None, module
        tree = ast.parse(self._read(path))
        package = module if "/__init__.py" in path else module.rpartition(".")[0]
        bound = dict(_bound_in(tree.body, package))
        stars = tuple(text for name, text in bound.items() if name.startswith("*") and isinstance(text, str))
        if "install_config_module" in bound:  # torch turns such a module into a ConfigModule
            stars += ("torch.utils._config_module.ConfigModule",)
        return bound, stars


def _bound_in(body: list[ast.stmt], package: str) -> Iterator[tuple[str, ast.AST | str]]:
    """Yield names that statements bind: with the statement, or the dotted name for an import."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node
            case ast.Import():
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    yield (alias.asname, alias.name) if alias.asname else (top, top)
            case ast.ImportFrom():
                yield from _bound_from(node, package)
            case ast.If() if "TYPE_CHECKING" in ast.unparse(node.test):
                yield from _bound_in(node.orelse, package)
            case _:
                yield from _bound_otherwise(node, package)


def _bound_from(node: ast.ImportFrom, package: str) -> Iterator[tuple[str, str]]:
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    module = ".".join([*above, *filter(None, [node.module])])
    for alias in node.names:
        if alias.name == "*":
            yield f"*{module}", module
        else:
            yield alias.asname or alias.name, f"{module}.{alias.name}"


def _bound_otherwise(node: ast.stmt, package: str) -> Iterator[tuple[str, ast.AST | str]]:
    """Yield the targets of an assignment, and the names bound inside a compound statement."""
    for part in ("targets", "target"):
        targets = getattr(node, part, None) or []
        for target in targets if isinstance(targets, list) else [targets]:
            names = (name for name in ast.walk(target) if isinstance(name, ast.Name))
            yield from ((name.id, node) for name in names if isinstance(name.ctx, ast.Store))
    for part in ("body", "orelse", "finalbody"):
        yield from _bound_in(getattr(node, part, []), package)
    for handler in getattr(node, "handlers", []):
        yield from _bound_in(handler.body, package)
