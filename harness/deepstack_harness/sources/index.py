"""Releases on the package indexes that are configured on this machine, and their files.

unearth does the search. It takes every refusal for an empty index, so the client here raises instead: a
release that does not exist and an index that cannot be reached are different errors. Files are read by byte
ranges with remotezip where the server has them (half a second instead of 300 MB), otherwise from a download,
which stays in the cache.
"""

import atexit
import functools
import io
import logging
import platform
import ssl
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx2
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from remotezip import PartialBuffer, RemoteZip, RemoteZipError
from unearth import Link, Package, PackageFinder
from unearth.auth import MultiDomainBasicAuth
from unearth.errors import HashMismatchError, UnpackError
from unearth.fetchers import Fetcher, PyPIClient

from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.sources import cache, pip_settings
from deepstack_harness.sources.archive import Archive, read_zipped
from deepstack_harness.sources.pip_settings import PipSettings, Redactor
from deepstack_harness.sources.source import KnownPackage, NoSuchMember, nearest_releases

_SLACK = 1 << 12
"""Bytes read beyond a member of a wheel, for the extra field of its header."""
_NEAR = 1 << 16
"""Bytes between two members up to which one request reads both: it costs less than a round trip."""

_LOG = logging.getLogger("deepstack_harness.sources")


class RemoteArchive:
    """A wheel or an sdist on an index, or in a folder that serves as one."""

    def __init__(self, package: KnownPackage, link: Link, client: PyPIClient, redact: Redactor) -> None:
        """Read through `client`, which carries certificates, proxies and credentials.

        `redact` removes the credentials from messages.
        """
        self._package = package
        self._link = link
        self._client = client
        self._redact = redact

    def read(self, member: str) -> tuple[bytes, str]:
        """Return the bytes of one file, and the name to show for it.

        Raises `NoSuchMember`, or `MachineError` when the server fails.
        """
        with self._failures_as_machine_errors():
            if self._link.is_file:
                return self._archive(self._link.file_path).read_bytes(member)
            if self._link.is_wheel:
                try:
                    with self._zip() as wheel:
                        if member not in wheel.namelist():
                            raise NoSuchMember(self._link.filename, member)
                        data = read_zipped(wheel, member, self._link.filename)
                        return data, f"{self._link.filename}/{member}"
                except (_NoRanges, zipfile.BadZipFile, RemoteZipError):
                    pass
            return self._download(member)

    def python_files(self) -> Mapping[str, bytes]:
        """Return every Python file of the package, by member; a wheel costs a few range reads.

        Raises `MachineError` when the server fails.
        """
        with self._failures_as_machine_errors(), tempfile.TemporaryDirectory() as own:
            return self._archive(self._partial(Path(own))).python_files()

    @contextmanager
    def _failures_as_machine_errors(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.HTTPError, UnpackError, OSError, ValueError) as error:
            why = self._redact(reason(error))
            # `from None`: a traceback of the client's own error may show the address.
            raise MachineError(
                f"{self._shown} cannot be read ({why}); {cache.alternatives(self._package.name)}"
            ) from None

    @property
    def _shown(self) -> str:
        return self._redact(self._link.url_without_fragment)

    def _archive(self, path: Path) -> Archive:
        return Archive(self._package, path, shown=self._link.filename)

    @contextmanager
    def opened(self) -> Iterator[zipfile.ZipFile]:
        """Open a wheel to read several members: its directory is fetched once, and each member by range.

        Raises `MachineError` when the server fails, or has whole files only.
        """
        try:
            with self._zip() as wheel:
                yield wheel
        except _NoRanges:
            raise MachineError(f"{self._shown} cannot be read by byte ranges") from None
        except (httpx2.HTTPError, zipfile.BadZipFile, RemoteZipError, OSError) as error:
            # `from None`: a traceback of the client's own error may show the address.
            raise MachineError(f"{self._shown} cannot be read ({self._redact(reason(error))})") from None

    def _zip(self) -> zipfile.ZipFile:
        if self._link.is_file:
            return zipfile.ZipFile(self._link.file_path)
        fetcher = functools.partial(_RangeFetcher, self._client)
        remote: zipfile.ZipFile = RemoteZip(
            self._link.normalized, fetcher=fetcher, support_suffix_range=False
        )
        return remote

    def _partial(self, own: Path) -> Path:
        """Return a file with all Python files of the package in it: by ranges, or the whole one."""
        if self._link.is_file:
            return self._link.file_path
        if self._link.is_wheel:
            try:
                return _sparse_copy(
                    _RangeFetcher(self._client, self._link.normalized, None), self._package, own
                )
            except (_NoRanges, zipfile.BadZipFile, RemoteZipError):
                pass
        return PackageFinder(cast("Fetcher", self._client)).download(self._link, own)

    def _download(self, member: str) -> tuple[bytes, str]:
        """Download into the cache, or, where that cannot be written, to the folder for temporary files."""
        _LOG.warning("%s is downloaded whole, since no part of it can be read alone", self._shown)
        try:
            cache.archives().mkdir(parents=True, exist_ok=True)
            return self._download_below(cache.archives(), member)
        except OSError as error:
            cache.warn(error)
            return self._download_below(None, member)

    def _download_below(self, folder: Path | None, member: str) -> tuple[bytes, str]:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            finder = PackageFinder(cast("Fetcher", self._client))
            path = finder.download(self._link, own)  # checks the hash that the index gives
            archive = self._archive(path)
            try:
                data, _ = archive.read_bytes(member)
            finally:  # without this member too: the next one is read from it
                if folder:
                    path.replace(folder / path.name)
            return data, f"{self._link.filename}/{member}"


