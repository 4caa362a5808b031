"""What released classes are known to break, read from `fixtures/known_failures.toml`."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from deepstack_harness.catalogue.data_files import data
from deepstack_harness.catalogue.versioned import load_toml
from deepstack_harness.contract.rules import Rule

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class KnownFailure:
    """Rules that classes (`*`: all) of a version range break, and the upstream issue they wait for."""

    releases: str
    classes: tuple[str, ...]
    rules: tuple[Rule, ...]
    reference: str

    def __post_init__(self) -> None:
        """Refuse a range that does not read; msgspec then says where it stands."""
        try:
            SpecifierSet(self.releases)
        except InvalidSpecifier as error:
            raise ValueError(str(error)) from None

    def covers(self, version: Version, model_class: str) -> bool:
        """Whether this entry speaks of that class of that release."""
        named = "*" in self.classes or model_class in self.classes
        return named and SpecifierSet(self.releases).contains(version, prereleases=True)


@dataclass(frozen=True)
class KnownFailures:
    """The whole file."""

    schema_version: int
    failure: tuple[KnownFailure, ...]


def load(path: Path) -> KnownFailures:
    """Read a file of known failures; raises what `load_toml` raises."""
    return load_toml(path, KnownFailures, "a file of known failures", SCHEMA_VERSION)


@cache
def known_failures() -> tuple[KnownFailure, ...]:
    """The entries that come with the harness."""
    return load(data("fixtures/known_failures.toml")).failure


def known_of(label: str, model_class: str, entries: Iterable[KnownFailure] | None = None) -> dict[Rule, str]:
    """Rule -> reference for a class of a source labelled `vllm VERSION`; nothing for a source without one."""
    try:
        version = Version(label.removeprefix("vllm "))
    except InvalidVersion:
        return {}
    chosen = known_failures() if entries is None else entries
    return {
        rule: entry.reference
        for entry in chosen
        if entry.covers(version, model_class)
        for rule in entry.rules
    }
