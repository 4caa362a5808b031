"""Files of a folder that nobody vouches for, and the commits of a repository.

Such a folder may hold a pipe that blocks its reader for ever, a device, a link to a private file, or
a file without an end. Each of them is refused by name.

git obeys the configuration of the repository that it is called in: `core.fsmonitor`, hooks, filters
and pagers all name programs (git-config(1)). So HEAD, refs and packed-refs are read without git
(gitrepository-layout(5)); whether files were changed since the commit is not known. The files of
another commit are written by git in an empty repository of ours, which borrows the objects of the
other one (`objects/info/alternates`) and has a copy of its refs: no hook, filter, pager or remote of
a tree is there.
"""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.sources.source import FILE_MIB, MEMBERS, TOO_MANY, limited

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISLNK, "a link"),
)


class TreeFiles:
    """The files below one folder. Links may lead from one place in it to another, but not out of it.

    With `vouched` they may lead anywhere: an installed package is imported by the user's own
    programs, and some installers link its files to a cache.
    """

    def __init__(self, root: Path, *, vouched: bool = False) -> None:
        """Resolve `root`; raise `UsageError` when that fails."""
        self.root = root
        self._vouched = vouched
        with _named(root):
            self._real = Path(os.path.realpath(root, strict=True))

    def has_folder(self, folder: str) -> bool:
        """Return whether there is such a folder; raise `UsageError` where a link leads out of the tree."""
        try:
            with _named(self.root / folder):
                return self._resolved(folder).is_dir()
        except (FileNotFoundError, NotADirectoryError):
            return False

    def read(self, member: str) -> bytes:
        """Return the bytes of a regular file.

        Raises `FileNotFoundError` when it is not there, `UsageError` for everything else that prevents
        reading it.
        """
        with _named(self.root / member):
            return read_regular(self._resolved(member), self.root / member)

    def python_files(self, folder: str) -> dict[str, bytes]:
        """Return the Python files in `folder` and below it, sorted, by their path below the root.

        A link to nothing is no file. Raises `UsageError` for what is no regular file, and for files that
        are too many or too large together.
        """

        def contents() -> Iterator[tuple[str, bytes]]:
            for name in sorted(self._python_names(folder)):
                with suppress(FileNotFoundError):
                    yield name, self.read(name)

        return dict(limited(contents(), self.root / folder, "is too large"))

    def _python_names(self, folder: str) -> Iterator[str]:
        """Yield the names of Python files below the root; each folder is entered once, links included."""
        count, entered, waiting = 0, set[Path](), [folder]
        while waiting:
            inside = waiting.pop()
            entries: list[tuple[str, bool]] = []  # names, each with whether it is a folder or a link to one
            try:
                with _named(self.root / inside):
                    real = self._resolved(inside)
                    if real in entered:
                        continue
                    with os.scandir(real) as scanned:
                        for entry in scanned:
                            count += 1
                            MEMBERS.check(count, self.root / folder, TOO_MANY)
                            entries.append((entry.name, entry.is_dir()))
            except (FileNotFoundError, NotADirectoryError):
                continue
            entered.add(real)
            for name, is_folder in entries:
                path = f"{inside}/{name}" if inside else name
                if name.endswith(".py"):
                    check_name(name, self.root / inside)
                    yield path
                elif is_folder:
                    waiting.append(path)

    def _resolved(self, member: str) -> Path:
        """Follow all links of a path; refuse one that ends outside of the root."""
        path = self.root / member
        real = Path(os.path.realpath(path, strict=True))
        if not self._vouched and not real.is_relative_to(self._real):
            raise UsageError(f"'{path}' leads out of the tree by a link, to '{real}': give a tree without it")
        return real


def read_regular(path: Path, shown: Path | None = None) -> bytes:
    """Return the bytes of a regular file within the limit; `shown` is its name in messages.

    Raises `UsageError` for everything that is no regular file, before it is opened, and for a
    file above the limit; raises `OSError` where the system refuses.
    """
    shown = shown or path
    refuse_irregular(path.stat().st_mode, shown)
    # Another file may have come in its place meanwhile: a pipe would block without O_NONBLOCK.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        refuse_irregular(os.fstat(handle).st_mode, shown)
        data = file.read(FILE_MIB.bound + 1)
    FILE_MIB.check(len(data), shown)
    return data


def kind_of(mode: int) -> str:
    """Name the kind of a file by its mode."""
    return next((words for test, words in _KINDS if test(mode)), "no regular file")


def check_name(name: str, place: object) -> str:
    """Return `name`; refuse one that would change what a terminal shows."""
    if not name.isprintable():
        raise UsageError(f"'{place}' holds a file whose name cannot be printed: {name!r}")
    return name


def refuse_irregular(mode: int, shown: object, kind: str = "") -> None:
    """Raise `UsageError` for what is no regular file by its mode; `kind` names what it is instead."""
    if not stat.S_ISREG(mode):
        raise UsageError(f"'{shown}' is {kind or kind_of(mode)}, where a file should be")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn every `OSError` but a missing file into a `UsageError` that names `path`."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read: {error.strerror}") from error


_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"refs/[^\x00-\x20\x7f~^:?*\[\\]+")
_DEPTH = 5  # how many symbolic refs git follows (refs.h, SYMREF_MAXDEPTH)