def reason(error: Exception) -> str:
    """Describe an error in one line; a status is shown without the address, which may carry a password."""
    if isinstance(error, httpx2.HTTPStatusError):
        return f"it answers {error.response.status_code} {error.response.reason_phrase}"
    if isinstance(error, HashMismatchError):
        return "its digest is not the one that the index gives"
    return (str(error) or type(error).__name__).splitlines()[0]


def _sparse_copy(server: "_RangeFetcher", package: KnownPackage, own: Path) -> Path:
    """Write the wheel with holes: its directory, its metadata and all Python files are at their offsets.

    Files of one folder follow each other in a wheel: the 3,231 of vLLM 0.33.0 take 13 ranges.
    """
    with RemoteZip("wheel", fetcher=lambda *_, **__: server, support_suffix_range=False) as wheel:
        first, size = wheel.start_dir, server.size
        members = [
            info
            for info in wheel.infolist()
            if ".dist-info/METADATA" in info.filename
            or (info.filename.endswith(".py") and f"/{package.module}/" in f"/{info.filename}")
        ]
    copy = own / "partial.whl"
    with copy.open("wb") as file:
        file.truncate(size)
        for begin, end in [*_spans(members, first), (first, size)]:
            file.seek(begin)
            file.write(server.read(begin, end - 1))
    return copy


def _spans(members: list[zipfile.ZipInfo], end_of_files: int) -> list[tuple[int, int]]:
    """Return byte ranges (first, last + 1) of members; ranges that are close together are joined."""
    spans: list[tuple[int, int]] = []
    for info in sorted(members, key=lambda member: member.header_offset):
        # A local header has 30 bytes and names; its extra field may differ from the directory's.
        end = info.header_offset + 30 + len(info.filename.encode()) + info.compress_size + _SLACK
        if spans and info.header_offset <= spans[-1][1] + _NEAR:
            spans[-1] = (spans[-1][0], min(end, end_of_files))
        else:
            spans.append((info.header_offset, min(end, end_of_files)))
    return spans


class _NoRanges(Exception):
    """The server only sends whole files."""


class _RangeFetcher:
    """A source of bytes for RemoteZip: `fetch((first, last))`, or `fetch((-count, None))` for the end."""

    def __init__(self, client: PyPIClient, url: str, session: object, **options: object) -> None:
        self._client = client
        self._url = url
        self.size = 0
        """Bytes of the whole file, once something was read."""

    def read(self, first: int, last: int) -> bytes:
        """Return the bytes first..last."""
        return self._fetch(first, last)[0]

    def fetch(self, data_range: tuple[int, int | None], stream: bool = False) -> PartialBuffer:
        first, last = data_range
        if last is None:
            size = self._fetch(0, 0)[1]
            first, last = max(0, size + first), size - 1
        data, _ = self._fetch(first, last)
        return PartialBuffer(io.BytesIO(data), first, len(data), stream=False)

    def _fetch(self, first: int, last: int) -> tuple[bytes, int]:
        """Return the bytes first..last, and the size of the whole file."""
        headers = {"Range": f"bytes={first}-{last}", "Accept-Encoding": "identity"}
        with self._client.stream("GET", self._url, headers=headers) as response:
            response.raise_for_status()
            size = response.headers.get("Content-Range", "").rpartition("/")[2]
            if response.status_code != httpx2.codes.PARTIAL_CONTENT or not size.isdecimal():
                raise _NoRanges
            self.size = int(size)
            return response.read(), self.size


_ABSENT = {404, 410}
_TIMEOUT = httpx2.Timeout(30, connect=5)  # seconds: without a network a connection fails at once
_UNREACHABLE = (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError)


