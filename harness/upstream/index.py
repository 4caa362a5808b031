"""Find a release on the package indexes that are configured on this machine.

Finding is unearth's work.  unearth takes every refusal for an empty index, so the
client here raises instead: a release that does not exist and an index that cannot
be asked are told apart.
"""

import functools
import logging
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from unearth import Link, Package, PackageFinder
from unearth.auth import MultiDomainBasicAuth
from unearth.fetchers import PyPIClient

from harness.errors import MachineError, UsageError
from harness.upstream import kept, pip_settings
from harness.upstream.pip_settings import PipSettings
from harness.upstream.published import PublishedFile

_NAME = "vllm"
_ABSENT = {404, 410}
_TIMEOUT = httpx2.Timeout(30, connect=5)  # seconds: a machine without a network says so at once
_UNREACHABLE = (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError)


class Index:
    """All indexes and `find-links` places that pip is told of, as one."""

    def __init__(self, settings: PipSettings | None = None) -> None:
        """Without `settings`, those of pip."""
        self._settings = settings or pip_settings.read()
        self._places = _places(self._settings)

    def find(self, version: Version) -> PublishedFile:
        """The release's wheel, of any platform, or else its sdist.

        Raises `UsageError` when it does not exist, naming neighbours that do,
        and `MachineError` when that cannot be known.
        """
        found, unreachable, said = self._look_up()
        wanted = SpecifierSet(f"=={version}")
        matching = [package for package in found if wanted.contains(str(package.version), prereleases=True)]
        if matching:
            links = [package.link for package in matching]
            best = min(links, key=lambda link: (not link.is_wheel, not link.is_file))
            return PublishedFile(best, self._client)
        if unreachable or not found:
            reasons = "; ".join(unreachable or said) or "pip is told of no place that has vllm"
            raise MachineError(f"vllm {version} cannot be looked up: {reasons}; {kept.alternatives()}")
        raise UsageError(f"there is no vllm {version}: {_neighbours(version, found)}")

    def _look_up(self) -> tuple[list[Package], list[str], list[str]]:
        """All releases of all places, why a place could not be asked, and what unearth says of the rest."""
        found: list[Package] = []
        unreachable: list[str] = []
        with _unearth_warnings() as said:
            for kind, address in self._places:
                try:
                    found += self._ask(kind, address)
                except _UNREACHABLE as error:
                    unreachable.append(f"{Link(address).redacted} cannot be reached ({str(error) or repr(error)})")
        return found, unreachable, said

    def _ask(self, kind: str, address: str) -> Sequence[Package]:
        """All releases one place has, for any platform and Python, yanked ones included."""
        finder = PackageFinder(self._client, ignore_compatibility=True, **{kind: [address]})  # type: ignore[arg-type]
        return list(finder.find_all_packages(_NAME, allow_yanked=True))

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
        indexes = [address for kind, address in self._places if kind == "index_urls"]
        client.auth = MultiDomainBasicAuth(prompting=False, index_urls=indexes)
        return client


class _Client(PyPIClient):
    def get(self, *args: Any, **kwargs: Any) -> httpx2.Response:
        """Raise `HTTPStatusError` for every refusal but "no such page"."""
        response = super().get(*args, **kwargs)
        if response.is_error and response.status_code not in _ABSENT:
            response.raise_for_status()
        return response


def _places(settings: PipSettings) -> list[tuple[str, str]]:
    """unearth's keyword and an address for each; local folders that do not exist hold nothing."""
    default = PackageFinder().sources[0]["url"]  # unearth's default index is pip's
    indexes = [] if settings.no_index else [settings.index_url or default, *settings.extra_index_urls]
    links = [link for link in settings.find_links if "://" in link or Path(link).exists()]
    return [*(("index_urls", url) for url in indexes), *(("find_links", link) for link in links)]


def _neighbours(version: Version, found: Sequence[Package]) -> str:
    known = sorted({Version(package.version) for package in found if package.version})
    below = sum(each < version for each in known)
    near = ", ".join(map(str, known[max(0, below - 2) : below + 2]))
    return f"near it are {near}, the newest is {known[-1]}"


@contextmanager
def _unearth_warnings() -> Iterator[list[str]]:
    """Collect instead of printing: an index that lacks vLLM is no news while another one has it."""
    logger = logging.getLogger("unearth.collector")
    said: list[str] = []

    def hold_back(record: logging.LogRecord) -> bool:
        said.append(record.getMessage())
        return False

    logger.addFilter(hold_back)
    try:
        yield said
    finally:
        logger.removeFilter(hold_back)
