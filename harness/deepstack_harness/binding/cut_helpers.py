"""Cut the functions that a model file imports from its own package out of their files.

Nothing is executed here: the result says, for every imported name, where its object will come from.
"""

import functools
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from deepstack_harness.binding.extract import Extract, extract
from deepstack_harness.binding.syntax import function_named, package_imports
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import NoSuchMember, Source, SourceFile


@dataclass(frozen=True)
class StandIn:
    """A name that is replaced by an object of ours, known under its real name."""

    name: str


@dataclass(frozen=True)
class Unavailable:
    """A name that cannot be supplied; `why` is a sentence with file and line.

    Importing it does no harm, only using it does.
    """

    why: str


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

    def __init__(self, source: Source, stand_ins: Collection[str], given: Collection[str] = ()) -> None:
        """Take a source; `stand_ins` has the real names that are never looked up.

        `given` are top-level names of its files that objects of ours replace.
        """
        self._source = source
        self._stand_ins = frozenset(stand_ins)
        self._given = frozenset(given)
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
            self._found[key] = Unavailable(f"{module}.{name} imports itself")
            try:
                self._found[key] = self._cut(module, name)
            except UsageError as error:
                self._found[key] = Unavailable(f"{name} cannot be supplied: {error}")
        return self._found[key]

    def _cut(self, module: str, name: str) -> Supply:
        member, file = self._read(module)
        names = importable(file, member) | self._stand_ins
        extracted = _extracted(file, name, names, self._given)
        if extracted is None:
            return self._passed_on(member, file, name)
        given = {each: StandIn(each) for each in self._given}
        return HelperCut(name, file, extracted, {**self.supply(member, file, extracted.replaced), **given})

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
    source: Source, member: str, name: str, *, stand_ins: Collection[str], given: Collection[str]
) -> HelperCut:
    """Cut a function at the top level of `member`; `given` are names that it is to find instead of its own.

    Raises `NoSuchMember` and another `UsageError`, with file and line, for what cannot be had.
    """
    file = source.read(member)
    root = function_named(file, name)
    if root is None:
        raise UsageError(f"{file.filename} defines no function {name}")
    known = importable(file, member) | set(stand_ins)
    extracted = extract(file, root, stand_ins=known, given=given)
    supplies = Helpers(source, stand_ins, given).supply(member, file, extracted.replaced)
    return HelperCut(name, file, extracted, supplies)


def importable(file: SourceFile, member: str) -> frozenset[str]:
    """Return the real names that `file`, which is `member`, imports from its package at its top level."""
    return frozenset(name for _, name in package_imports(file, member).values())


def stand_ins_of(replaced: Mapping[str, str]) -> dict[str, Supply]:
    """Return a stand-in for each name that was replaced."""
    return {bound: StandIn(real) for bound, real in replaced.items()}


@functools.lru_cache(maxsize=256)
def _extracted(file: SourceFile, name: str, names: frozenset[str], given: frozenset[str]) -> Extract | None:
    """Compile one function; every class of a source needs the same ones."""
    root = function_named(file, name)
    return None if root is None else extract(file, root, stand_ins=names, given=given)