class GitFiles:
    """The references of one repository. Content that is no reference is ignored."""

    def __init__(self, root: Path) -> None:
        """Open the folder `root` that has `.git`, a folder or the file of a worktree."""
        self.folder = _git_folder(root)
        """The folder of this work tree's own files, `HEAD` among them; None where there is no `.git`."""
        other = self.folder and _text(self.folder / "commondir")
        self.shared = self.folder / other if self.folder and other else self.folder
        """The folder that has objects and refs, which worktrees share; None where there is no `.git`."""

    def head(self) -> str | None:
        """Return the commit that is checked out, as hexadecimal digits; None where there is none."""
        return self._follow(_text(self.folder / "HEAD")) if self.folder else None

    def tagged(self, name: str) -> str | None:
        """Return the commit of a tag, where the refs have it.

        An annotated tag is known by its commit in packed-refs only.
        """
        return self._resolve(f"refs/tags/{name}")

    def _follow(self, text: str | None) -> str | None:
        for _ in range(_DEPTH):
            if text is None or not text.startswith("ref: "):
                break
            text = self._resolve(text.removeprefix("ref: ").strip())
        return text if text and _COMMIT.fullmatch(text) else None

    def _resolve(self, ref: str) -> str | None:
        """Return what a ref holds: a commit, or for a symbolic ref the next one."""
        is_ref = _REF.fullmatch(ref) is not None and ".." not in ref and not ref.endswith("/")
        if self.folder is None or self.shared is None or not is_ref:
            return None
        if loose := _text(self.folder / ref) or _text(self.shared / ref):
            return loose
        lines = iter((_text(self.shared / "packed-refs") or "").splitlines())
        for line in lines:
            commit, _, name = line.partition(" ")
            if name == ref:
                following = next(lines, "")  # for an annotated tag it has the commit
                return following.removeprefix("^") if following.startswith("^") else commit
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


def _text(path: Path) -> str | None:
    """Return the text of a small file, without the line end; None where it cannot be read.

    Raises `UsageError` for what is no regular file, as a pipe that would block.
    """
    try:
        return read_regular(path).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return None


_TIMEOUT_S = 120
"""Seconds for one call of git. After them the command ends with exit code 3, and judges nothing."""
_PATTERNS = ("*.py", "*.toml")
_MOST_REFS = 20_000
"""Files of refs that are looked at; a tree with more may not name the tag of its version."""
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C",
}  # fmt: skip


@contextmanager
def revision_of(root: Path, revision: str) -> Iterator[Path]:
    """Yield a temporary folder with the Python files of `revision` in the repository at `root`.

    It has the name of the commit, as hexadecimal digits.
    Raises `UsageError` where `root` is no repository or has no such commit, as a shallow clone has not
    (git-clone(1), `--depth`), and `MachineError` without git.
    """
    files = GitFiles(root)
    if files.shared is None:
        raise UsageError(f"'{root}' is no git repository, so '{revision}' names no commit of it")
    if shutil.which("git") is None:
        raise MachineError(f"git is not installed: it reads '{revision}' of '{root}'")
    with TemporaryDirectory(prefix="deepstack-") as folder:
        borrowed = Path(folder, "git")
        _borrow(files, borrowed)
        commit = _commit(borrowed, root, revision, shallow=(files.shared / "shallow").is_file())
        tree = Path(folder, commit)
        tree.mkdir()
        _git(borrowed, "read-tree", commit)
        names = _git(borrowed, "ls-files", "-z", "--", *_PATTERNS)
        _git(borrowed, "--work-tree", str(tree), "checkout-index", "-z", "--stdin", stdin=names)
        yield tree


def _commit(borrowed: Path, root: Path, revision: str, *, shallow: bool) -> str:
    try:
        output = _git(borrowed, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    except UsageError:
        if shallow:
            raise UsageError(
                f"'{revision}' is no commit of '{root}', which is a shallow clone and lacks most of them: "
                "give actions/checkout 'fetch-depth: 0' in a workflow, or run 'git fetch --unshallow' there"
            ) from None
        raise UsageError(
            f"'{revision}' is neither a source nor a commit of '{root}': name a release (vllm==0.33.0), a "
            "path, or a commit, branch or tag that is here"
        ) from None
    return output.decode().strip()


def _borrow(files: GitFiles, borrowed: Path) -> None:
    """Make a repository without configuration that has the objects and refs of another one."""
    assert files.shared is not None
    assert files.folder is not None
    _git(None, "init", "--quiet", "--bare", "--template=", str(borrowed))
    info = borrowed / "objects" / "info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "alternates").write_text(f"{(files.shared / 'objects').resolve()}\n")
    for name in ("packed-refs", "shallow"):
        _copy(files.shared / name, borrowed / name)
    _copy(files.folder / "HEAD", borrowed / "HEAD")
    refs = (path for path in sorted((files.shared / "refs").rglob("*")) if path.is_file())
    for _, path in zip(range(_MOST_REFS), refs, strict=False):
        _copy(path, borrowed / path.relative_to(files.shared))


def _copy(path: Path, to: Path) -> None:
    """Copy a small regular file; one that is not there is left out."""
    try:
        data = read_regular(path)
    except FileNotFoundError:
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(data)


def _git(folder: Path | None, *words: str, stdin: bytes = b"") -> bytes:
    """Run git in `folder`; raises `UsageError` with its last line where it fails."""
    where = [] if folder is None else ["--git-dir", str(folder)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *where, *words], input=stdin, capture_output=True, check=False, timeout=_TIMEOUT_S,
            cwd=folder, env={**clean, **_ENVIRONMENT},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise MachineError(f"git {words[0]} took more than {_TIMEOUT_S} s") from None
    if done.returncode != 0:
        messages = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit {done.returncode}"]
        raise UsageError(f"git {words[0]}: {messages[-1]}")
    return done.stdout
