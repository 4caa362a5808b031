"""Files of a run that are no files, or have no end: each is refused at once, with a sentence and exit code 2.

Commands run in processes of their own with a time limit and little memory: a fifo would block for ever, and a
device would fill the memory.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cases.by_day import by_day
from cases.selftest.runs.written_results import about, write
from deepstack_harness.cli.main import main
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.files import LARGEST, read_regular
from deepstack_harness.fuzz.campaign import JOURNAL, RUN, read_journal
from deepstack_harness.runs.newest import last_records
from deepstack_harness.runs.records import Files
from deepstack_harness.runs.report import run_data
from deepstack_harness.runs.report.run_data import load_run
from deepstack_harness.runs.store import RunWriter, read_nights

VERDICTS = {"a": ("PASS", "PASS")}
_TIMEOUT_S = 60.0
_MEMORY = 8 * 2**30


def link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(LARGEST + 1)


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "fifo": (os.mkfifo, "is a fifo, not a regular file"),
    "device": (link_to_zeros, "is a device, not a regular file"),
    "folder": (Path.mkdir, "is a folder, not a regular file"),
    "large": (sparse, f"has {LARGEST + 1:,} bytes, more than the {LARGEST:,} of a file that is read"),
}


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


def refused(words: list[str], folder: Path) -> str:
    """The sentence with which a command in a process of its own refuses a file."""
    ran = subprocess.run(  # no threads here
        [sys.executable, "-m", "deepstack_harness", *words, "--quiet"],
        cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL,
        preexec_fn=limited, check=False,
    )  # fmt: skip
    assert ran.returncode == ExitCode.USAGE, ran.stderr
    assert ran.stderr.count("\n") == 1, ran.stderr
    return ran.stderr


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "run", VERDICTS)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_refused_by_its_kind(kind: str, tmp_path: Path) -> None:
    make, kind_in_words = KINDS[kind]
    make(tmp_path / "rows.jsonl")
    with pytest.raises(UsageError) as raised:
        read_regular(tmp_path / "rows.jsonl")
    assert str(raised.value) == f"'{tmp_path / 'rows.jsonl'}' {kind_in_words}"


def test_a_file_and_a_link_to_it_are_read_and_a_missing_one_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"{}\n")
    (tmp_path / "link").symlink_to("rows.jsonl")
    assert read_regular(tmp_path / "rows.jsonl") == read_regular(tmp_path / "link") == b"{}\n"
    assert read_regular(tmp_path / "link", largest=3) == b"{}\n"
    with pytest.raises(UsageError, match="has 3 bytes, more than the 2 of a file"):
        read_regular(tmp_path / "link", largest=2)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nothing")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("command", "name", "kind"),
    by_day(
        [
            ("report run", "rows.jsonl", "device"),
            ("report run", "run.json", "fifo"),
            ("report run", "nightly.json", "fifo"),
            ("compare run other", "cases.jsonl", "device"),
            ("run --out run --resume", "run.json", "fifo"),
        ]
    ),
)
def test_a_command_refuses_it_at_once(command: str, name: str, kind: str, run: Path) -> None:
    write(run.parent / "other", VERDICTS)
    make, kind_in_words = KINDS[kind]
    (run / name).unlink(missing_ok=True)
    make(run / name)
    assert f"'{Path('run') / name}' {kind_in_words}" in refused(command.split(), run.parent)


@pytest.mark.parametrize("name", ["kernels.jsonl", "audit.jsonl", "nightly.json"])
def test_other_files_of_a_run_are_held_to_the_same(
    name: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / name).mkdir()
    assert main(["report", str(run)]) == ExitCode.USAGE
    assert f"'{run / name}' is a folder, not a regular file" in capsys.readouterr().err


@pytest.mark.timeout(60)
def test_a_night_that_cannot_be_read_is_left_out_of_the_history(run: Path) -> None:
    bad = write(run.parent / "bad", VERDICTS)
    (bad / "rows.jsonl").unlink()
    os.mkfifo(bad / "rows.jsonl")
    runs, notes = read_nights(run.parent)
    assert [run.name for run in runs] == ["run"]
    assert notes == [f"not in the history: '{bad / 'rows.jsonl'}' is a fifo, not a regular file"]
    (bad / "newest.json").symlink_to("/dev/zero")
    assert last_records(run.parent, run) == {}


@pytest.mark.parametrize("words", [["run", "--out", "out"], ["compare", "out", "out"], ["report", "out"]])
def test_a_fifo_in_place_of_the_folder_is_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("out")
    assert main(words) == ExitCode.USAGE
    assert "'out' " in capsys.readouterr().err


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["rows.jsonl", "cases.jsonl"])
def test_a_run_that_is_resumed_opens_none_of_them(name: str, run: Path) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(UsageError, match=f"'{run / name}' is a fifo, not a regular file"):
        RunWriter(Files(run), about(1), resume=True)


@pytest.mark.timeout(60)
def test_an_interrupted_hunt_is_held_to_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (RUN, JOURNAL):
        os.mkfifo(tmp_path / name)
    assert main(["fuzz", "--examples", "1", "--out", str(tmp_path)]) == ExitCode.USAGE
    assert f"'{tmp_path / RUN}' is a fifo" in capsys.readouterr().err
    with pytest.raises(UsageError, match=f"'{tmp_path / JOURNAL}' is a fifo"):
        read_journal(tmp_path)


def test_a_folder_of_findings_without_an_end_is_listed_in_part(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "fuzz").mkdir()
    for name in "abc":
        (run / "fuzz" / name).touch()
    assert load_run(run).fuzz == ("a", "b", "c")
    monkeypatch.setattr(run_data, "MOST_FILES", 2)
    assert len(load_run(run).fuzz or ()) == 2


def test_json_that_is_nested_too_deeply_is_damaged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "run.json").write_text('{"schema_version": ' + "[" * 100_000)
    assert main(["report", str(run)]) == ExitCode.USAGE
    assert "is not what a run writes" in capsys.readouterr().err
