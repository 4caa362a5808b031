"""Read single files out of a wheel or an sdist on a package index.

By byte ranges with remotezip where the server has them (half a second instead of 300 MB),
otherwise from a download, which stays in the cache.
"""

import functools
import io
import logging
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import httpx2
from remotezip import PartialBuffer, RemoteZip, RemoteZipError
from unearth import Link, PackageFinder
from unearth.errors import HashMismatchError, UnpackError
from unearth.fetchers import Fetcher, PyPIClient

from deepstack_harness.errors import MachineError
from deepstack_harness.sources import cache
from deepstack_harness.sources.archive import Archive
from deepstack_harness.sources.archive_files import read_zipped
from deepstack_harness.sources.known_package import KnownPackage
from deepstack_harness.sources.redact import Redactor
from deepstack_harness.sources.source import NoSuchMember

_SLACK = 1 << 12
_NEAR = 1 << 16

_LOG = logging.getLogger("deepstack_harness.sources")


class RemoteArchive:
    """A wheel or an sdist on an index, or in a folder that stands for one."""

    def __init__(self, package: KnownPackage, link: Link, client: PyPIClient, redact: Redactor) -> None:
        """Read through `client`, which carries certificates, proxies and credentials.

        `redact` keeps the credentials out of messages.
        """
        self._package = package
        self._link = link
        self._client = client
        self._redact = redact

    def read(self, member: str) -> tuple[bytes, str]:
        """Return the bytes of one file, and the name to show for it.

        Raises `NoSuchMember`, or `MachineError` when the server fails.
        """
        with self._failures_named():
            return self._read(member)

    def texts(self, folder: str, word: str) -> dict[str, bytes]:
        """Return the Python files right in `folder` that have `word`; a wheel costs two range reads.

        Raises `MachineError` when the server fails.
        """
        with self._failures_named(), tempfile.TemporaryDirectory() as own:
            return self._archive(self._partial(folder, Path(own))).texts(folder, word)

    @contextmanager
    def _failures_named(self) -> Iterator[None]:
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

    def _partial(self, folder: str, own: Path) -> Path:
        """Return a file with everything that is needed to read `folder`: by ranges, or the whole one."""
        if self._link.is_file:
            return self._link.file_path
        if self._link.is_wheel:
            try:
                return _sparse_copy(_RangeFetcher(self._client, self._link.normalized, None), folder, own)
            except (_NoRanges, zipfile.BadZipFile, RemoteZipError):
                pass
        return PackageFinder(cast("Fetcher", self._client)).download(self._link, own)

    def _read(self, member: str) -> tuple[bytes, str]:
        if self._link.is_file:
            return self._archive(self._link.file_path).read_bytes(member)
        if not self._link.is_wheel:
            return self._download(member)
        try:
            return self._by_ranges(member)
        except (_NoRanges, zipfile.BadZipFile, RemoteZipError):
            return self._download(member)

    def _by_ranges(self, member: str) -> tuple[bytes, str]:
        with self._zip() as wheel:
            if member not in wheel.namelist():
                raise NoSuchMember(self._link.filename, member)
            return read_zipped(wheel, member, self._link.filename), f"{self._link.filename}/{member}"

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
    """Describe an error in one line; a status is told without the address, which may carry a password."""
    if isinstance(error, httpx2.HTTPStatusError):
        return f"it answers {error.response.status_code} {error.response.reason_phrase}"
    if isinstance(error, HashMismatchError):
        return "its digest is not the one that the index gives"
    return (str(error) or type(error).__name__).splitlines()[0]


def _sparse_copy(server: "_RangeFetcher", folder: str, own: Path) -> Path:
    """Write the wheel with holes: its directory, its metadata and `folder` lie where they belong.

    Files of one folder follow each other in a wheel, so one range holds them all.
    """
    with RemoteZip("wheel", fetcher=lambda *_, **__: server, support_suffix_range=False) as wheel:
        first, size = wheel.start_dir, server.size
        wanted = (f"{folder}/", ".dist-info/METADATA")
        members = [info for info in wheel.infolist() if any(part in info.filename for part in wanted)]
    copy = own / "partial.whl"
    with copy.open("wb") as file:
        file.truncate(size)
        for begin, end in [*_spans(members, first), (first, size)]:
            file.seek(begin)
            file.write(server.read(begin, end - 1))
    return copy


def _spans(members: list[zipfile.ZipInfo], end_of_files: int) -> list[tuple[int, int]]:
    """Return byte ranges (first, behind last) of members; what lies close together is read at once."""
    spans: list[tuple[int, int]] = []
    for info in sorted(members, key=lambda member: member.header_offset):
        # A local header has 30 bytes and names; its extra field may differ from the directory's.
        behind = info.header_offset + 30 + len(info.filename.encode()) + info.compress_size + _SLACK
        if spans and info.header_offset <= spans[-1][1] + _NEAR:
            spans[-1] = (spans[-1][0], min(behind, end_of_files))
        else:
            spans.append((info.header_offset, min(behind, end_of_files)))
    return spans


class _NoRanges(Exception):
    """The server answers with whole files only."""


class _RangeFetcher:
    """A source of bytes for RemoteZip: `fetch((first, last))`, or `fetch((-count, None))` for the end."""

    def __init__(self, client: PyPIClient, url: str, session: object, **options: object) -> None:
        self._client = client
        self._url = url
        self.size = 0
        """Bytes of the whole file, once something was read."""

    def read(self, first: int, last: int) -> bytes:
        """Return the bytes first..last."""
        return self._ask(first, last)[0]

    def fetch(self, data_range: tuple[int, int | None], stream: bool = False) -> PartialBuffer:
        first, last = data_range
        if last is None:
            size = self._ask(0, 0)[1]
            first, last = max(0, size + first), size - 1
        data, _ = self._ask(first, last)
        return PartialBuffer(io.BytesIO(data), first, len(data), stream=False)

    def _ask(self, first: int, last: int) -> tuple[bytes, int]:
        """Return the bytes first..last, and the size of the whole file."""
        headers = {"Range": f"bytes={first}-{last}", "Accept-Encoding": "identity"}
        with self._client.stream("GET", self._url, headers=headers) as response:
            response.raise_for_status()
            size = response.headers.get("Content-Range", "").rpartition("/")[2]
            if response.status_code != httpx2.codes.PARTIAL_CONTENT or not size.isdecimal():
                raise _NoRanges
            self.size = int(size)
            return response.read(), self.size
