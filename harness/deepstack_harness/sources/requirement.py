"""The grammar of SOURCE: `vllm==0.22.1`, `installed:vllm`, or a path.

Only syntax is checked here, for any package name; `locate` knows which packages can be judged.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from deepstack_harness.errors import UsageError

FORMS = (
    "PACKAGE==VERSION, installed:PACKAGE, or the path of a wheel, an sdist (.tar.gz, .zip) or a source tree"
)

_INSTALLED = "installed"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_COMPARES = re.compile(rf"\s*{_NAME.pattern}\s*(?:\[[^]]*\])?\s*(?:===?|[<>~!]=|[<>])")


@dataclass(frozen=True)
class ReleaseRequest:
    """A release on a package index."""

    package: str
    version: Version


@dataclass(frozen=True)
class InstalledRequest:
    """The package that this Python would import."""

    package: str


@dataclass(frozen=True)
class PathRequest:
    """A wheel, an sdist or a source tree."""

    path: str


SourceRequest = ReleaseRequest | InstalledRequest | PathRequest


def parse_source(text: str) -> SourceRequest:
    """Parse what a user wrote for SOURCE; raise `UsageError` that quotes it and says what would be right.

    A requirement wins over a file of the same name: that is written `./vllm==0.22.1`.
    """
    head, colon, rest = text.partition(":")
    if head == _INSTALLED:
        return _parse_installed(text, rest if colon else "")
    if _is_path(text):
        return PathRequest(text)
    if _is_version(text):
        raise UsageError(
            f"'{text}' names no package: write PACKAGE=={text}, or ./{text} for a path of that name"
        )
    return _parse_release(text) if _COMPARES.match(text) else PathRequest(text)


def names_source(text: str) -> bool:
    """Return True for a release, an installation, and for a path that begins as one or exists.

    Everything else may be the name of a commit, a number as well: tags are named so.
    """
    if text.startswith((".", "~", os.sep)):
        return True
    if _is_version(text):
        return False
    return not isinstance(parse_source(text), PathRequest) or Path(text).exists()


def expand_shorthand(package: str, text: str) -> str:
    """Turn the value of `--vllm` and the like, where the option names the package, into a SOURCE.

    A version and `installed` are completed; everything else is taken as it is.  Raises
    `UsageError` for a SOURCE of another package.
    """
    if _is_version(text):
        return f"{package}=={text}"
    if text == _INSTALLED:
        return f"{_INSTALLED}:{package}"
    request = parse_source(text)
    if not isinstance(request, PathRequest) and request.package != package:
        raise UsageError(f"'{text}' is not a source of {package}: write --source {text}")
    return text


def _parse_installed(text: str, name: str) -> InstalledRequest:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"'{text}' names no package: write installed:PACKAGE, or ./{text} for a path of that name"
        )
    return InstalledRequest(canonicalize_name(name))


def _is_path(text: str) -> bool:
    return text.startswith((".", "~")) or os.sep in text


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except ValueError:  # InvalidVersion, or a number of more digits than Python reads
        return False
    return True


def _parse_release(text: str) -> ReleaseRequest:
    """Parse a requirement that has to name one release exactly."""
    try:
        requirement = Requirement(text)
    except ValueError as error:  # InvalidRequirement, or a number of more digits than Python reads
        why = str(error).splitlines()[0]
        raise UsageError(f"'{text}' is not a requirement ({why}): a source is {FORMS}") from None
    specifiers = list(requirement.specifier)
    exact = len(specifiers) == 1 and specifiers[0].operator == "==" and _is_version(specifiers[0].version)
    if not exact or requirement.extras or requirement.marker:
        raise UsageError(f"'{text}' does not name one release: write {requirement.name}==VERSION")
    return ReleaseRequest(canonicalize_name(requirement.name), Version(specifiers[0].version))
