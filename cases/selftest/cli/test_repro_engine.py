"""`repro` where the payload is an argument: graphs have the fault, or not, or cannot be judged."""

import json
from argparse import Namespace
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cases.selftest.engines.synthetic_sglang import RUNNER, RUNNER_FILE, sglang_files, with_slot
from cases.selftest.engines.synthetic_vllm import write
from deepstack_harness.audit import classes, source_worker
from deepstack_harness.audit.source_worker import AuditedClass
from deepstack_harness.catalogue.incidents import EngineRun, find
from deepstack_harness.cli import repro_engine
from deepstack_harness.cli.main import main
from deepstack_harness.cli.output import Output
from deepstack_harness.contract.arm import EAGER
from deepstack_harness.contract.case import Case, PlannedCase, registered
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.oracles.judge import JudgedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.engines.discover import ArgumentModel, ClassPart, FoundClass
from deepstack_harness.engines.kinds.sglang import FILES
from deepstack_harness.engines.model_class import BY_METHODS, ModelClass
from deepstack_harness.errors import ExitCode, Reason, UsageError
from deepstack_harness.play.case_worker import ClassWays
from deepstack_harness.sources.source import Source

Capture = pytest.CaptureFixture[str]
INCIDENT = find("33726")
RUN = EngineRun("sglang", ("cap 4: set 2; get 2",), (Rule.BOUNDARY,))
SOURCE = cast(Source, SimpleNamespace(label="sglang 0.5.4", package="sglang"))
_NOT_DRIVEN = Reason("it was not driven")
TEXT_MODEL = ModelClass("qwen3_vl.py", "Qwen3LLMModel", "this release")
ENGINE = ArgumentModel(TEXT_MODEL, FILES, _NOT_DRIVEN, replayed_at="runner.py:3-5")
WAYS = ClassWays(methods=True, replays=True)
FOUND = AuditedClass(FoundClass("Qwen3LLMModel", "qwen3_vl.py", ENGINE, _NOT_DRIVEN), WAYS)


def judged(verdict: Verdict) -> JudgedCase:
    case = Case("qwen3_vl", registered("reference"), Trace.parse(RUN.traces[0]), EAGER)
    seen = Observation("float32", "cpu", 3, 8, "2.13.0", ())
    return JudgedCase(PlannedCase(case, None), seen, (Judgement(Rule.BOUNDARY, verdict, detail="2 rows"),))


@pytest.mark.parametrize(
    ("verdict", "free", "said"),
    [
        (Verdict.PASS, True, "sglang 0.5.4, Qwen3LLMModel: free of incident 33726"),
        (Verdict.ERROR, False, "sglang 0.5.4, Qwen3LLMModel: incident 33726 could not be judged"),
    ],
)
def test_a_model_is_free_only_where_it_could_be_judged(
    verdict: Verdict, said: str, capsys: Capture, *, free: bool
) -> None:
    output = Output(None, quiet=False)
    seen = output.show(repro_engine._print_verdict(FOUND, [judged(verdict)], RUN, INCIDENT, SOURCE))
    assert seen.free is free
    assert seen.unjudged == ("" if free else "R2: 2 rows")
    lines = capsys.readouterr().out.splitlines()
    assert (lines[-1], lines[-2]) == (said, "judged: runner.py:3-5")


def test_the_options_that_lead_there_and_what_is_known_of_the_runner_are_shown(capsys: Capture) -> None:
    runner = replace(ENGINE, runner=ClassPart("runner.py", "Runner", BY_METHODS, "--graphs", "of text alone"))
    told = AuditedClass(replace(FOUND.found, methods=runner), replace(WAYS, lost="it is left out"))
    Output(None, quiet=False).show(repro_engine._print_place(told, broken=True))
    assert capsys.readouterr().out.splitlines() == [
        "where: runner.py:3-5",
        "why: it is left out",
        "reached with: --graphs",
        "note: of text alone",
    ]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({}, "unknown text model of sglang 0.5.4 'Qwen3LLMModel'"),
        (
            {"Qwen3LLMModel": replace(FOUND, ways=ClassWays(refusals=(Reason("no"), Reason("no forward"))))},
            "Qwen3LLMModel of sglang 0.5.4 cannot be called: no forward$",
        ),
        (
            {"Qwen3LLMModel": replace(FOUND, ways=ClassWays(methods=True, no_graphs=Reason("no runner")))},
            "Qwen3LLMModel of sglang 0.5.4: its graphs cannot be replayed: no runner$",
        ),
    ],
)
def test_a_model_that_cannot_be_run_is_refused(found: dict[str, AuditedClass], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        repro_engine._driven_class("Qwen3LLMModel", found, SOURCE)


def test_a_family_without_a_text_model_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(UsageError, match=r"^sglang 0\.5\.4 has a text model of qwen3_vl, .* alone$"):
        repro_engine._text_models(SOURCE, ["granite4_vision"])


def test_a_source_that_changed_what_measures_it_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = SimpleNamespace(classes=lambda: [FOUND])
    monkeypatch.setattr(source_worker, "failed_control", lambda _: "a right buffer broke R2")
    monkeypatch.setattr(source_worker, "SourceWorker", lambda _: nullcontext(worker))
    monkeypatch.setattr(classes, "judge_replayed", lambda *_: [judged(Verdict.PASS)])
    asked = Namespace(**repro_engine._OPTIONS_OF_OURS, source="TREE")
    with pytest.raises(UsageError, match=r"sglang 0\.5\.4 cannot be judged: a right buffer broke R2"):
        Output(None, quiet=True).show(repro_engine.reproduce_in_engine(INCIDENT, ["qwen3_vl"], SOURCE, asked))


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
def test_graphs_that_cannot_be_run_give_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repro(tmp_path, sglang_files(runner=MOVED), *FAMILY) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "its graphs cannot be replayed" in said
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
def test_options_that_do_not_apply_are_refused(
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
        ("0.5.10.post1", ExitCode.HOLDS, "judged: sglang/srt/model_executor/piecewise_cuda_graph_runner.py:"),
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
