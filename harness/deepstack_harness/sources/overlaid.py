"""A plugin's source together with that of the package whose classes it changes: `PLUGIN over BASE`."""

from pathlib import Path

from packaging.version import Version

from deepstack_harness.errors import UsageError
from deepstack_harness.sources.known_package import KnownPackage
from deepstack_harness.sources.source import Source, SourceFile

OVER = " over "
"""Between the two sources, in the text that names both and in the label."""


class Overlaid:
    """Two sources read as one: files of the plugin's module are the plugin's, all others are the base's."""

    def __init__(self, plugin: Source, module: str, base: Source) -> None:
        """Take `module`, the plugin's top-level folder."""
        self._plugin, self._module, self.base = plugin, module, base
        self.package: str = plugin.package
        self.version: Version | None = plugin.version
        self.label = f"{plugin.label}{OVER}{base.label}"

    def read(self, member: str) -> SourceFile:
        """See `Source.read`."""
        return self._of(member).read(member)

    def mentioning(self, folder: str, word: str) -> list[str]:
        """See `Source.mentioning`."""
        return self._of(folder).mentioning(folder, word)

    def _of(self, member: str) -> Source:
        return self._plugin if member.partition("/")[0] == self._module else self.base


def split_over(text: str) -> tuple[str, str | None]:
    """Return both parts of `PLUGIN over BASE`, the second one None where there is none.

    A path that exists is a path, whatever its name.  Raises `UsageError` for a part that is empty.
    """
    plugin, found, base = text.partition(OVER)
    if not found or Path(text).expanduser().exists():
        return text, None
    if not plugin.strip() or not base.strip():
        raise UsageError(f"'{text}' names no two sources: write PLUGIN{OVER}BASE")
    return plugin.strip(), base.strip()


def needs_base(text: str, package: KnownPackage, base: KnownPackage) -> UsageError:
    """Return the error for a plugin whose files say no version of the base."""
    return UsageError(
        f"'{text}': {package.title} changes classes of {base.title}, and pins no version of it: give --base "
        f"{base.name}==VERSION, or write '{text}{OVER}{base.name}==VERSION'"
    )
