"""Read files of a folder that nobody vouches for.

Such a folder may hold a pipe that blocks its reader for ever, a device, a link to a private
file, or a file without an end.  Each of them is refused by name.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deepstack_harness.errors import UsageError
from deepstack_harness.sources.limits import FILE_MIB, MEMBERS, UNPACKED_MIB
from deepstack_harness.workers.limits import MIB

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISLNK, "a link"),
)


class TreeFiles:
    """The files below one folder.  Links may lead from one place in it to another, but not out of it.

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
        """Tell whether there is such a folder; raise `UsageError` where a link leads out of the tree."""
        try:
            with _named(self.root / folder):
                return self._resolved(folder).is_dir()
        except (FileNotFoundError, NotADirectoryError):
            return False

    def read(self, member: str) -> bytes:
        """Return the bytes of a regular file.

        Raises `FileNotFoundError` when it is not there, `UsageError` for everything else that
        keeps it from being read.
        """
        with _named(self.root / member):
            return read_regular(self._resolved(member), self.root / member)

    def texts(self, folder: str, word: str) -> dict[str, bytes]:
        """Return the Python files right in `folder` that have `word`, by their path below the root."""
        found: dict[str, bytes] = {}
        left = UNPACKED_MIB.value() * MIB
        for name in self._python_files(folder):
            data = self.read(f"{folder}/{name}")
            left -= len(data)
            if left < 0:
                raise UsageError(f"'{self.root / folder}' is too large: {UNPACKED_MIB.advice}")
            if word.encode() in data:
                found[f"{folder}/{name}"] = data
        return found

    def _python_files(self, folder: str) -> list[str]:
        place = self.root / folder
        with _named(place), os.scandir(self._resolved(folder)) as entries:
            names = []
            for count, entry in enumerate(entries):
                if count >= MEMBERS.value():
                    raise UsageError(f"'{place}' holds too many files: {MEMBERS.advice}")
                names.append(entry.name)
        return [check_name(name, place) for name in sorted(names) if name.endswith(".py")]

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
    _refuse_irregular(path.stat().st_mode, shown)
    # Another file may have come in its place meanwhile: a pipe would block without O_NONBLOCK.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        _refuse_irregular(os.fstat(handle).st_mode, shown)
        data = file.read(FILE_MIB.value() * MIB + 1)
    if len(data) > FILE_MIB.value() * MIB:
        raise UsageError(f"'{shown}' is too large: {FILE_MIB.advice}")
    return data


def kind_of(mode: int) -> str:
    """Name the kind of a file by its mode."""
    return next((words for test, words in _KINDS if test(mode)), "no regular file")


def check_name(name: str, place: object) -> str:
    """Return `name`; refuse one that would change what a terminal shows."""
    if not name.isprintable():
        raise UsageError(f"'{place}' holds a file whose name cannot be printed: {name!r}")
    return name


def _refuse_irregular(mode: int, shown: Path) -> None:
    if not stat.S_ISREG(mode):
        raise UsageError(f"'{shown}' is {kind_of(mode)}, where a file should be")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn every `OSError` but a missing file into a `UsageError` that names `path`."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read: {error.strerror}") from error
