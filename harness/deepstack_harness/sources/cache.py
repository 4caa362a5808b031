"""SHA-256-checked disk cache of release files. A miss, damage or a read-only folder is never fatal.

Every file has its digest in `NAME.sha256`, and a file that does not match is a miss. Where the cache cannot
be written, files are stored in a private folder of this process, which its workers read too: a worker with
foreign code has no network to fetch them again. Several processes may use the cache at once: both files are
written under another name and then renamed, so that a reader finds the old one, the new one or none, and a
reader that comes between the two sees a digest that does not match. Nothing is locked, and nothing is ever
removed.
"""

import atexit
import functools
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from deepstack_harness import files

_PRIVATE = "DEEPSTACK_HARNESS_PRIVATE_CACHE"
"""Environment variable that leads workers to the private folder."""
_LOG = logging.getLogger("deepstack_harness.sources")


def archives() -> Path:
    """Return the folder of whole wheels and sdists."""
    return files.cache() / "archives"


@dataclass(frozen=True)
class CachedRelease:
    """The cached files of one release of one package."""

    package: str
    version: Version

    def load(self, member: str) -> tuple[bytes, Path] | None:
        """Return a file and its path in the cache; None for a miss, or a file that is damaged."""
        for folder in self._folders:
            path = folder / member
            with suppress(OSError, UnicodeDecodeError):
                data = path.read_bytes()
                if _beside(path, "sha256").read_text("ascii") == hashlib.sha256(data).hexdigest():
                    return data, path
        return None

    def store(self, member: str, data: bytes) -> Path | None:
        """Write a file and its digest; return its path, or None, with a warning, where that fails.

        Where the cache cannot be written the private folder has the file.
        """
        path = self._folder / member
        try:
            _store(path, data)
        except OSError as error:
            warn(error)
            with suppress(OSError):
                _store(_private(make=True) / path.relative_to(files.cache()), data)
            return None
        return path

    def is_absent(self, member: str) -> bool:
        """Return whether the release is known to have no such file."""
        return any(_beside(folder / member, "absent").exists() for folder in self._folders)

    def note_absent(self, member: str) -> None:
        """Remember that the release has no such file, so that the next look-up needs no index."""
        path = _beside(self._folder / member, "absent")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except OSError as error:
            warn(error)

    def archives(self) -> Iterator[Path]:
        """Yield the wheels and sdists of this release that were downloaded whole."""
        stem = f"{self.package.replace('-', '_')}-{self.version}"
        for pattern in (f"{stem}-*.whl", f"{stem}.tar.gz", f"{stem}.zip"):
            yield from sorted(archives().glob(pattern))

    @property
    def _folder(self) -> Path:
        return _releases(self.package) / str(self.version)

    @property
    def _folders(self) -> Iterator[Path]:
        yield self._folder
        if _PRIVATE in os.environ:
            yield _private() / self._folder.relative_to(files.cache())


def versions(package: str) -> list[Version]:
    """Return the releases of a package that have cached files, the newest last."""
    try:
        folders = [folder for folder in _releases(package).iterdir() if any(folder.rglob("*.py"))]
        return sorted(Version(folder.name) for folder in folders)
    except (OSError, InvalidVersion):  # nothing is cached, or a folder is not ours
        return []


def alternatives(package: str) -> str:
    """Return what to give instead of a release that cannot be fetched, as a part of a sentence."""
    have = versions(package)
    also = f", or a release that is cached here ({', '.join(map(str, have))})" if have else ""
    return f"give a wheel, an sdist or a source tree instead{also}"


def warn(error: OSError) -> None:
    """Log that the cache cannot be used, once for each reason."""
    _warn(files.cache(), error.strerror or str(error))


@functools.cache
def _warn(folder: Path, reason: str) -> None:
    _LOG.warning("the cache %s cannot be written (%s): continuing without it", folder, reason)


def _releases(package: str) -> Path:
    return files.cache() / "packages" / package


def _private(*, make: bool = False) -> Path:
    """Return the private folder of this process, and of a process that started it, for the cache in use.

    With `make` it is made where there is none; raises `OSError` where that fails.
    """
    if make and _PRIVATE not in os.environ:
        made = tempfile.mkdtemp(prefix="deepstack-cache-")
        os.environ[_PRIVATE] = made  # workers inherit it
        owner = os.getpid()
        # Not by a fork of this process.
        atexit.register(lambda: shutil.rmtree(made, ignore_errors=True) if os.getpid() == owner else None)
    digest = hashlib.sha256(os.fsencode(files.cache())).hexdigest()
    return Path(os.environ[_PRIVATE], digest[:16])


def _store(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, data)
    _replace(_beside(path, "sha256"), hashlib.sha256(data).hexdigest().encode())


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f"{path.name}.{kind}")


def _replace(path: Path, data: bytes) -> None:
    """Write next to the file and rename, so that nobody ever reads half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink()
        raise
