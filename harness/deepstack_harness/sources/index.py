"""Find a release on the package indexes that are configured on this machine.

unearth does the search.  It takes every refusal for an empty index, so the client here raises
instead: a release that does not exist and an index that cannot be asked are told apart.
"""

import atexit
import functools
import logging
import platform
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx2
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from unearth import Package, PackageFinder
from unearth.auth import MultiDomainBasicAuth
from unearth.fetchers import Fetcher, PyPIClient

from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.sources import cache, pip_settings
from deepstack_harness.sources.known_package import KnownPackage
from deepstack_harness.sources.pip_settings import PipSettings
from deepstack_harness.sources.redact import Redactor
from deepstack_harness.sources.remote import RemoteArchive, reason

_ABSENT = {404, 410}
_TIMEOUT = httpx2.Timeout(30, connect=5)  # seconds: a machine without a network says so at once
_UNREACHABLE = (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError)


@dataclass(frozen=True)
class _Place:
    """An index, or a `find-links` page or folder."""

    address: str
    is_index: bool


@dataclass
class _Listing:
    """The releases of one package in all places together.

    `unreachable` says which places could not be asked, and why; `said` has unearth's warnings
    about the others, such as that a page is not there.
    """

    packages: list[Package] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def versions(self) -> list[Version]:
        """Return every version once, the newest last."""
        return sorted({Version(str(package.version)) for package in self.packages})


class Index:
    """All indexes and `find-links` places that pip is configured with, asked for one package."""

    def __init__(self, package: KnownPackage, settings: PipSettings | None = None) -> None:
        """Take pip's settings where none are given."""
        self._package = package
        self._settings = settings or pip_settings.read()
        self._places = _places(self._settings)
        self._redact = Redactor(self._settings.addresses)

    def find(self, version: Version) -> RemoteArchive:
        """Return the release's wheel, of any platform, or else its sdist.

        Raises `UsageError` when it does not exist, naming neighbours that do, and
        `MachineError` when that cannot be known.
        """
        listing = self._listing
        wanted = SpecifierSet(f"=={version}")
        matching = [each for each in listing.packages if wanted.contains(str(each.version), prereleases=True)]
        if matching:
            best = min(matching, key=lambda each: _rank(each, version))
            return RemoteArchive(self._package, best.link, self._client, self._redact)
        name = self._package.name
        if listing.unreachable or not listing.packages:
            raise MachineError(
                f"{name} {version} cannot be looked up: {self._reasons}; {cache.alternatives(name)}"
            )
        raise UsageError(f"there is no {name} {version}: {_neighbours(version, listing.versions())}")

    def versions(self) -> list[Version]:
        """Return every release there is, the newest last; raise `MachineError` when none can be seen."""
        found = self._listing.versions()
        if not found:
            raise MachineError(f"the releases of {self._package.name} cannot be listed: {self._reasons}")
        return found

    def newest(self) -> Version:
        """Return the release that `pip install` takes: final, not yanked, and made for this Python.

        Raises `MachineError` where none can be seen.
        """
        offered = [each for each in self._listing.packages if not each.link.is_yanked and _fits(each)]
        final = [version for each in offered if not (version := Version(str(each.version))).is_prerelease]
        if not final:
            raise MachineError(f"the newest {self._package.name} cannot be looked up: {self._reasons}")
        return max(final)

    @property
    def _reasons(self) -> str:
        """Why something that was looked for may be missing."""
        told = "; ".join(self._listing.unreachable or self._listing.said)
        return self._redact(told) or f"pip is told of no place that has {self._package.name}"

    @functools.cached_property
    def _listing(self) -> _Listing:
        listing = _Listing()
        with _unearth_warnings(listing.said):
            for place in self._places:
                try:
                    listing.packages += self._ask(place)
                except _UNREACHABLE as error:
                    listing.unreachable.append(f"{place.address} cannot be reached ({reason(error)})")
        return listing

    def _ask(self, place: _Place) -> Sequence[Package]:
        """Return all releases that one place has, for any platform and Python, yanked ones included."""
        finder = PackageFinder(
            cast("Fetcher", self._client),
            index_urls=[place.address] if place.is_index else [],
            find_links=[] if place.is_index else [place.address],
            ignore_compatibility=True,
        )
        return list(finder.find_all_packages(self._package.name, allow_yanked=True))

    @functools.cached_property
    def _client(self) -> PyPIClient:
        cert = self._settings.cert
        client = _Client(
            verify=ssl.create_default_context(cafile=cert) if cert else True,
            trusted_hosts=self._settings.trusted_hosts,
            proxy=self._settings.proxy,
            timeout=_TIMEOUT,
            follow_redirects=True,
        )
        indexes = [place.address for place in self._places if place.is_index]
        client.auth = MultiDomainBasicAuth(prompting=False, index_urls=indexes)
        atexit.register(client.close)
        return client


def known_releases(package: KnownPackage) -> list[Version]:
    """Return the releases that the configured indexes list, the newest last; raise `MachineError`."""
    return Index(package).versions()


class _Client(PyPIClient):
    def get(self, *args: Any, **kwargs: Any) -> httpx2.Response:
        """Get a page; raise `HTTPStatusError` for every refusal but "no such page"."""
        response = super().get(*args, **kwargs)
        if response.is_error and response.status_code not in _ABSENT:
            response.raise_for_status()
        return response


def _places(settings: PipSettings) -> list[_Place]:
    """Return the places in pip's order; like pip, leave out local folders that do not exist."""
    default = PackageFinder().sources[0]["url"]  # unearth's default index is pip's
    indexes = [] if settings.no_index else [settings.index_url or default, *settings.extra_index_urls]
    links = [link for link in settings.find_links if "://" in link or Path(link).exists()]
    return [
        *(_Place(address, is_index=True) for address in indexes),
        *(_Place(address, is_index=False) for address in links),
    ]


def _rank(package: Package, version: Version) -> tuple[bool, bool, bool]:
    """Return a key by which the best file is the smallest: no local build (0.22.1+cu129), a wheel, here."""
    return Version(str(package.version)) != version, not package.link.is_wheel, not package.link.is_file


def _fits(package: Package) -> bool:
    """Return True unless the file says that it is for another Python."""
    try:
        wanted = SpecifierSet(package.link.requires_python or "")
    except InvalidSpecifier:  # pip ignores it too
        return True
    return wanted.contains(platform.python_version(), prereleases=True)


def _neighbours(version: Version, known: Sequence[Version]) -> str:
    below = sum(each < version for each in known)
    near = ", ".join(map(str, known[max(0, below - 2) : below + 2]))
    return f"near it are {near}, the newest is {known[-1]}"


@contextmanager
def _unearth_warnings(said: list[str]) -> Iterator[None]:
    """Collect unearth's warnings: that one index lacks a package is no news while another one has it."""
    logger = logging.getLogger("unearth.collector")

    def hold_back(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            said.append(record.getMessage())
        return False

    logger.addFilter(hold_back)
    try:
        yield
    finally:
        logger.removeFilter(hold_back)