@dataclass
class _Listing:
    """The releases of one package in all places together.

    `unreachable` names the places that could not be reached, and why; `warnings` has unearth's warnings about
    the others, such as that a page is not there.
    """

    packages: list[Package] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def versions(self) -> list[Version]:
        """Return every version once, the newest last."""
        return sorted({Version(str(package.version)) for package in self.packages})


class Index:
    """All indexes and `find-links` places that pip is configured with, for one package."""

    def __init__(self, package: KnownPackage, settings: PipSettings | None = None) -> None:
        """Take pip's settings where none are given."""
        self._package = package
        self._settings = settings or pip_settings.read()
        # In pip's order; like pip, without local folders that do not exist. unearth's default index is pip's.
        configured = [self._settings.index_url or PackageFinder().sources[0]["url"]]
        configured += self._settings.extra_index_urls
        self._indexes: list[str] = [] if self._settings.no_index else configured
        links = self._settings.find_links
        self._links = [link for link in links if "://" in link or Path(link).exists()]
        self._redact = Redactor(self._settings.addresses)

    def find(self, version: Version) -> RemoteArchive:
        """Return the release's wheel, of any platform, or else its sdist.

        Raises `UsageError` when it does not exist, naming the nearest ones that do, and
        `MachineError` when that cannot be known.
        """
        listing = self._listing
        wanted = SpecifierSet(f"=={version}")
        matching = [item for item in listing.packages if wanted.contains(str(item.version), prereleases=True)]
        if matching:
            # The best is the smallest: no local build (0.22.1+cu129), a wheel, a file that is here.
            best = min(matching, key=lambda file: (
                Version(str(file.version)) != version, not file.link.is_wheel, not file.link.is_file
            ))  # fmt: skip
            return RemoteArchive(self._package, best.link, self._client, self._redact)
        name = self._package.name
        if listing.unreachable or not listing.packages:
            raise MachineError(
                f"{name} {version} cannot be looked up: {self._reasons}; {cache.alternatives(name)}"
            )
        raise UsageError(f"there is no {name} {version}: {nearest_releases(version, listing.versions())}")

    def versions(self) -> list[Version]:
        """Return every release there is, the newest last; raise `MachineError` when none can be seen."""
        releases = self._listing.versions()
        if not releases:
            raise MachineError(f"the releases of {self._package.name} cannot be listed: {self._reasons}")
        return releases

    def yanked(self) -> set[Version]:
        """Return the releases of which every file is yanked (PEP 592): pip installs them only by `==`."""
        kept = {Version(str(item.version)) for item in self._listing.packages if not item.link.is_yanked}
        return set(self._listing.versions()) - kept

    def newest(self) -> Version:
        """Return the release that `pip install` takes: final, not yanked, and made for this Python.

        Raises `MachineError` where none can be seen.
        """
        final = []
        for item in self._listing.packages:
            with suppress(InvalidSpecifier):  # pip ignores it too
                wanted = SpecifierSet(item.link.requires_python or "")
                if not wanted.contains(platform.python_version(), prereleases=True):
                    continue
            version = Version(str(item.version))
            if not item.link.is_yanked and not version.is_prerelease:
                final.append(version)
        if not final:
            raise MachineError(f"the newest {self._package.name} cannot be looked up: {self._reasons}")
        return max(final)

    @property
    def _reasons(self) -> str:
        """Why something that was looked for may be missing."""
        reasons = "; ".join(self._listing.unreachable or self._listing.warnings)
        return self._redact(reasons) or f"pip is told of no place that has {self._package.name}"

    @functools.cached_property
    def _listing(self) -> _Listing:
        listing = _Listing()
        with _unearth_warnings(listing.warnings):
            places: list[tuple[list[str], list[str]]] = [([address], []) for address in self._indexes]
            places += [([], [address]) for address in self._links]
            for indexes, links in places:
                try:
                    finder = PackageFinder(
                        cast("Fetcher", self._client), index_urls=indexes, find_links=links,
                        ignore_compatibility=True,  # for any platform and Python
                    )  # fmt: skip
                    listing.packages += finder.find_all_packages(self._package.name, allow_yanked=True)
                except _UNREACHABLE as error:
                    (address,) = (*indexes, *links)
                    listing.unreachable.append(f"{address} cannot be reached ({reason(error)})")
        return listing

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
        client.auth = MultiDomainBasicAuth(prompting=False, index_urls=self._indexes)
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


@contextmanager
def _unearth_warnings(messages: list[str]) -> Iterator[None]:
    """Collect unearth's warnings: a package that one index does not have may be on another one."""
    logger = logging.getLogger("unearth.collector")

    def hold_back(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            messages.append(record.getMessage())
        return False

    logger.addFilter(hold_back)
    try:
        yield
    finally:
        logger.removeFilter(hold_back)
