"""`run` from the command line: files, shards, kills, Ray, GPUs, and every way to call it wrongly."""

import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from deepstack_harness.cli.main import main
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, PlannedCase, registered
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import ExitCode, MachineError
from deepstack_harness.runs.execution import Execution, RunRequest
from deepstack_harness.runs.frames import RunFrames, read_run
from deepstack_harness.runs.machine import VISIBLE, visible_gpus
from deepstack_harness.runs.pools import FreeGpus, Group

pytestmark = pytest.mark.xdist_group("run")
SELECTION = ("family!=granite4_vision", "arm=eager", "incident=", "trace=*resize*")
"""Three groups, and no compiler."""


def run(*words: str) -> int:
    return main(["run", *words, "--quiet"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run with two workers."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    assert run(*SELECTION, "-n", "2", "--out", str(path)) == ExitCode.HOLDS
    return path


def judged(folder: Path) -> list[str]:
    """All rows and, of cases, what is not time, in an order of their own."""
    frames: RunFrames = read_run(folder)
    cases = frames.cases.drop(columns=["seconds"])
    return sorted(
        [*frames.rows.to_json(orient="records", lines=True).splitlines(), *map(str, cases.to_dict("records"))]
    )


def test_a_run_leaves_its_files_and_the_verdict_of_the_catalogue(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {
        "run.json", "rows.jsonl", "cases.jsonl", "rows.parquet", "cases.parquet",
    }  # fmt: skip
    run_data = read_run(folder)
    assert run_data.meta[0]["planned"] == {"groups": 3, "cases": len(run_data.cases)}
    verdicts = run_data.rows.groupby("verdict").size().to_dict()
    assert verdicts.keys() == {"PASS", "SKIP", "XFAIL"}
    assert set(run_data.rows[run_data.rows["verdict"] == "XFAIL"]["rule"]) >= {"R4"}
    families = ("qwen3_vl", "qwen3_omni_moe_thinker", "gemma4")
    assert set(run_data.cases["group"]) == {f"{family} eager cpu" for family in families}


def test_a_case_shows_its_steps_and_a_failing_one_its_script(folder: Path) -> None:
    run_data = read_run(folder)
    case = next(
        case for case in run_data.cases.to_dict("records") if case["subject"] == "pr43617" and case["script"]
    )
    assert [step["step"] for step in case["steps"]] == case["trace"].partition(": ")[2].split("; ")
    assert case["expected"] == ["R4"]
    assert "pr43617 breaks rule R4" in case["script"]
    compile(case["script"], "script", "exec")


def test_a_run_that_is_there_is_refused_and_resumed_without_playing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "rows.jsonl").read_bytes()
    assert run(*SELECTION, "--out", str(folder)) == ExitCode.USAGE
    assert "continue with --resume" in capsys.readouterr().err
    assert run("arm=eager", "--out", str(folder), "--resume") == ExitCode.USAGE
    assert main(["run", *SELECTION, "--out", str(folder), "--resume"]) == ExitCode.HOLDS
    assert f"{len(read_run(folder).cases)} cases there already" in capsys.readouterr().out
    assert (folder / "rows.jsonl").read_bytes() == before


def test_a_run_that_is_killed_goes_on_and_ends_with_the_same_rows(folder: Path, tmp_path: Path) -> None:
    words = [*SELECTION, "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "deepstack_harness", "run", *words, "--json", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        json.loads(child.stdout.readline())  # a row, so its case is on the disk
        child.send_signal(signal.SIGKILL)
    killed = read_run(tmp_path / "run")
    assert 0 < len(killed.cases) < killed.meta[0]["planned"]["cases"]
    assert killed.meta[0]["finished"] is None
    for name in ("rows.jsonl", "cases.jsonl"):  # as if it had been killed while it wrote
        with (tmp_path / "run" / name).open("a") as stream:
            stream.write('{"half a')
    assert run(*words, "--resume") == ExitCode.HOLDS
    assert judged(tmp_path / "run") == judged(folder)


@pytest.fixture(scope="module")
def on_another_torch(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as torch 2.15.0 would have begun it."""
    copy = tmp_path_factory.mktemp("other") / "run"
    shutil.copytree(folder, copy)
    record = json.loads((copy / "run.json").read_text())
    record["environment"]["torch"] = "2.15.0"
    (copy / "run.json").write_text(json.dumps(record))
    return copy


def test_a_run_of_another_torch_is_not_resumed(
    on_another_torch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (on_another_torch / "run.json").read_bytes()
    assert run(*SELECTION, "--out", str(on_another_torch), "--resume") == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "holds a run with torch 2.15.0, " in said
    assert f"; this is torch {importlib.metadata.version('torch')}, " in said
    assert "a run belongs to one environment" in said
    assert (on_another_torch / "run.json").read_bytes() == before


@pytest.mark.slow  # 6 s
def test_shards_together_are_the_unsharded_run(folder: Path, tmp_path: Path) -> None:
    """Three shards of two groups: one has nothing to do."""
    for index in (3, 1, 2):
        assert run(*SELECTION, "--out", str(tmp_path), "--shard", f"{index}/3") == ExitCode.HOLDS
    assert judged(tmp_path) == judged(folder)
    assert [len(json.loads(path.read_text())) for path in tmp_path.glob("run-*of3.json")]
    assert len(list(tmp_path.glob("cases-*of3.parquet"))) == 3


def test_what_is_unexpected_exits_with_1_and_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a class of one's own nothing is expected; this one fulfils nothing."""
    words = [
        "trace=*set 9; get 16; clear 16*",
        "--buffer",
        "deepstack_harness.models.revisions:Pr40932Buffer",
    ]
    assert main(["run", *words, "--out", str(tmp_path / "run")]) == ExitCode.BROKEN
    printed = capsys.readouterr().out
    assert (
        "FAIL R1 deepstack_harness.models.revisions:Pr40932Buffer float32 'cap 16: set 9; get 16" in printed
    )
    assert "FAIL" in printed.splitlines()[-1]


def test_missing_ray_is_reported_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run(*SELECTION, "--executor", "ray", "--out", str(tmp_path / "run")) == ExitCode.MACHINE
    assert "pip install 'deepstack-harness[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("listed", "names"), [("0,1", ["0", "1"]), ("GPU-8f2a,MIG-1c", ["GPU-8f2a", "MIG-1c"]), ("3,-1,0", ["3"])]
)
def test_visible_gpus_are_the_callers_own_strings(
    listed: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, listed)
    assert visible_gpus() == names


@pytest.mark.parametrize("listed", ["", "-1"])
def test_no_gpu_is_the_machines_fault(listed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, listed)
    with pytest.raises(MachineError, match="use --device cpu"):
        visible_gpus()


def test_each_group_sees_gpus_of_its_own_and_waits_for_them() -> None:
    """As strings that nobody reads; a group of ranks takes one for each."""
    each, other, two = (group_on("cuda", ranks) for ranks in (1, 1, 2))
    gpus = FreeGpus(["GPU-a", "MIG-b"])
    with gpus.taken(each) as first, gpus.taken(other) as second, gpus.taken(group_on("cpu", 1)) as none:
        assert (first, second, none) == ({VISIBLE: "GPU-a"}, {VISIBLE: "MIG-b"}, {})
        waiting = Thread(target=lambda: seen.append(enter(gpus, two)))
        seen: list[dict[str, str]] = []
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
    waiting.join(10)
    assert [sorted(variables[VISIBLE].split(",")) for variables in seen] == [["GPU-a", "MIG-b"]]


def group_on(device: str, ranks: int) -> Group:
    arm = ArmSpec.parse("eager" if ranks == 1 else f"eager/tp{ranks}")
    return Group(
        (
            PlannedCase(
                Case("qwen3_vl", registered("reference"), Trace.parse("cap 4: get 4"), arm, device=device),
                None,
            ),
        )
    )


def enter(gpus: FreeGpus, group: Group) -> dict[str, str]:
    with gpus.taken(group) as seen:
        return seen


def test_a_run_on_cuda_leaves_out_what_takes_more_gpus_than_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, "GPU-a,GPU-b")
    selection = ("family=qwen3_vl", "arm=eager", "arm=eager/tp2", "arm=eager/tp3")
    wanted = RunRequest(selection, devices=("cuda",))
    execution = Execution(wanted, tmp_path / "run", resume=False)
    execution.writer.close()
    assert [group.name for group in execution.left_out] == ["qwen3_vl eager/tp3 cuda"]
    assert {group.name for group in execution.groups} == {"qwen3_vl eager cuda", "qwen3_vl eager/tp2 cuda"}


@pytest.mark.slow
def test_ray_plays_the_same(folder: Path, tmp_path: Path) -> None:
    """In a process of its own: Ray leaves threads, and prints."""
    pytest.importorskip("ray")
    words = [*SELECTION, "--executor", "ray", "-n", "2", "--out", str(tmp_path / "run"), "--quiet"]
    subprocess.run([sys.executable, "-m", "deepstack_harness", "run", *words], check=True)
    assert judged(tmp_path / "run") == judged(folder)


WITHOUT_WORKERS = """
import sys

sys.path.insert(0, sys.argv[1])
from deepstack_harness.cli.main import main
from deepstack_harness.runs import ray_pool

ray_pool._START_S = 20.0
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow
def test_a_ray_whose_workers_cannot_start_is_no_endless_wait(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    fault = "import os, sys; print('not today', file=sys.stderr, flush=True); os._exit(1)"
    (tmp_path / "sitecustomize.py").write_text(fault)
    words = ["run", *SELECTION, "--executor", "ray", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-c", WITHOUT_WORKERS, str(tmp_path), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == ExitCode.MACHINE, ended.stderr
    assert "Ray started no worker within 20 s: not today" in ended.stderr


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
def test_two_workers_take_three_quarters_of_the_time_of_one_and_the_runner_a_tenth(tmp_path: Path) -> None:
    """Against the work of the same run, because other workers of pytest may hold the cores."""
    words = ["arm=eager/drop_all/full", "--tier", "nightly"]  # two groups of equal length
    started, ours = time.perf_counter(), time.process_time()
    assert run(*words, "-n", "2", "--out", str(tmp_path / "run")) == ExitCode.HOLDS
    took, ours = time.perf_counter() - started, time.process_time() - ours
    seconds = read_run(tmp_path / "run").cases["seconds"]
    assert took <= 0.75 * seconds.sum()
    assert ours <= 0.1 * seconds.sum()
