"""`repro` on a source whose payload is an argument: its graphs have the fault, or not, or cannot be asked."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from cases.selftest.engines.synthetic_sglang import RUNNER, RUNNER_FILE, sglang_files, with_slot
from cases.selftest.engines.synthetic_vllm import write
from deepstack_harness.cli.main import main
from deepstack_harness.errors import ExitCode

MOVED = RUNNER_FILE.replace("_execute_body_capture", "_execute_elsewhere")
FAMILY = ["--family", "qwen3_vl"]


def repro(root: Path, files: Mapping[str, str], *options: str, incident: str = "33726") -> int:
    """Return the exit code of `repro` on a tree of these files."""
    return main(["repro", incident, "--source", str(write(root, files)), *options])


def test_a_payload_without_a_slot_has_the_incident(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    assert repro(tmp_path, sglang_files(), *FAMILY, "--json", str(rows)) == ExitCode.BROKEN
    said = capsys.readouterr().out
    line = RUNNER_FILE.splitlines().index("        def replays(*given, **named):") + 1
    assert f"where: {RUNNER}:{line}-{line + 2}" in said
    assert "Qwen3LLMModel: HAS incident 33726, breaks R2" in said
    broken = [row for row in map(json.loads, rows.read_text().splitlines()) if row["verdict"] == "FAIL"]
    assert {(row["incident"], row["rule"], row["regime"]) for row in broken} == {("33726", "R2", "captured")}
    assert all(row["where"].startswith(RUNNER) for row in broken)


@pytest.mark.slow
def test_a_payload_with_a_slot_is_free_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert repro(tmp_path, with_slot(), *FAMILY) == ExitCode.HOLDS
    assert "Qwen3LLMModel: free of incident 33726" in capsys.readouterr().out


@pytest.mark.slow
def test_a_bisection_finds_the_tree_that_lost_the_slot(tmp_path: Path) -> None:
    kept, lost, moved = with_slot("0.5.1"), sglang_files("0.5.4"), sglang_files("0.5.3", runner=MOVED)
    trees = {"0.5.1": kept, "0.5.2": kept, "0.5.3": moved, "0.5.4": lost, "0.5.5": lost}
    codes = [repro(tmp_path / name, files, *FAMILY, "--bisect") for name, files in trees.items()]
    assert codes == [0, 0, ExitCode.BISECT_SKIP, 1, 1]


@pytest.mark.slow
def test_graphs_that_cannot_be_driven_say_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert repro(tmp_path, sglang_files(runner=MOVED), *FAMILY) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "its graphs are not driven" in said
    assert f"{RUNNER}:" in said


@pytest.mark.parametrize(
    ("incident", "options", "words"),
    [
        ("43602", FAMILY, "is about a buffer, and the payload of sglang is an argument"),
        ("33726", [*FAMILY, "--trace", "cap 16: get 4"], "leave --trace out"),
        ("40143", [], "has nothing of incident 40143"),
        pytest.param(
            "33726",
            ["--family", "qwen3_omni_moe_thinker"],
            "unknown text model of sglang at",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_cannot_be_asked_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], incident: str, options: list[str], words: str
) -> None:
    assert repro(tmp_path, sglang_files(), *options, incident=incident) == ExitCode.USAGE
    assert words in capsys.readouterr().err


@pytest.mark.network
@pytest.mark.slow
def test_the_released_runner_has_the_incident(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "33726", "--source", "sglang==0.5.23"]) == ExitCode.BROKEN
    assert "where: sglang/srt/model_executor/runner/prefill_cuda_graph_runner.py:" in capsys.readouterr().out


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "code", "said"),
    [
        ("0.5.10.post1", ExitCode.HOLDS, "asked: sglang/srt/model_executor/piecewise_cuda_graph_runner.py:"),
        ("0.5.11", ExitCode.BROKEN, "where: sglang/srt/model_executor/breakable_cuda_graph_runner.py:"),
        ("0.5.12.post1", ExitCode.BROKEN, "where: sglang/srt/model_executor/breakable_cuda_graph_runner.py:"),
        ("0.5.14", ExitCode.BROKEN, f"where: {RUNNER}:"),
        ("0.5.15.post1", ExitCode.BROKEN, f"where: {RUNNER}:"),
    ],
)
def test_a_bisection_of_releases_names_where_it_came_in(
    capsys: pytest.CaptureFixture[str], release: str, code: ExitCode, said: str
) -> None:
    assert main(["repro", "33726", "--source", f"sglang=={release}", "--bisect"]) == code
    assert said in capsys.readouterr().out
