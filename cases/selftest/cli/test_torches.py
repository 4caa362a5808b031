"""`run --torch`: a folder and a process for each torch, what is refused, and how a run goes on."""

import importlib.metadata
import json
import shlex
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from cases.selftest.runs.written_results import case, write
from deepstack_harness.cli import repro_bisect, torches
from deepstack_harness.cli.main import main
from deepstack_harness.errors import ExitCode, MachineError
from deepstack_harness.runs import environments
from deepstack_harness.runs.environments import TorchHome
from deepstack_harness.runs.store import read_stored
from deepstack_harness.sources.index import Index

Capture = pytest.CaptureFixture[str]
HERE = importlib.metadata.version("torch")
SELECTION = ["family=qwen3_vl", "arm=eager", "incident=43602", "revision=pr40932"]
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


@pytest.mark.slow  # 17 s
def test_a_torch_that_cannot_be_installed_is_reported_and_the_others_are_played(
    listed: None, monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    def make(release: Version, _: object) -> TorchHome:
        raise MachineError(f"the installation for torch {release} failed")

    monkeypatch.setattr(torches, "make_home", make)
    words = ["run", *SELECTION, "--torch", "2.12", "--torch", sys.executable, "--out", str(tmp_path / "out")]
    assert main([*words, "--json", str(tmp_path / "rows")]) == ExitCode.MACHINE
    assert "not played: torch 2.12.1: the installation for torch 2.12.1 failed" in capsys.readouterr().out
    (folder,) = (tmp_path / "out").iterdir()
    assert folder.name == f"torch-{HERE}"
    run = read_stored(folder)
    assert {row.torch.partition("+")[0] for row in run.rows} == {HERE.partition("+")[0]}
    assert len((tmp_path / "rows").read_text().splitlines()) == len(run.rows)
    # The run is there: without --resume it is refused, and with it nothing is left to play.
    again = ["run", *SELECTION, "--torch", sys.executable, "--out", str(tmp_path / "out"), "--quiet"]
    assert main(again) == ExitCode.MACHINE
    assert main([*again, "--resume"]) == ExitCode.HOLDS


@pytest.mark.slow  # 2 s; that of `run` by day
def test_an_interrupted_run_prints_the_command_that_continues_it(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torches, "run_command", interrupt)
    assert main(["run", *SELECTION, "--torch", sys.executable]) == 130
    *_, said = capsys.readouterr().err.splitlines()
    words = shlex.split(said.partition("to play the cases that are left: ")[2])
    assert words[-1] == "--resume"
    assert words[-2].startswith("reports/")
    assert words[words.index("--torch") + 1] == sys.executable


# The search over releases: what is played is written by hand, calls and output are real.

ASKED = [Version(text) for text in ("2.9.0", "2.10.0", "2.11.0", "2.12.0", "2.13.0", "2.14.0", "2.15.0")]


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of each process that the search starts; graphs change in 2.13, and 2.12 cannot be made."""
    started: list[str] = []

    def make(release: Version, _: object) -> TorchHome:
        if release == Version("2.12.0"):
            raise MachineError("the installation failed")
        return TorchHome(Path(sys.executable), str(release))

    def play(home: TorchHome, words: list[str]) -> str:
        selection = " ".join(words[1 : words.index("--cheapest-first")])
        started.append(f"{home.torch} {selection}")
        changed = Version(home.torch) >= Version("2.13") and "backend=inductor" in words
        rows = {"a": ("PASS", "PASS"), "b": ("PASS", "XFAIL")}
        write(Path(words[-1]), rows, {"a": case("a", graphs=2 if changed else 1)})
        return ""

    monkeypatch.setattr(repro_bisect, "listed_releases", lambda _: (ASKED, {Version("2.15.0")}))
    monkeypatch.setattr(environments, "make_home", make)
    monkeypatch.setattr(torches, "run_under", play)
    return started


def test_the_search_finds_the_torch_that_changes_a_case_cheap_arms_first(
    searched: list[str], capsys: Capture, tmp_path: Path
) -> None:
    words = ["repro", "43602", "--bisect", "--package", "torch", "--json", str(tmp_path / "rows")]
    assert main(words) == ExitCode.BROKEN
    said = " ".join(capsys.readouterr().out.split())
    assert "5 releases of torch" in said  # 2.9 is too old, 2.15.0 was yanked
    assert "without Inductor: verdicts, graphs, recompiles and graph breaks are alike" in said
    assert "with Inductor: torch 2.13.0 is the first that plays it otherwise than 2.11.0:" in said
    assert "graphs 1 -> graphs 2" in said
    assert "between them not judged: 2.12.0: the installation failed" in said
    assert ["inductor" in text for text in searched] == sorted("inductor" in text for text in searched)
    assert [text.partition(" ")[0] for text in searched[:2]] == ["2.10.0", "2.14.0"]
    answers = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    last = [row for row in answers if row["system"] == "bisect"][-1]
    assert (last["before"], last["after"]) == ("2.11.0", "2.13.0")
    assert last["not_judged"] == {"2.12.0": "the installation failed"}


def test_no_change_is_reported_and_exits_with_0(searched: list[str], capsys: Capture) -> None:
    words = ["repro", "43602", "--bisect", "--package", "torch", "--until", "2.11", "--arm", "eager/drop_all"]
    assert main(words) == ExitCode.HOLDS
    assert "no torch that was tried changes incident 43602" in capsys.readouterr().out
    assert all("arm=eager/drop_all" in text for text in searched)
    assert len(searched) == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--package", "torch"], ExitCode.USAGE, "add --bisect"),
        (["--package", "vllm", "--bisect", "--keep", "1"], ExitCode.BISECT_SKIP, "--keep N is for"),
        (["--package", "torch", "--bisect", "--since", "2.13", "--until", "2.13"], ExitCode.BISECT_SKIP,
         "fewer than two releases from 2.13 to 2.13"),
        (["--package", "torch", "--bisect", "--arm", "eager"], ExitCode.BISECT_SKIP, "no compiled case"),
    ],
)  # fmt: skip
def test_a_wrong_search_is_refused(
    searched: list[str], capsys: Capture, words: list[str], code: ExitCode, said: str
) -> None:
    assert main(["repro", "43602", *words]) == code
    assert said in capsys.readouterr().err
    assert searched == []
