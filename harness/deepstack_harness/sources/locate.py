"""Turn what the user wrote for SOURCE into a source."""

import stat
from collections.abc import Sequence
from pathlib import Path

from deepstack_harness.errors import UsageError
from deepstack_harness.sources.archive import Archive, open_archive
from deepstack_harness.sources.archive_files import SUFFIXES
from deepstack_harness.sources.installed import installed
from deepstack_harness.sources.known_package import KnownPackage
from deepstack_harness.sources.release import Release
from deepstack_harness.sources.requirement import (
    FORMS,
    InstalledRequest,
    PathRequest,
    ReleaseRequest,
    parse_source,
)
from deepstack_harness.sources.source import Source
from deepstack_harness.sources.tree import Tree, open_tree
from deepstack_harness.sources.tree_files import kind_of


def locate(text: str, packages: Sequence[KnownPackage]) -> Source:
    """Return the source that `text` stands for; `packages` are those that can be judged.

    Nothing is asked of the network before a file of a release is read.  Raises `UsageError`
    for what is no source, and for a source of another package.
    """
    request = parse_source(text)
    match request:
        case ReleaseRequest():
            return Release(_known(text, request.package, packages), request.version)
        case InstalledRequest():
            return installed(_known(text, request.package, packages))
        case PathRequest():
            return _at_path(request.path, packages)


def _known(text: str, name: str, packages: Sequence[KnownPackage]) -> KnownPackage:
    for package in packages:
        if package.name == name:
            return package
    raise UsageError(
        f"'{text}': {name} cannot be judged, only {', '.join(package.name for package in packages)} can"
    )


def _at_path(text: str, packages: Sequence[KnownPackage]) -> Tree | Archive:
    try:
        path = Path(text).expanduser()
        mode = path.stat().st_mode
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"'{text}' cannot be opened ({why}): a source is {FORMS}") from error
    if stat.S_ISDIR(mode):
        return open_tree(path, packages)
    if not stat.S_ISREG(mode):
        raise UsageError(f"'{text}' is {kind_of(mode)}: a source is {FORMS}")
    if not path.name.endswith(SUFFIXES):
        raise UsageError(f"'{text}' ends in none of {', '.join(SUFFIXES)}: a source is {FORMS}")
    return open_archive(path, packages)
