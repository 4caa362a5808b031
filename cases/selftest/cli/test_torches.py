"""`run --torch`: a folder and a process for each torch, what is refused, and how a run goes on."""

import importlib.metadata
import shlex
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from deepstack_harness.cli import torches
from deepstack_harness.cli.main import main
from deepstack_harness.errors import ExitCode, MachineError
from deepstack_harness.runs.environments import TorchHome
from deepstack_harness.runs.store import read_stored
from deepstack_harness.sources.index import Index

Capture = pytest.CaptureFixture[str]
HERE = importlib.metadata.version("torch")
SELECTION = "family == 'qwen3_vl' and arm == 'eager' and incident == '43602' and revision == 'pr40932'"
RELEASES = [Version("2.12.1"), Version("2.13.0"), Version("2.15.0")]


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Index, "versions", lambda _: RELEASES)
    monkeypatch.setattr(Index, "yanked", lambda _: {Version("2.15.0")})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--torch", "2.14"], "no such torch; near it are 2.12.1, 2.13.0, the newest is 2.13.0"),
        (["--torch", "2.13", "--torch", "2.15"], "--torch '2.15': the index has no such torch"),  # yanked
        (["--torch", "2.13", "--torch", "./nowhere"], "'./nowhere' is no interpreter"),
        (["--keep", "1"], "--keep is about the environments of --torch"),
        (["--torch", "2.13", "--keep", "-1"], "--keep takes 0 or more, not -1"),
        (["--torch", "2.13", "--tier", "weekly"], "weekly"),
    ],
)
def test_a_wrong_call_makes_nothing(
    listed: None, monkeypatch: pytest.MonkeyPatch, capsys: Capture, words: list[str], said: str
) -> None:
    monkeypatch.setattr(torches, "make_home", lambda *_: pytest.fail("nothing is to be made"))
    assert main(["run", *words]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_torch_that_cannot_be_had_is_told_and_the_others_are_played(
    listed: None, monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    def make(release: Version, _: object) -> TorchHome:
        raise MachineError(f"the installation for torch {release} failed")

    monkeypatch.setattr(torches, "make_home", make)
    words = ["run", SELECTION, "--torch", "2.12", "--torch", sys.executable, "--out", str(tmp_path / "out")]
    assert main([*words, "--json", str(tmp_path / "rows")]) == ExitCode.MACHINE
    assert "not played: torch 2.12.1: the installation for torch 2.12.1 failed" in capsys.readouterr().out
    (folder,) = (tmp_path / "out").iterdir()
    assert folder.name == f"torch-{HERE}"
    run = read_stored(folder)
    assert {row.torch.partition("+")[0] for row in run.rows} == {HERE.partition("+")[0]}
    assert len((tmp_path / "rows").read_text().splitlines()) == len(run.rows)
    # The run is there: without --resume it is refused, and with it nothing is left to play.
    again = ["run", SELECTION, "--torch", sys.executable, "--out", str(tmp_path / "out"), "--quiet"]
    assert main(again) == ExitCode.MACHINE
    assert main([*again, "--resume"]) == ExitCode.HOLDS


def test_an_interrupted_run_prints_the_command_that_continues_it(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torches, "run_command", interrupt)
    assert main(["run", SELECTION, "--torch", sys.executable]) == 130
    *_, said = capsys.readouterr().err.splitlines()
    words = shlex.split(said.partition("to play the cases that are left: ")[2])
    assert words[-1] == "--resume"
    assert words[-2].startswith("reports/")
    assert words[words.index("--torch") + 1] == sys.executable
