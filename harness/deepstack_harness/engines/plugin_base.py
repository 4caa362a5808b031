"""The source whose classes a plugin changes: the one that a user names, or a release that the plugin pins."""

import re

from packaging.version import Version

from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.overlaid import Overlaid, needs_base
from deepstack_harness.sources.release import Release
from deepstack_harness.sources.source import Source


def over_base(text: str, plugin: Source, engine: KnownEngine, base: Source | None) -> Overlaid:
    """Return the plugin's source over `base`, or else over the release that its own files pin.

    Raises `UsageError` for a base of another package, and where no file pins a release.
    """
    overlay = engine.overlay
    assert overlay is not None
    package = overlay.base.package
    if base is None:
        version = pinned_version(plugin, engine)
        if version is None:
            raise needs_base(text, engine.package, package)
        base = Release(package, version)
    if base.package != package.name:
        raise UsageError(
            f"'{text}': {engine.package.title} changes classes of {package.title}, not of {base.label}"
        )
    return Overlaid(plugin, engine.package.module, base)


def pinned_version(plugin: Source, engine: KnownEngine) -> Version | None:
    """Return the release of the base that a plugin's metadata or build files name; None where none does.

    Raises `MachineError` where a file cannot be fetched.
    """
    overlay = engine.overlay
    assert overlay is not None
    wanted = re.compile(
        _PINNED.format(name=re.escape(overlay.base.package.name)), re.MULTILINE | re.IGNORECASE
    )
    metadata = ("PKG-INFO", f"{engine.package.module}-{plugin.version}.dist-info/METADATA")
    for member in (*metadata, *overlay.pinned_in):
        try:
            found = wanted.search(plugin.read(member).text)
            if found:
                return Version(found["required"] or found["tag"])
        except (UsageError, ValueError):  # no such file, no text, no version: another one may tell
            continue
    return None


_PINNED = (
    r"^(?:Requires-Dist:\s*)?{name}\s*\(?==\s*(?P<required>[^\s,;)*]+)\)?\s*(?:;.*)?$"
    r"|^ARG\s+{name}_TAG=v?(?P<tag>[0-9]\S*)\s*$"
)
"""A requirement of exactly one version, or the tag that a Dockerfile checks out."""
