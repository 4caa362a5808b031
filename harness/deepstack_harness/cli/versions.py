"""The loop over versions of a package: all of them are judged, or as few as a bisection needs.

`run --torch`, `repro --package P` and `repro --package P --bisect`, also with P torch, are this loop with
judges of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from packaging.version import InvalidVersion, Version

from deepstack_harness.contract.verdicts import SCHEMA_VERSION
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
    """Versions with a judge: what became of each of them so far, in the order in which they were judged."""

    versions: Sequence[K]
    judge: Callable[[K], V]
    verdicts: dict[K, V] = field(default_factory=dict)
    refused: dict[K, str] = field(default_factory=dict)

    def judged(self, version: K) -> V | None:
        """Judge one version; None, with the reason in `refused`, where that cannot be done."""
        try:
            self.verdicts[version] = self.judge(version)
        except (UsageError, MachineError) as error:
            self.refused[version] = cell(str(error))
        return self.verdicts.get(version)

    def each(self) -> Iterator[tuple[K, V | None]]:
        """Judge every version; yield it with its verdict, None where it was refused."""
        for version in self.versions:
            yield version, self.judged(version)

    def bisect(self, has: Callable[[V], bool], judged: Callable[[K], None]) -> Sequence[K]:
        """Judge as few versions as show where `has` changes; `judged` is called after each of them.

        Return two with different verdicts, and between them those that could not be judged; nothing where
        both ends are alike, or nothing is judged.
        """
        seen: dict[int, bool | None] = {}

        def judge(number: int) -> bool:
            verdict = self.judged(self.versions[number])
            judged(self.versions[number])
            seen[number] = None if verdict is None else has(verdict)
            return verdict is not None

        first = next(filter(judge, range(len(self.versions))), len(self.versions))
        last = next(filter(judge, range(len(self.versions) - 1, first, -1)), first)
        if first == last or seen[first] == seen[last]:
            return ()
        while between := [number for number in range(first + 1, last) if number not in seen]:
            doubled = first + last
            middle = min(between, key=lambda number: abs(2 * number - doubled))
            if judge(middle):
                first, last = (middle, last) if seen[middle] == seen[first] else (first, middle)
        return self.versions[first : last + 1]

    def row(self, incident: str, engine: str, change: Sequence[K]) -> dict[str, object]:
        """Return the result of `bisect` for programs; `before` and `after` are None where nothing changed."""
        before, after = (str(change[0]), str(change[-1])) if change else (None, None)
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
