"""Names of one kind, ours and those of other installed packages, and where each named thing is defined.

Another package declares names in its `pyproject.toml`, as torch's `torch_dynamo_backends` are declared:

    [project.entry-points."deepstack_harness.revisions"]
    acme_ring = "acme_buffers.ring:RingBuffer"

Names come from the metadata of installed distributions. Nothing is imported before a name is loaded.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import TypeVar

from typing_extensions import TypeIs, override

from deepstack_harness.errors import UsageError, unknown_name

GROUPS = ("families", "revisions", "callers", "incidents", "engines", "oracles", "figures")
"""What other packages can declare; the entry point group of `families` is `deepstack_harness.families`."""

OURS = "deepstack-harness"
"""This distribution, as messages call it."""


@dataclass(frozen=True)
class Extension:
    """An entry point of another distribution.

    `target` is MODULE:ATTRIBUTE (of an incident file PACKAGE:FILE), `distribution` a name and a version.
    `broken` is the reason why the target cannot be imported, as far as metadata shows; it is empty where
    nothing is known to be wrong.
    """

    group: str
    name: str
    target: str
    distribution: str
    broken: str = ""

    @property
    def summary(self) -> str:
        """One line for a list."""
        return f"of {self.distribution} ({self.target})"


@cache
def declared(group: str) -> tuple[Extension, ...]:
    """Return what installed distributions declare in `deepstack_harness.GROUP`, sorted by name."""
    extensions = []
    for point in entry_points(group=f"deepstack_harness.{group}"):
        owner = "an unnamed distribution" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        if EntryPoint.pattern.fullmatch(point.value) is None or ":" not in point.value:
            broken = f"'{point.value}' is not MODULE:ATTRIBUTE"
        else:
            # Of a top-level name find_spec imports nothing; of `a.b` it would import `a`.
            top = point.module.partition(".")[0]
            try:
                broken = "" if find_spec(top) is not None else f"module '{top}' is not installed"
            except ValueError:  # a module in sys.modules whose __spec__ is None
                broken = ""
        extensions.append(Extension(group, point.name, point.value, owner, broken))
    return tuple(sorted(extensions, key=lambda extension: (extension.name, extension.distribution)))


LoadedT = TypeVar("LoadedT")


@dataclass(frozen=True)
class Entry:
    """A place where a named thing is defined (MODULE:ATTRIBUTE), and one line that describes it.

    `fault` describes what is wrong with the thing, and is empty for one that breaks no rule. `distribution`
    is the other package that declares the name, empty for ours. `refused` is a sentence that gives the reason
    why the name cannot be loaded.
    """

    target: str
    summary: str
    fault: str = field(default="", kw_only=True)
    distribution: str = field(default="", kw_only=True)
    refused: str = field(default="", kw_only=True)


class Names(Mapping[str, Entry]):
    """The names of one kind: ours in their order, then those that other packages declare, sorted."""

    def __init__(self, kind: str, own: Mapping[str, Entry], group: str | None = None) -> None:
        """Take our names of a kind; `group` is the entry point group of other packages' names.

        `kind` is the noun of error messages, as in "unknown revision".
        """
        self.kind = kind
        self.own = own
        self._group = group

    @cached_property
    def _all(self) -> Mapping[str, Entry]:
        entries = dict(self.own)
        owners = dict.fromkeys(self.own, OURS)
        for extension in declared(self._group) if self._group else ():
            name = extension.name
            if name in owners:
                entry = entries[name]
                why = (
                    f"{self.kind} '{name}' is declared by {owners[name]} and by {extension.distribution}: "
                    "rename its entry point in one of them, or uninstall one"
                )
                entries[name] = Entry(
                    entry.target, entry.summary, distribution=entry.distribution, refused=why
                )
            else:
                why = f"{self.kind} '{name}' of {extension.distribution} cannot be loaded: {extension.broken}"
                entries[name] = Entry(
                    extension.target, extension.summary, distribution=extension.distribution,
                    refused=why if extension.broken else "",
                )  # fmt: skip
                owners[name] = extension.distribution
        return entries

    @override
    def __getitem__(self, name: str) -> Entry:
        return self._all[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    @override
    def __len__(self) -> int:
        return len(self._all)

    def load(self, name: str, fits: Callable[[object], TypeIs[LoadedT]], wanted: str) -> LoadedT:
        """Import the thing named `name`; `fits` checks its type, which `wanted` describes.

        Raises `UsageError` that quotes an unknown name and lists the known ones, and one that names
        the distribution of a thing that cannot be imported, does not fit, or is declared twice.
        """
        if name not in self:
            raise unknown_name(self.kind, name, self, elsewhere="'deepstack-harness list' has all")
        entry = self[name]
        if entry.refused:
            raise UsageError(entry.refused)
        whose = f"{self.kind} '{name}' {f'of {entry.distribution} ' if entry.distribution else ''}"
        try:
            thing = imported(entry.target)
        except Exception as error:  # another package may raise anything when imported
            if name in self.own:
                raise
            why = f"{type(error).__name__}: {error}"
            raise UsageError(f"{whose}cannot be loaded from {entry.target}: {why}") from None
        if not fits(thing):
            raise UsageError(f"{whose}is not {wanted}: {entry.target}")
        return thing


def imported(target: str) -> object:
    """Import MODULE:ATTRIBUTE; raises what the import raises, and `AttributeError`."""
    module, _, attribute = target.partition(":")
    thing: object = importlib.import_module(module)
    for part in attribute.split("."):
        thing = getattr(thing, part)
    return thing
