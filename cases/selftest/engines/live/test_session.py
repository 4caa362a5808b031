"""A running engine in a process of its own: a small vLLM that the child imports, judged by the parent."""

import sys
import venv
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from cases.by_day import by_day
from cases.selftest.engines.synthetic_vllm import RUNNING
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Effect, Verdict
from deepstack_harness.engines.known import open_source
from deepstack_harness.engines.live import search
from deepstack_harness.engines.live.environment import EngineHome
from deepstack_harness.engines.live.judge import EngineResult
from deepstack_harness.engines.live.models import model_of
from deepstack_harness.engines.live.play import EngineWork, OrderRecorder, RunningEngine, _FamilyPlay
from deepstack_harness.engines.live.schedules import REPLAY_MODES, SCHEDULES
from deepstack_harness.engines.live.search import Search, searched
from deepstack_harness.engines.live.session import (
    EngineFailed,
    EngineSession,
    StartOrder,
    methods_text,
)
from deepstack_harness.errors import ExitCode, UsageError

TESTED = {Rule.OUTPUT, Rule.STRUCTURE, Rule.BOUNDARY, Rule.CLEAR}
ONE_TOKEN = SCHEDULES["one_token_chunks"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> EngineHome:
    """An environment that has the small vLLM, and the torch of this one."""
    folder = tmp_path_factory.mktemp("engine")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    paths = [str(RUNNING), *(path for path in sys.path if path.endswith("site-packages"))]
    (packages / "stand_in.pth").write_text("\n".join(paths))
    return EngineHome(folder / "bin" / "python", "a stand-in")


@pytest.fixture
def order(tmp_path: Path) -> StartOrder:
    return StartOrder(model_of("qwen3_vl"), tmp_path)


@pytest.fixture(scope="module")
def engine(home: EngineHome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """One engine without a fault, for all schedules that leave it as it is."""
    order = StartOrder(model_of("qwen3_vl"), tmp_path_factory.mktemp("model"))
    with RunningEngine(home, "a stand-in", order, lambda _: None) as found:
        yield found


def broken(result: EngineResult) -> set[Rule]:
    return {row.rule for row in result.broken}


FILE = """\
import torch


class Qwen3VLForConditionalGeneration:
    def _get_deepstack_input_embeds(self, num_tokens: "int") -> "IntermediateTensors":
        return None

    def _clear_deepstack_input_embeds(self, num_tokens):
        if num_tokens:
            # a comment in it
            self.filled = 0

    def forward(self):
        return 1
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    models = tmp_path / "vllm" / "model_executor" / "models"
    models.mkdir(parents=True)
    (models / "qwen3_vl.py").write_text(FILE)
    (tmp_path / "vllm" / "_version.py").write_text("__version__ = version = '0.22.1'\n")
    return tmp_path


def test_a_start_reports_what_runs(engine: RunningEngine) -> None:
    facts = engine.session.facts
    assert (facts.vllm, facts.levels, facts.capacity) == ("0.99.0", 2, 64)
    assert [call for call, _ in facts.start_calls] == ["get", "clear"]
    assert [step.tokens for step in facts.start_steps] == [None]


@pytest.mark.slow  # by day in test_judge.py
def test_a_schedule_that_does_not_preempt_has_measured_nothing(engine: RunningEngine) -> None:
    """The small vLLM has no prefix cache, drafts nothing, and has room for all."""
    (result,) = engine.results(SCHEDULES["cached_and_preempted"])
    rows = [row for row in result.rows if row.verdict is Verdict.ERROR]
    assert {row.rule for row in rows} == TESTED
    assert all("no request was preempted" in row.detail for row in rows)


@pytest.mark.parametrize("name", ["all_at_once", "chunked_5", "aborted"])
def test_a_right_engine_passes_every_rule(engine: RunningEngine, name: str) -> None:
    (result,) = engine.results(SCHEDULES[name])
    assert broken(result) == set()
    assert {row.rule for row in result.rows if row.verdict is Verdict.PASS} == TESTED
    assert result.steps > 2


def test_a_replayed_one_token_chunk_leaves_its_row(engine: RunningEngine) -> None:
    found = {result.replay.name if result.replay else "": result for result in engine.results(ONE_TOKEN)}
    assert broken(found[""]) == set()
    assert found[""].visual_decodes > 0
    by_default = found["full_and_piecewise"]
    assert broken(by_default) == {Rule.OUTPUT, Rule.CLEAR}
    assert by_default.replayed > 0
    for row in by_default.broken:
        assert (row.regime, row.evidence, row.effect) == (Regime.CAPTURED, "emulated", Effect.OUTPUT)
        assert row.reach == "flag: --max-num-batched-tokens of running decodes + 1"


@pytest.mark.slow
def test_a_counter_that_comes_with_the_first_set_is_not_there_at_capture(
    home: EngineHome, order: StartOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "counts_later")
    with RunningEngine(home, "a stand-in", order, lambda _: None) as engine:
        live = engine.judge(ONE_TOKEN)
        replayed = engine.judge(ONE_TOKEN, REPLAY_MODES["full_and_piecewise"])
    assert broken(live) == set()
    assert broken(replayed) == {Rule.OUTPUT, Rule.CLEAR}


def test_the_effect_of_a_payload_is_far_above_the_tolerance(engine: RunningEngine) -> None:
    request = ONE_TOKEN.requests[-1]
    assert engine.alone(request) != engine.alone(request, zero=True)
    assert engine.alone(ONE_TOKEN.requests[0]) == engine.alone(ONE_TOKEN.requests[0], zero=True)


@pytest.mark.slow  # 6 s
def test_it_is_gone_where_clear_zeroes_whatever_its_counter_says(
    home: EngineHome, order: StartOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "clears_always")
    with RunningEngine(home, "a stand-in", order, lambda _: None) as engine:
        results = list(engine.results(ONE_TOKEN))
    assert [broken(result) for result in results] == [set()] * len(results)
    assert any(result.replayed for result in results)


@pytest.mark.slow  # by day one recording
def test_recording_again_gives_the_same(engine: RunningEngine) -> None:
    recorded = []
    for _ in range(2):
        engine.recorder = OrderRecorder()
        for schedule in (SCHEDULES["text_after_image"], SCHEDULES["chunked_5"]):
            list(engine.results(schedule))
        recorded.append(engine.recorder.recording())
    assert recorded[0] == recorded[1]
    assert any(order.replayed for order in recorded[0].orders)
    assert set(recorded[0].deciding) == {
        "vllm.v1.runner.Runner._is_uniform_decode",
        "vllm.v1.runner.Runner._determine_batch_execution_and_padding",
        "vllm.v1.cudagraph_dispatcher.CudagraphDispatcher.__init__",
        "vllm.v1.cudagraph_dispatcher.CudagraphDispatcher.initialize_cudagraph_keys",
        "vllm.v1.cudagraph_dispatcher.CudagraphDispatcher.dispatch",
    }


METHODS = {
    "_clear_deepstack_input_embeds": """def _clear_deepstack_input_embeds(self, rows: NoSuchType) -> None:
    for level in self.deepstack_input_embeds:
        level[:rows].zero_()
    self.deepstack_input_embeds_num_tokens = 0
"""
}


@pytest.mark.slow
def test_other_methods_are_put_into_the_class(home: EngineHome, order: StartOrder) -> None:
    with RunningEngine(home, "a stand-in", replace(order, methods=METHODS), lambda _: None) as engine:
        result = engine.judge(ONE_TOKEN, REPLAY_MODES["full"])
    assert result.replayed == result.steps > 0
    assert broken(result) == set()


def test_a_search_finds_the_chunk_and_makes_it_small(engine: RunningEngine) -> None:
    search_of_chunks = Search(engine.judge, REPLAY_MODES["full_and_piecewise"], 60.0, lambda _: None)
    result = searched(engine, search_of_chunks, most=200)
    assert Rule.OUTPUT in broken(result)
    assert search_of_chunks.smallest is not None
    assert len(search_of_chunks.smallest.requests) <= 3
    assert sum(request.is_visual for request in search_of_chunks.smallest.requests) == 1
    assert result.met
    assert {row.reach for row in result.broken} == {
        f"flag: --max-num-batched-tokens={search_of_chunks.smallest.budget}"
    }


@pytest.mark.slow  # 2 s
def test_a_search_finds_nothing_without_a_fault(engine: RunningEngine) -> None:
    result = searched(engine, Search(engine.judge, None, 60.0, lambda _: None), most=15)
    assert broken(result) == set()
    assert result.rows[0].detail == "15 schedules drawn"


@pytest.mark.slow  # 2 s
def test_a_search_records_what_it_plays(
    home: EngineHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = nullcontext((tmp_path, ()))
    monkeypatch.setattr(search, "model_folder", lambda _home, _model: made)
    work = EngineWork(home, "a stand-in", [model_of("qwen3_vl")])
    live, replayed = search.search_engine(work, 0.5, 0, lambda _: None)
    assert (live.replay, replayed.replay) == (None, REPLAY_MODES["full_and_piecewise"])
    assert work.recorder.facts is not None
    assert work.recorder.facts.vllm == "0.99.0"


@pytest.mark.slow  # by day a row that a replay leaves
def test_a_clear_that_does_nothing_is_seen_live(
    home: EngineHome, order: StartOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "keeps_rows")
    with RunningEngine(home, "a stand-in", order, lambda _: None) as engine:
        (result,) = engine.results(SCHEDULES["staggered"])
    assert {Rule.OUTPUT, Rule.CLEAR} <= broken(result)
    assert {row.evidence for row in result.broken} == {"engine"}


@pytest.mark.slow  # by day a row that a replay leaves
def test_none_while_profiling_is_r1(
    home: EngineHome, order: StartOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "none_first")
    with RunningEngine(home, "a stand-in", order, lambda _: None) as engine:
        (result,) = engine.results(SCHEDULES["all_at_once"])
    assert Rule.STRUCTURE in broken(result)


def test_an_engine_that_does_not_start_reports_why(
    home: EngineHome, order: StartOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", "no_start")
    with pytest.raises(EngineFailed, match=r"ValueError: No common block size for 16\.") as said:
        EngineSession(home, order)
    assert "it is no model" in str(said.value)
    assert said.value.exit_code is ExitCode.MACHINE


@pytest.mark.slow  # by day one that does not start
def test_an_engine_without_the_class_is_named(home: EngineHome, tmp_path: Path) -> None:
    lacking = StartOrder(model_of("granite4_vision"), tmp_path)
    with pytest.raises(EngineFailed, match="No module named 'vllm.model_executor.models.granite4_vision'"):
        EngineSession(home, lacking)


@pytest.mark.parametrize(
    ("fault", "message"), by_day([("hangs", "no answer within 1 s"), ("dies", "exited with 7")])
)
def test_an_engine_that_dies_or_hangs_is_a_crash(
    home: EngineHome, order: StartOrder, monkeypatch: pytest.MonkeyPatch, fault: str, message: str
) -> None:
    monkeypatch.setenv("STAND_IN_FAULT", fault)
    with RunningEngine(home, "a stand-in", order, lambda _: None) as engine:
        monkeypatch.delenv("STAND_IN_FAULT")
        worker = engine.session._worker
        worker.limits = replace(worker.limits, step_s=1.0)
        (crashed,) = engine.results(SCHEDULES["text_after_image"])
        assert [(row.rule, row.effect) for row in crashed.broken] == [(Rule.BOUNDARY, Effect.CRASH)]
        assert message in crashed.broken[0].detail
        (after,) = engine.results(SCHEDULES["all_at_once"])
        assert not broken(after)


@pytest.mark.slow  # 11 s; uncompiled by day
def test_a_payload_that_is_none_while_profiling_is_lost_when_compiled(
    home: EngineHome, tmp_path: Path
) -> None:
    """The four ways to run a class with an optional payload: which rules break in each, and how far off."""
    model = model_of("moss_audio")
    work = EngineWork(home, "a stand-in", [model], ["text_after_image"])
    found = {}
    for result in _FamilyPlay(work, model, tmp_path, (), lambda _: None).results():
        if result.name == "single requests":
            found[result.order.arm] = result
    assert {arm: broken(result) for arm, result in found.items()} == {
        "engine/eager": {Rule.STRUCTURE},
        "engine/compile": {Rule.OUTPUT, Rule.STRUCTURE},
        "engine/compile/guards_kept": {Rule.STRUCTURE},
        "engine/compile/zeros": set(),
    }
    lost, apart = (row for row in found["engine/compile"].rows if row.rule is Rule.OUTPUT)
    assert lost.detail == "with and without payload: no influence on probe0, probe1"
    assert apart.detail.startswith("compiled beside eager (0 from eager without payload): probe0, probe1 off")
    assert "step 1 'profile 64' was answered with None" in found["engine/compile"].broken[0].detail


@pytest.mark.slow  # 3 s
def test_a_payload_that_a_replayed_step_misses_is_r1_and_changes_the_output(
    home: EngineHome, tmp_path: Path
) -> None:
    with RunningEngine(
        home, "a stand-in", StartOrder(model_of("moss_audio"), tmp_path), lambda _: None
    ) as engine:
        live, replayed, _ = engine.results(SCHEDULES["text_after_image"])
    assert broken(live) == {Rule.STRUCTURE}
    assert broken(replayed) == {Rule.OUTPUT, Rule.STRUCTURE}


def test_each_method_is_a_function_of_its_own(tree: Path) -> None:
    found = methods_text(open_source(str(tree)), "qwen3_vl")
    assert set(found) == {"_get_deepstack_input_embeds", "_clear_deepstack_input_embeds"}
    place: dict[str, object] = {}
    for text in found.values():
        exec(compile(f"from __future__ import annotations\n{text}", "text", "exec"), place)
    assert set(found) <= place.keys()
    assert "# a comment in it" in found["_clear_deepstack_input_embeds"]


def test_a_class_without_such_methods_is_refused(tree: Path) -> None:
    file = tree / "vllm" / "model_executor" / "models" / "qwen3_vl.py"
    file.write_text(FILE.replace("_deepstack_input_embeds", "_other"))
    with pytest.raises(UsageError, match="has no method with deepstack_input_embeds in its name"):
        methods_text(open_source(str(tree)), "qwen3_vl")


def test_a_family_that_has_no_methods_of_its_own_is_refused(tree: Path) -> None:
    with pytest.raises(UsageError, match="unknown family whose methods can be put in 'granite4_vision'"):
        methods_text(open_source(str(tree)), "granite4_vision")
