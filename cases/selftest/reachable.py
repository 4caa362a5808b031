"""A folder that every user of this machine can reach."""

import stat
import tempfile
from pathlib import Path

import pytest


def reachable_folder() -> "tempfile.TemporaryDirectory[str]":
    """Make a folder where every user may enter all folders above it; skip the case where there is none.

    pytest's own folder is closed to other users, and so may be a checkout in which TMPDIR lies.
    """
    for top in (Path(tempfile.gettempdir()), Path("/tmp")):
        if all(one.stat().st_mode & stat.S_IXOTH for one in (top, *top.parents)):
            return tempfile.TemporaryDirectory(dir=top)
    pytest.skip("no folder for temporary files is open to other users")
