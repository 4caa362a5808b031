"""Atomic writes: the old file or the whole new one, and nothing left next to it."""

from pathlib import Path

import pytest

from deepstack_harness.files import replacing, write_atomically


def test_a_file_is_made_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for text in (b"first", b"second"):
        write_atomically(path, text)
        assert path.read_bytes() == text
    assert list(tmp_path.iterdir()) == [path]


def half_written(path: Path) -> None:
    with replacing(path) as partial:
        partial.write_bytes(b"ha")
        assert path.read_bytes() == b"whole"
        raise ZeroDivisionError


def test_a_writer_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_atomically(path, b"whole")
    with pytest.raises(ZeroDivisionError):
        half_written(path)
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_have_files_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with replacing(path) as first:
        first.write_bytes(b"first")
        write_atomically(path, b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"


def test_a_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    write_atomically(tmp_path / "ours", b"")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_that_is_not_there_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "nowhere" / "run.json", b"")
