"""Write the Python files of one commit of a repository to a folder, with no configuration of that repository.

git obeys the configuration of the repository that it is called in, which can name programs.  So it is called
in an empty repository of ours, which borrows the objects of the other one (`objects/info/alternates`,
gitrepository-layout(5)) and has a copy of its refs: no hook, filter, pager or remote of a tree is there.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.sources.git_files import GitFiles
from deepstack_harness.sources.tree_files import read_regular

_TIMEOUT_S = 120
_PATTERNS = ("*.py", "*.toml")
_MOST_REFS = 20_000
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C",
}  # fmt: skip


@contextmanager
def revision_of(root: Path, revision: str) -> Iterator[Path]:
    """Yield a temporary folder with the Python files of `revision` in the repository at `root`.

    Raises `UsageError` where `root` is no repository or has no such commit, `MachineError` without git.
    """
    files = GitFiles(root)
    if files.shared is None:
        raise UsageError(f"'{root}' is no git repository, so '{revision}' names no commit of it")
    if shutil.which("git") is None:
        raise MachineError(f"git is not installed: it reads '{revision}' of '{root}'")
    with TemporaryDirectory(prefix="deepstack-") as folder:
        borrowed, tree = Path(folder, "git"), Path(folder, "tree")
        _borrow(files, borrowed)
        tree.mkdir()
        commit = _commit(borrowed, root, revision)
        _git(borrowed, "read-tree", commit)
        names = _git(borrowed, "ls-files", "-z", "--", *_PATTERNS)
        _git(borrowed, "--work-tree", str(tree), "checkout-index", "-z", "--stdin", given=names)
        yield tree


def _commit(borrowed: Path, root: Path, revision: str) -> str:
    try:
        found = _git(borrowed, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    except UsageError:
        raise UsageError(
            f"'{revision}' is neither a source nor a commit of '{root}': name a release (vllm==0.33.0), a "
            "path, or a commit, branch or tag that is here"
        ) from None
    return found.decode().strip()


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


def _git(folder: Path | None, *words: str, given: bytes = b"") -> bytes:
    """Run git in `folder`; raises `UsageError` with its last line where it fails."""
    where = [] if folder is None else ["--git-dir", str(folder)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *where, *words], input=given, capture_output=True, check=False, timeout=_TIMEOUT_S,
            cwd=folder, env={**clean, **_ENVIRONMENT},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise MachineError(f"git {words[0]} took more than {_TIMEOUT_S} s") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit {done.returncode}"]
        raise UsageError(f"git {words[0]}: {said[-1]}")
    return done.stdout
