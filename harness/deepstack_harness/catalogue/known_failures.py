"""The rules that released classes are known to break, read from `fixtures/known_failures.toml`."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from deepstack_harness.catalogue.data_files import data
from deepstack_harness.catalogue.releases import covers
from deepstack_harness.catalogue.versioned import load_toml
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule

SCHEMA_VERSION = 3


@dataclass(frozen=True)
class KnownFailure:
    """Rules that classes (`*`: all) of some releases break, and the upstream issue that they wait for.

    `regimes` are those in which they are broken, and `shape` is what goes wrong, by the unit of the figure:
    `rows` are wrong, `calls` raise or are accepted, `answers` lack a level.  Any other fault of the same
    rule is new.  Empty stands for all shapes, and for either regime or both.
    """

    package: str
    releases: str
    classes: tuple[str, ...]
    rules: tuple[Rule, ...]
    reference: str
    regimes: tuple[Regime, ...] = ()
    shape: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a range that cannot be parsed; msgspec adds where it stands in the file."""
        try:
            SpecifierSet(self.releases)
        except InvalidSpecifier as error:
            raise ValueError(str(error)) from None

    def is_about(self, package: str, version: Version | None, model_class: str) -> bool:
        """Tell whether this entry speaks of that class of that version; see `releases.covers`."""
        named = "*" in self.classes or model_class in self.classes
        return named and package == self.package and covers(self.releases, version)


class KnownRules(dict[Rule, str]):
    """The known failures of one class, rule -> reference, and which faults of a rule they are about."""

    def __init__(self, entries: Iterable[KnownFailure]) -> None:
        """Take the entries that are about the class."""
        self._entries = tuple(entries)
        super().__init__({rule: entry.reference for entry in self._entries for rule in entry.rules})

    def covers(self, rule: Rule, regime: Regime, unit: str) -> bool:
        """Tell whether a fault of a rule is a known one."""
        return any(
            rule in entry.rules
            and regime in (entry.regimes or (regime,))
            and unit in (entry.shape or (unit,))
            for entry in self._entries
        )

    def states(self, rule: Rule, regime: Regime) -> bool:
        """Tell whether an entry names this regime, so that a rule that is kept in it has been mended."""
        return any(rule in entry.rules and regime in entry.regimes for entry in self._entries)


@dataclass(frozen=True)
class KnownFailures:
    """The whole file."""

    schema_version: int
    failure: tuple[KnownFailure, ...]


def load(path: Path) -> KnownFailures:
    """Read a file of known failures; raise what `load_toml` raises."""
    return load_toml(path, KnownFailures, "a file of known failures", SCHEMA_VERSION)


@cache
def known_failures() -> tuple[KnownFailure, ...]:
    """Return the entries that come with the harness."""
    return load(data("fixtures/known_failures.toml")).failure


def known_of(
    package: str, version: Version | None, model_class: str, entries: Iterable[KnownFailure] | None = None
) -> KnownRules:
    """Return rule -> reference of the known failures of one class; none for an unknown version."""
    chosen = known_failures() if entries is None else entries
    return KnownRules(entry for entry in chosen if entry.is_about(package, version, model_class))
