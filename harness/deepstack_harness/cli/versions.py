"""The loop over versions of a package: all of them are judged, or as few as a bisection needs.

`run --torch`, `repro --package P` and `repro --package P --bisect`, also with P torch, are this loop with
judges of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, TypeVar

from packaging.version import InvalidVersion, Version

from deepstack_harness.contract.verdicts import SCHEMA_VERSION
from deepstack_harness.document.blocks import Document
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.text import cell

if TYPE_CHECKING:
    from deepstack_harness.sources.source import KnownPackage

K = TypeVar("K")
V = TypeVar("V")


def most_steps(count: int) -> int:
    """Return how many of `count` versions a search judges, where all of them can be judged."""
    return count if count < 2 else 2 + (count - 2).bit_length()


@dataclass
class VersionLoop(Generic[K, V]):
    """Versions, and what became of each version that was judged.

    `change` has, after a bisection, the two versions between which verdicts change, and between them those
    that could not be judged; it is empty where both ends are alike, or nothing was judged.
    """

    versions: Sequence[K]
    verdicts: dict[K, V] = field(default_factory=dict)
    refused: dict[K, str] = field(default_factory=dict)
    change: Sequence[K] = ()

    def bisected(self, key: Callable[[V], object]) -> Iterator[K]:
        """Yield the ends, and then as few versions as show where the key of the verdicts changes.

        Whoever iterates judges each version (`judge`) before the next.
        """
        seen: dict[int, object] = {}
        tried: set[int] = set()
        while True:
            known = sorted(seen)
            if len(known) < 2:
                last = len(self.versions) - 1
                wanted = range(last, known[0], -1) if known else range(last + 1)
                left = [number for number in wanted if number not in tried]
            elif seen[known[0]] == seen[known[-1]]:
                return
            else:
                before, after = next((a, b) for a, b in pairwise(known) if seen[a] != seen[b])
                self.change, middle = self.versions[before : after + 1], before + after
                left = [number for number in range(before + 1, after) if number not in tried]
                left.sort(key=lambda number, middle=middle: abs(2 * number - middle))  # type: ignore[misc]
            if not left:
                return
            tried.add(left[0])
            version = self.versions[left[0]]
            yield version
            if version in self.verdicts:
                seen[left[0]] = key(self.verdicts[version])

    def judge(self, version: K, document: Document[V]) -> Document:
        """Show a document that returns the verdict on a version; where it refuses, note its reason."""
        try:
            self.verdicts[version] = yield from document
        except (UsageError, MachineError) as error:
            self.refused[version] = cell(str(error))

    def row(self, incident: str, engine: str) -> dict[str, object]:
        """Return the result of a bisection for programs; `before` and `after` are None without a change."""
        before, after = (str(self.change[0]), str(self.change[-1])) if self.change else (None, None)
        return {
            "schema_version": SCHEMA_VERSION, "system": "bisect", "incident": incident, "engine": engine,
            "before": before, "after": after,
            "not_judged": {str(version): why for version, why in self.refused.items()},
        }  # fmt: skip


def listed_releases(package: KnownPackage) -> tuple[list[Version], set[Version]]:
    """Return every release on the index, and those of them that are yanked.

    Raises `MachineError` where none can be seen.
    """
    # Not at the top: the clients for an index take longer to import than a local source to judge.
    from deepstack_harness.sources.index import Index

    index = Index(package)
    return index.versions(), index.yanked()


def choose_releases(versions: Iterable[Version], since: str | None, until: str | None) -> list[Version]:
    """Return the final releases of a range, oldest first; `until` 0.33 takes 0.33.0 and 0.33.1 in.

    Raises `UsageError` for what is no version.
    """
    first, last = _version("--since", since), _version("--until", until)
    return sorted(
        version
        for version in set(versions)
        if not version.is_prerelease
        and (first is None or version >= first)
        and (last is None or version <= last or version.release[: len(last.release)] == last.release)
    )


def _version(option: str, text: str | None) -> Version | None:
    try:
        return None if text is None else Version(text)
    except InvalidVersion as error:
        raise UsageError(f"{option} '{text}' is no version, such as 0.33.0") from error


def engine_releases(
    name: str, since: str | None, until: str | None
) -> tuple[KnownPackage, list[Version], list[Version], set[Version]]:
    """Return an engine's package, its releases of a range, all of them, and those that are yanked.

    Raises `UsageError` for what is no engine, no version, or a range without a release, and `MachineError`
    where releases cannot be listed.
    """
    from deepstack_harness.engines.known import named_package

    package = named_package(name)
    if package is None:
        raise UsageError(f"--package '{name}' is no engine whose releases can be read: try vllm")
    listed, yanked = listed_releases(package)
    chosen = choose_releases(listed, since, until)
    if not chosen:
        raise UsageError(f"{package.name} has no release from {since} to {until}")
    return package, chosen, listed, yanked
