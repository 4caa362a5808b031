"""A source tree or an installed package as a source."""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from functools import cached_property
from pathlib import Path

from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import PACKAGE_MARK, NoSuchMember, SourceFile, decode

_MARK = PACKAGE_MARK.removeprefix("vllm/")
_VERSION = re.compile(r"""^(?:__version__ = )?version = ["'](?P<version>[^"']+)["']""", re.MULTILINE)


class Tree:
    """A folder with vLLM's Python files: the repository root, or the package folder itself."""

    def __init__(self, path: Path, release: str | None = None) -> None:
        """Raises `UsageError` when there is no vLLM below `path`.

        `release` is the version of an installed distribution, where that is known.
        """
        self.path = path.absolute()
        folders = (self.path / "vllm", self.path)
        package = next((folder for folder in folders if (folder / _MARK).is_dir()), None)
        if package is None:
            raise UsageError(f"'{self.path}' is no vLLM source tree: it has no {PACKAGE_MARK}")
        self._package = package
        self._release = release

    @cached_property
    def label(self) -> str:
        """`vllm VERSION` when installed, otherwise `vllm at PATH`, with what git says of it."""
        if self._release:
            return f"vllm {self._release}"
        version = _git_describe(self._package.parent) or self._written_version()
        return f"vllm at {self.path}" + (f" ({version})" if version else "")

    def read(self, member: str) -> SourceFile:
        """See `Source.read`; the shown name is the file's own path."""
        path = self._package / member.removeprefix("vllm/")
        try:
            return decode(path.read_bytes(), str(path))
        except FileNotFoundError as error:
            raise NoSuchMember(self.label, member) from error
        except OSError as error:
            raise UsageError(f"'{path}' cannot be read: {error.strerror}") from error

    def mentioning(self, folder: str, word: str) -> list[str]:
        """See `Source.mentioning`."""
        place = self._package / folder.removeprefix("vllm/")
        try:
            found = [path.name for path in place.glob("*.py") if word.encode() in path.read_bytes()]
        except OSError as error:
            raise UsageError(f"'{error.filename}' cannot be read: {error.strerror}") from error
        return [f"{folder}/{name}" for name in sorted(found)]

    def _written_version(self) -> str | None:
        """What the build wrote into `vllm/_version.py`."""
        try:
            found = _VERSION.search((self._package / "_version.py").read_text("utf-8", "replace"))
        except OSError:
            return None
        return found["version"] if found else None


def installed() -> Tree:
    """The vLLM that `import vllm` would give this Python, editable installs included.

    Nothing is imported: looking up a top-level name runs no code of the package.
    Raises `UsageError` when there is none.
    """
    folder = _importable_folder()
    if folder is None:
        raise UsageError(
            f"vLLM is not installed in {sys.executable}: "
            "give a release such as 0.22.1, a wheel, an sdist or a source tree"
        )
    return Tree(folder, _installed_version(folder))


def _importable_folder() -> Path | None:
    try:
        spec = importlib.util.find_spec("vllm")
    except ValueError:  # a half-initialised module in sys.modules has no spec
        return None
    return Path(spec.origin).parent if spec and spec.origin else None


def _installed_version(folder: Path) -> str | None:
    """The distribution's version if these are its own files, which an editable install's are not."""
    try:
        distribution = importlib.metadata.distribution("vllm")
    except importlib.metadata.PackageNotFoundError:
        return None
    theirs = Path(str(distribution.locate_file("vllm")))
    return distribution.version if theirs.resolve() == folder.resolve() else None


def _git_describe(root: Path) -> str | None:
    if not (root / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "-C", str(root), "describe", "--tags", "--always", "--dirty"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()
