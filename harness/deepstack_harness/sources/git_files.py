"""Read the commit of a repository from the files of `.git`, without running git.

git obeys the configuration of the repository that it is called in: `core.fsmonitor`, hooks,
filters and pagers all name programs (git-config(1)).  A source is not trusted, so nothing but
HEAD, refs and packed-refs is read here (gitrepository-layout(5)).  Whether files were changed
since the commit is not known.
"""

import re
from pathlib import Path

from deepstack_harness.sources.tree_files import read_regular

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"refs/[^\x00-\x20\x7f~^:?*\[\\]+")
_DEPTH = 5  # how many symbolic refs git follows (refs.h, SYMREF_MAXDEPTH)


class GitFiles:
    """The references of one repository.  Content that is no reference is ignored."""

    def __init__(self, root: Path) -> None:
        """Open the folder `root` that has `.git`, a folder or the file of a worktree."""
        self._folder = _git_folder(root)
        self._shared = self._folder and self._shared_folder(self._folder)

    @property
    def is_repository(self) -> bool:
        """True where there is a `.git`, be it a folder or the file of a worktree."""
        return self._folder is not None

    @property
    def folder(self) -> Path | None:
        """The folder of this work tree's own files, `HEAD` among them; None where there is no `.git`."""
        return self._folder

    @property
    def shared(self) -> Path | None:
        """The folder that has objects and refs, which worktrees share; None where there is no `.git`."""
        return self._shared

    def head(self) -> str | None:
        """Return the commit that is checked out, as hexadecimal digits; None where there is none."""
        return self._follow(_text(self._folder / "HEAD")) if self._folder else None

    def tagged(self, name: str) -> str | None:
        """Return the commit that a tag stands for, where the refs tell.

        An annotated tag is known by its commit in packed-refs only.
        """
        return self._resolve(f"refs/tags/{name}")

    def _shared_folder(self, folder: Path) -> Path:
        """Return where refs lie: the folder itself, or for a worktree that of its repository."""
        other = _text(folder / "commondir")
        return folder / other if other else folder

    def _follow(self, text: str | None) -> str | None:
        for _ in range(_DEPTH):
            if text is None or not text.startswith("ref: "):
                break
            text = self._resolve(text.removeprefix("ref: ").strip())
        return text if text and _COMMIT.fullmatch(text) else None

    def _resolve(self, ref: str) -> str | None:
        """Return what a ref holds: a commit, or for a symbolic ref the next one."""
        if self._folder is None or self._shared is None or not _is_ref(ref):
            return None
        loose = _text(self._folder / ref) or _text(self._shared / ref)
        return loose or self._packed(ref)

    def _packed(self, ref: str) -> str | None:
        """Look a ref up in packed-refs; the line behind an annotated tag has its commit."""
        assert self._shared is not None
        lines = iter((_text(self._shared / "packed-refs") or "").splitlines())
        for line in lines:
            commit, _, name = line.partition(" ")
            if name == ref:
                behind = next(lines, "")
                return behind.removeprefix("^") if behind.startswith("^") else commit
        return None


def _git_folder(root: Path) -> Path | None:
    """Return the folder of `.git`; a worktree has a file `.git` that names it."""
    path = root / ".git"
    if path.is_symlink():
        return None
    if path.is_dir():
        return path
    pointer = _text(path) or ""
    return root / pointer.removeprefix("gitdir: ") if pointer.startswith("gitdir: ") else None


def _is_ref(name: str) -> bool:
    return _REF.fullmatch(name) is not None and ".." not in name and not name.endswith("/")


def _text(path: Path) -> str | None:
    """Return the text of a small file, without the line end; None where it cannot be read.

    Raises `UsageError` for what is no regular file, as a pipe that would block.
    """
    try:
        return read_regular(path).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return None
