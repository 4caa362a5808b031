"""Turn what the user wrote for SOURCE into a source."""

import stat
from pathlib import Path

from packaging.version import InvalidVersion, Version

from deepstack_harness.errors import UsageError
from deepstack_harness.sources.archive import SUFFIXES, Archive
from deepstack_harness.sources.release import Release
from deepstack_harness.sources.source import Source
from deepstack_harness.sources.tree import Tree, installed

_KINDS = "'installed', a release such as 0.22.1, a wheel, an sdist (.tar.gz, .zip) or a source tree"


def locate(text: str) -> Source:
    """`installed`, a release version, or the path of a wheel, an sdist or a source tree.

    What reads as a version is a release: a folder of that name is written `./0.22.1`.
    Nothing is asked of the network before a file of the release is read.
    Raises `UsageError` for anything else, and for a path that holds no vLLM.
    """
    if text == "installed":
        return installed()
    version = _as_version(text)
    return Release(version) if version else _at_path(text)


def _as_version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _at_path(text: str) -> Source:
    try:
        path = Path(text).expanduser()
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"'{text}' is not {_KINDS}: {getattr(error, 'strerror', None) or error}") from error
    if is_folder:
        return Tree(path)
    if not path.name.endswith(SUFFIXES):
        raise UsageError(f"'{text}' is not {_KINDS}: the file ends in none of {', '.join(SUFFIXES)}")
    return Archive(path)
