"""The tier `gpu` of a night: its commands, its rehearsal, a GPU that is not there or vanishes half way."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import pytest

from deepstack_harness.cli.main import build_parser, main
from deepstack_harness.contract.facts import Measured
from deepstack_harness.errors import ExitCode, MachineError
from deepstack_harness.files import data
from deepstack_harness.runs import machine, night_stages
from deepstack_harness.runs.execution import matrix, select
from deepstack_harness.runs.night_stages import NightRequest, NightTier, default_workers, stages
from deepstack_harness.runs.nights import (
    EndedStage,
    NightlyRun,
    Stage,
    StageOutcome,
    exit_code,
    write_summary,
)
from deepstack_harness.runs.report.run_data import RunData, summarise

ROOT = data("pyproject.toml").parent


def gpu_night(folder: Path, *, rehearse: bool = False) -> list[Stage]:
    return stages(
        NightRequest(
            folder / "new", folder, ["cuda"], 5, workers=3, minutes=8, tier=NightTier.GPU, rehearse=rehearse
        )
    )


def is_pytest(stage: Stage) -> bool:
    return stage.command[:3] == (sys.executable, "-m", "pytest")


def files_of(stage: Stage) -> list[str]:
    return [word for word in stage.command if word.endswith(".py")]


@pytest.mark.parametrize("rehearse", [False, True])
def test_every_command_of_the_harness_is_one_that_its_parser_takes(tmp_path: Path, *, rehearse: bool) -> None:
    commands = [stage.command for stage in gpu_night(tmp_path, rehearse=rehearse) if not is_pytest(stage)]
    assert commands
    for words in commands:
        assert words[:3] == (sys.executable, "-m", "deepstack_harness")
        parsed = build_parser(words[3:]).parse_args(words[3:])
        if parsed.command == "run":
            cases = select(matrix(parsed.tier, parsed.devices), parsed.selection)
            assert {planned.case.device for planned in cases} == set(parsed.devices)


@pytest.mark.slow  # 9 s
def test_pytest_takes_the_command_of_its_stages(tmp_path: Path) -> None:
    """One of them: the others have the same options and other files."""
    (streams,) = [stage for stage in gpu_night(tmp_path) if stage.name == "streams"]
    words = (*streams.command, "-n", "2", "--dist", "loadgroup", "--collect-only")
    end = subprocess.run(words, cwd=streams.where, capture_output=True, text=True, timeout=200, check=False)
    assert end.returncode == 0, end.stdout + end.stderr
    assert re.search(r"\b6/\d+ tests collected", end.stdout), end.stdout


def test_every_case_for_a_gpu_is_in_one_stage(tmp_path: Path) -> None:
    in_stages = [file for stage in gpu_night(tmp_path) if is_pytest(stage) for file in files_of(stage)]
    marked = re.compile(r"^@pytest\.mark\.gpu|marks=pytest\.mark\.gpu", re.MULTILINE)
    files = (path for path in (ROOT / "cases").rglob("test_*.py") if marked.search(path.read_text()))
    assert sorted(in_stages) == sorted(path.relative_to(ROOT).as_posix() for path in files)


def test_the_matrix_shares_the_gpu(tmp_path: Path) -> None:
    graphs = next(stage for stage in gpu_night(tmp_path) if stage.name == "graphs")
    assert graphs.command[graphs.command.index("--device") + 1] == "cuda:0"


def test_a_rehearsal_needs_no_gpu(tmp_path: Path) -> None:
    for rehearsed in gpu_night(tmp_path, rehearse=True):
        assert not rehearsed.gpu
        assert bool(rehearsed.rehearses) != rehearsed.last
        assert "cuda" not in " ".join(rehearsed.command).replace("gpu-", "")


def test_a_wheel_has_no_stage_for_missing_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(night_stages, "_cases_folder", lambda: tmp_path)
    assert not any(map(is_pytest, gpu_night(tmp_path)))


def printing(stage: Stage, code: int = 0) -> Stage:
    """Return the stage with a program in its place that prints its name and ends with a code."""
    program = f"print('{stage.name} ran'); raise SystemExit({code})"
    return replace(stage, command=(sys.executable, "-I", "-S", "-c", program), where=None)


def played(folder: Path, planned: list[Stage], *faults: str | None, gpus: int = 1) -> list[EndedStage]:
    answers: Iterator[str | None] = iter(faults)
    night = NightlyRun(folder, lambda: next(answers), lambda _: 2**40, count_gpus=lambda: gpus)
    return list(night.run(planned))


def test_a_gpu_that_vanishes_half_way_is_reported_by_every_later_stage(tmp_path: Path) -> None:
    planned = gpu_night(tmp_path)
    vanishes = [stage.name for stage in planned].index("gpu-kernels")
    commands = [printing(stage, 3 if number == vanishes else 0) for number, stage in enumerate(planned)]
    ended = played(tmp_path, commands, None, "Xid 79: the GPU has fallen off the bus")
    before, after = ended[1 : 1 + vanishes], ended[2 + vanishes : -1]
    assert {stage.outcome for stage in before} == {StageOutcome.HELD}
    assert (ended[1 + vanishes].outcome, ended[1 + vanishes].detail.partition(";")[0]) == (
        StageOutcome.FAILED,
        "the GPU is gone: Xid 79: the GPU has fallen off the bus",
    )
    assert len(after) >= 2
    for stage in after:
        assert stage.in_short == f"{stage.stage} not run"
        assert stage.detail == "the GPU is gone: Xid 79: the GPU has fallen off the bus"
    assert ended[-1].in_short == "report held"
    assert exit_code(ended) is ExitCode.MACHINE


def test_a_missing_second_gpu_is_reported_and_not_wrong(tmp_path: Path) -> None:
    commands = [printing(stage) for stage in gpu_night(tmp_path)]
    for gpus, outcome in ((1, StageOutcome.LEFT_OUT), (2, StageOutcome.HELD)):
        ended = played(tmp_path, commands, None, gpus=gpus)
        (ranks,) = [stage for stage in ended if stage.stage == "ranks"]
        assert ranks.outcome is outcome
        assert ranks.detail == ("one GPU: it needs 2" if gpus == 1 else "")
        assert exit_code(ended) is ExitCode.HOLDS
        assert not any(stage.wrong for stage in ended)


def test_gpus_that_cannot_be_counted_are_reported(tmp_path: Path) -> None:
    def cannot() -> int:
        raise MachineError("torch cannot count the GPUs: no driver")

    (ranks,) = [printing(stage) for stage in gpu_night(tmp_path) if stage.name == "ranks"]
    night = NightlyRun(tmp_path, lambda: None, lambda _: 2**40, count_gpus=cannot)
    assert list(night.run([ranks]))[-1].detail == "torch cannot count the GPUs: no driver"


def test_a_rehearsal_is_never_reported_as_held(tmp_path: Path) -> None:
    planned = [printing(stage) for stage in gpu_night(tmp_path, rehearse=True)]
    *rehearsed, report = played(tmp_path, planned)
    assert {stage.outcome for stage in rehearsed} == {StageOutcome.REHEARSED}
    assert all(stage.detail.startswith("rehearsed: ") and stage.wrong for stage in rehearsed)
    assert report.held
    assert exit_code([*rehearsed, report]) is ExitCode.HOLDS
    broken = played(tmp_path, [printing(planned[0], 1)])
    assert (broken[0].outcome, broken[0].detail) == (StageOutcome.BROKEN, "doctor ran")
    assert not summarise(RunData("night", (), (), {}, stages=tuple(rehearsed))).good


MEASURED = Measured("payload", 12.5, "us", 10.0, {"tokens": 64, "arm": "eager/full"})


@pytest.mark.parametrize(
    ("text", "rows"),
    [("WHOLE\nWHOLE\n", 2), ("WHOLE\nWHOLE\n" + '{"measure": "pay', 2), ("", 0), (None, 0), ("[]\n", 0)],
    ids=["whole", "torn", "empty", "missing", "other"],
)
def test_what_a_stage_measured_is_stored_however_it_ended(
    tmp_path: Path, text: str | None, rows: int
) -> None:
    file = tmp_path / "rows.jsonl"
    if text is not None:
        file.write_text(text.replace("WHOLE", msgspec.json.encode(MEASURED).decode()))
    stage = Stage("payload", (sys.executable, "-S", "-c", "raise SystemExit(3)"), 60, measured=file)
    (ended,) = played(tmp_path, [stage])
    assert (ended.outcome, ended.measured) == (StageOutcome.FAILED, (MEASURED,) * rows)
    write_summary(tmp_path, [ended])
    (again,) = msgspec.json.decode((tmp_path / "nightly.json").read_bytes(), type=list[EndedStage])
    assert again == ended
    assert [apart.ratio for apart in again.measured] == [1.25] * rows


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--tier", "gpus"], "unknown --tier 'gpus'; did you mean 'gpu'? known are full, gpu"),
        (["--rehearse"], "--rehearse is for --tier gpu"),
        (["--tier", "gpu", "--device", "cpu"], "--tier gpu takes --device cuda, not cpu; CUDA_VISIBLE_"),
        (["--tier", "gpu", "--device", "cuda", "--device", "cuda:1"], "not cuda, cuda:1"),
        (["--tier", "gpu", "--source", "vllm==0.22.1"], "--tier gpu audits no source: leave --source out"),
        (["--tier", "gpu", "--rehearse", "-n", "0"], "-n 0 must be above 0"),
        (["--tier", "gpu", "--rehearse", "--stage", "fuzz"], "unknown stage 'fuzz'; this night has doctor"),
    ],
)
def test_wrong_calls_are_refused(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nightly", "--history", str(tmp_path / "nights"), *words]) == ExitCode.USAGE
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "nights").exists()


def test_a_machine_without_a_gpu_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(machine.VISIBLE, "-1")
    words = ["nightly", "--tier", "gpu", "--minutes", "8", "--history", str(tmp_path / "nights")]
    assert main(words) == ExitCode.MACHINE
    assert capsys.readouterr().err == (
        "deepstack-harness: there is no GPU to run on: CUDA_VISIBLE_DEVICES is '-1'; "
        "'nightly --tier gpu --rehearse' tries its stages without one\n"
    )
    assert not (tmp_path / "nights").exists()


def test_what_is_not_installed_is_reported_and_refuses_no_night_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def installed(name: str) -> str:
        if name == "junitparser":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(night_stages, "version", installed)
    words = ["nightly", "--tier", "gpu", "--rehearse", "--history", str(tmp_path), "--stage", "report"]
    assert main(words) == ExitCode.MACHINE
    first, second, _ = capsys.readouterr().out.splitlines()
    why = (
        "not installed: junitparser>=3 (extra 'reports'): python -m pip install 'deepstack-harness[reports]'"
    )
    assert first == f"report will not run: {why}"
    assert second.startswith("report       not run")
    assert second.endswith(why)


def test_a_gpu_night_has_a_worker_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, workers in ((1, 1), (6, 6), (64, 16)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert (default_workers(NightTier.GPU), default_workers(NightTier.FULL)) == (workers, 2)


def test_cases_append_what_they_measure_to_the_file_of_their_stage(tmp_path: Path) -> None:
    """The fixture of the checkout's conftest, in a run of pytest of its own."""
    case = tmp_path / "test_measures.py"
    case.write_text(
        "from deepstack_harness.contract.facts import Measured\n"
        "def test_it(keep_figure):\n    for _ in range(2):\n"
        "        keep_figure(Measured('races', 3, 'times', 4.0, {'device': 'cpu'}))\n"
    )
    file = tmp_path / "rows.jsonl"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "conftest", str(case)]
    words += ["--measured", str(file)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=200)
    rows = [msgspec.json.decode(line, type=Measured) for line in file.read_bytes().splitlines()]
    assert rows == [Measured("races", 3, "times", 4.0, {"device": "cpu"})] * 2
