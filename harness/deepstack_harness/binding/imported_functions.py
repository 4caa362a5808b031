"""Functions that a model file imports from its own vLLM, cut out of the file they are defined in."""

import ast
import functools
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import CodeType
from typing import NoReturn

from deepstack_harness.binding.ambient import show_in_tracebacks
from deepstack_harness.binding.module_names import Cutting, parse
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import NoSuchMember, Source, SourceFile


class CannotSupply(UsageError):
    """Cut code used something that only the whole vLLM has."""


class Refused:
    """Stands where a helper cannot be supplied; using it says why, not having it does no harm."""

    def __init__(self, why: str) -> None:
        """`why` is a sentence with file and line."""
        self._why = why

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Raise `CannotSupply`."""
        raise CannotSupply(self._why)

    def __getattr__(self, name: str) -> NoReturn:
        """Raise `CannotSupply`."""
        raise CannotSupply(self._why)


class Helpers:
    """Supplies what model files of one source import from vLLM: stand-ins first, then the real code.

    Nothing of vLLM is imported, and nothing but the named functions and what they
    name in turn is compiled, each under its own file name and lines.
    """

    def __init__(self, source: Source, stand_ins: Mapping[str, object]) -> None:
        """`stand_ins` has what is never looked up, by its real name."""
        self._source = source
        self._stand_ins = stand_ins
        self._made: dict[tuple[str, str], object] = {}

    def importable(self, file: SourceFile) -> frozenset[str]:
        """The real names that `file` imports from vLLM at its top level."""
        return frozenset(name for _, name in imports(file, "").values())

    def supply(self, member: str, file: SourceFile, wanted: Iterable[str]) -> dict[str, object]:
        """What the code of `file`, which is `member`, finds under each of the names `wanted`.

        Raises `MachineError` when a file cannot be fetched; a helper that cannot
        be had is a `Refused`.
        """
        origins = imports(file, member)
        return {bound: self._resolve(*origins[bound]) for bound in wanted}

    def _resolve(self, module: str, name: str) -> object:
        if name in self._stand_ins:
            return self._stand_ins[name]
        key = (module, name)
        if key not in self._made:
            self._made[key] = Refused(f"{module}.{name} imports itself")
            try:
                self._made[key] = self._cut(module, name)
            except UsageError as error:
                self._made[key] = Refused(f"{name} cannot be supplied: {error}")
        return self._made[key]

    def _cut(self, module: str, name: str) -> object:
        member, file = self._read(module)
        compiled = _compiled(file, name, self.importable(file))
        if compiled is None:
            return self._passed_on(member, file, name)
        code, replaced = compiled
        names: dict[str, object] = {"__name__": f"{__name__}.{module}", **self.supply(member, file, replaced)}
        show_in_tracebacks(file)
        exec(code, names)
        return names[name]

    def _passed_on(self, member: str, file: SourceFile, name: str) -> object:
        """A name that its module imports from yet another one."""
        if name not in imports(file, member):
            raise CannotSupply(f"{file.filename} defines no function {name}")
        return self.supply(member, file, [name])[name]

    def _read(self, module: str) -> tuple[str, SourceFile]:
        path = module.replace(".", "/")
        try:
            return f"{path}.py", self._source.read(f"{path}.py")
        except NoSuchMember:
            with suppress(NoSuchMember):
                return f"{path}/__init__.py", self._source.read(f"{path}/__init__.py")
            raise


@functools.lru_cache(maxsize=256)
def _compiled(file: SourceFile, name: str, importable: frozenset[str]) -> tuple[CodeType, list[str]] | None:
    """The code of one function and what it needs of vLLM; every class of a source asks for the same ones."""
    tree = parse(file.text, file.filename)
    root = _definition(tree, name)
    if root is None:
        return None
    cutting = Cutting(tree, file.filename, root, importable, given=())
    return cutting.compile(), list(cutting.replaced)


def imports(file: SourceFile, member: str) -> dict[str, tuple[str, str]]:
    """What `file`, which is `member`, imports from vLLM, by the name it is bound to: (module, real name)."""
    found: dict[str, tuple[str, str]] = {}
    for node in parse(file.text, file.filename).body:
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("vllm.")):
            module = _absolute(node, member)
            found |= {alias.asname or alias.name: (module, alias.name) for alias in node.names}
    return found


def _absolute(node: ast.ImportFrom, member: str) -> str:
    """The full name of the module, also for `from ..x import y`."""
    packages = member.split("/")[: -node.level] if node.level else []
    return ".".join([*packages, *filter(None, [node.module])])


def _definition(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    return next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name), None)
