"""Removal of folders that code under test wrote into; standard library only, as `child` loads this file."""

import os
import stat
from contextlib import suppress

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_folder(folder: str) -> None:
    """Remove a folder with all that is in it, as far as that can be removed; links are not followed.

    `shutil.rmtree` recurses, and gives up at about 1,000 folders in each other.  Nobody else may use the
    folder meanwhile.
    """
    with suppress(OSError):
        here = os.open(folder, _FLAGS)
        try:
            names: list[str] = []
            left = [_unlink_files(here)]
            while left[-1] or names:
                if left[-1]:
                    names.append(left[-1].pop())
                    os.chmod(names[-1], stat.S_IRWXU, dir_fd=here)
                    here = _go(here, names[-1])
                    left.append(_unlink_files(here))
                else:
                    left.pop()
                    here = _go(here, "..")
                    os.rmdir(names.pop(), dir_fd=here)
        finally:
            os.close(here)
        os.rmdir(folder)


def _go(here: int, name: str) -> int:
    there = os.open(name, _FLAGS, dir_fd=here)
    os.close(here)
    return there


def _unlink_files(here: int) -> list[str]:
    """Remove the files of an open folder, and return the names of the folders in it."""
    folders = []
    for name in os.listdir(here):
        if stat.S_ISDIR(os.lstat(name, dir_fd=here).st_mode):
            folders.append(name)
        else:
            os.unlink(name, dir_fd=here)
    return folders
