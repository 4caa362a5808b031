"""The facts by which a package's sources are recognised; the engines fill them in."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownPackage:
    """A package that can be judged: its names, and the files that identify it.

    `name` is the normalised name in requirements and on package indexes (PEP 503), `title`
    the name in sentences.  `mark` is a folder that no other package has, from the root of a
    wheel or repository on; its first part is the module that Python imports.  `version_file`
    is where the build writes the version.
    """

    name: str
    title: str
    mark: str
    version_file: str

    @property
    def module(self) -> str:
        """The top-level module, which is also the folder that holds all files."""
        return self.mark.partition("/")[0]


def any_of(names: Sequence[str]) -> str:
    """Return `a, b or c`."""
    *before, last = names
    return f"{', '.join(before)} or {last}" if before else last
