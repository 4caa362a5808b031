"""Files of releases kept on disk: checked when read, and never needed.

A file that is damaged is as good as not there, and a folder that cannot be
written costs a warning and the time to fetch again.
"""

import functools
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness import places

_LOG = logging.getLogger("harness.upstream")


def _releases(package: str = "vllm") -> Path:
    # Those of vLLM lay here before other packages were read.
    return places.cache() / ("releases" if package == "vllm" else f"releases-{package}")


def archives() -> Path:
    """Where whole wheels and sdists lie."""
    return places.cache() / "archives"


def archives_of(version: Version) -> Iterator[Path]:
    """The kept wheels and sdists of one release."""
    for pattern in (f"vllm-{version}-*.whl", f"vllm-{version}.tar.gz", f"vllm-{version}.zip"):
        yield from sorted(archives().glob(pattern))


def versions() -> list[Version]:
    """The releases of which something is kept."""
    try:
        return sorted(Version(folder.name) for folder in _releases().iterdir() if any(folder.rglob("*.py")))
    except (OSError, InvalidVersion):  # nothing kept, or a folder that is not ours
        return []


def alternatives() -> str:
    """What to give instead of a release that cannot be fetched."""
    have = versions()
    also = f", or a release that is kept here ({', '.join(map(str, have))})" if have else ""
    return f"give a wheel, an sdist or a source tree instead{also}"


def load(version: Version, member: str, package: str = "vllm") -> tuple[bytes, Path] | None:
    """What was stored and where it lies; None when it is not there or not what was stored."""
    path = _releases(package) / str(version) / member
    try:
        data = path.read_bytes()
        intact = _digest_path(path).read_text("ascii") == hashlib.sha256(data).hexdigest()
    except (OSError, UnicodeDecodeError):
        return None
    return (data, path) if intact else None


def store(version: Version, member: str, data: bytes, package: str = "vllm") -> Path | None:
    """Keep `data`; answers where, or None when the folder cannot be written."""
    path = _releases(package) / str(version) / member
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, data)
        _replace(_digest_path(path), hashlib.sha256(data).hexdigest().encode())
    except OSError as error:
        warn(error)
        return None
    return path


def warn(error: OSError) -> None:
    """Say, once for each reason, that the cache cannot be used."""
    _warn(places.cache(), error.strerror or str(error))


@functools.cache
def _warn(folder: Path, reason: str) -> None:
    _LOG.warning("the cache %s cannot be written (%s): going on without it", folder, reason)


def _digest_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _replace(path: Path, data: bytes) -> None:
    """Write beside, then rename: nobody ever sees half a file."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink()
        raise
