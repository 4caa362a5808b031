"""Schedules are data; steps that were run by them are recorded as orders, each once."""

import base64
from pathlib import Path
from typing import NoReturn

import pytest

from deepstack_harness.catalogue.orders import EngineRecording, recordings
from deepstack_harness.contract.observation import Answer
from deepstack_harness.contract.trace import Trace
from deepstack_harness.engines.live.environment import EngineHome
from deepstack_harness.engines.live.models import model_of
from deepstack_harness.engines.live.play import OrderRecorder
from deepstack_harness.engines.live.schedules import (
    REPLAY_MODES,
    SCHEDULES,
    EngineRequest,
    Start,
    picture,
    schedules_of,
)
from deepstack_harness.engines.live.search import Search
from deepstack_harness.engines.live.session import LiveStep, StartFacts, StartOrder, _with_class
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.files import load_file

QWEN, GRANITE = model_of("qwen3_vl"), model_of("granite4_vision")


def test_requests_of_a_schedule_have_names_of_their_own() -> None:
    for schedule in SCHEDULES.values():
        names = [request.name for request in schedule.requests]
        assert len(set(names)) == len(names) > 0, schedule.name
        assert any(request.is_visual for request in schedule.requests), schedule.name
        assert all(name in REPLAY_MODES for name in schedule.replays)


def test_a_budget_is_a_setting_that_is_reported() -> None:
    for schedule in SCHEDULES.values():
        flags = [flag for flag in schedule.settings if flag.startswith("--max-num-batched-tokens")]
        assert len(flags) == (schedule.budget is not None), schedule.name
        assert all("," not in flag for flag in schedule.settings)


def test_one_visual_token_a_step_is_the_budget_of_the_decodes_and_one() -> None:
    schedule = SCHEDULES["one_token_chunks"]
    decodes = [request for request in schedule.requests if not request.is_visual]
    assert schedule.budget == len(decodes) + 1
    assert "full_and_piecewise" in schedule.replays
    # They go on decoding until the image, of at most 9 tokens and a text, has been read token by token.
    assert all(request.answers >= 40 for request in decodes)


def test_a_family_without_a_video_gets_no_video() -> None:
    assert {schedule.name for schedule in schedules_of(QWEN)} - {
        schedule.name for schedule in schedules_of(GRANITE)
    } == {"video"}


def test_a_family_gets_as_many_items_as_it_takes_in_a_request() -> None:
    moss = {schedule.name for schedule in schedules_of(model_of("moss_audio"))}
    assert {schedule.name for schedule in schedules_of(QWEN)} - moss == {"video", "several_images"}


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown schedule 'stagered'; did you mean 'staggered'\?"):
        schedules_of(QWEN, ["stagered"])


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown family of an engine 'llama'"):
        model_of("llama")


def test_a_request_as_the_child_takes_it() -> None:
    job = EngineRequest("a", images=(3, 4), pixels=32, arrives=2).job(QWEN)
    assert job["text"] == (
        "hi <|vision_start|><|image_pad|><|vision_end|> <|vision_start|><|image_pad|><|vision_end|> ok"
    )
    assert (job["arrives"], job["aborted"], job["frames"]) == (2, None, [])
    assert [len(base64.b64decode(image["rgb"])) for image in job["images"]] == [32 * 32 * 3] * 2
    assert job["images"][0] != job["images"][1]
    assert EngineRequest("a", images=(3,)).job(GRANITE)["text"] == "hi <image> ok"


def test_an_image_is_the_same_every_time() -> None:
    assert picture(3, 16) == picture(3, 16)
    assert picture(3, 16) != picture(4, 16)


def test_a_start_under_pressure_has_few_blocks_and_one_request_fits(tmp_path: Path) -> None:
    orders = [StartOrder(QWEN, tmp_path, start=start) for start in (Start.PLAIN, Start.PRESSED)]
    plain, pressed = (order.job()["settings"] for order in orders)
    changed = {name for name in pressed if pressed[name] != plain.get(name)}
    assert changed == {
        "enable_prefix_caching", "block_size", "num_gpu_blocks_override", "max_model_len",
        "speculative_config",
    }  # fmt: skip
    room = (pressed["num_gpu_blocks_override"] - 1) * pressed["block_size"]  # vLLM needs a block for itself
    assert pressed["max_model_len"] <= room < plain["max_model_len"]


def test_a_class_that_is_not_in_the_engine_is_named() -> None:
    home = EngineHome(Path("python"), "a home")
    there = StartFacts("0.32.0")
    assert _with_class(there, home) is there
    with pytest.raises(MachineError, match=r"^a home \(0\.32\.0\) has no vllm\.a\.NoSuchClass$"):
        _with_class(StartFacts("0.32.0", missing="vllm.a.NoSuchClass"), home)


def test_after_the_time_a_search_returns_what_it_found() -> None:
    def judge(*_: object) -> NoReturn:
        raise AssertionError("a schedule was played")

    search = Search(judge, None, 0.0, lambda _: None, smallest=SCHEDULES["staggered"])
    search.run(most=1)
    assert search.smallest is SCHEDULES["staggered"]
    assert search._breaks(SCHEDULES["staggered"])
    assert not search._breaks(SCHEDULES["aborted"])


FACTS = StartFacts("0.99.0", runner="a runner", capacity=64, deciding={"rule": "abc"})
PLAIN, BUDGET = SCHEDULES["staggered"], SCHEDULES["one_token_chunks"]
DEFAULT, FULL = REPLAY_MODES["full_and_piecewise"], REPLAY_MODES["full"]


def step(rows: int, *spans: tuple[int, int], replayed: bool = False) -> LiveStep:
    return LiveStep(rows, Answer("tensors"), rows, spans, replayed=replayed)


def recorded(*steps: LiveStep) -> list[str]:
    recorder = OrderRecorder()
    recorder.add(FACTS, PLAIN, None, steps)
    return [order.trace for order in recorder.recording().orders]


def test_a_window_begins_with_a_visual_step_or_the_one_before_it() -> None:
    assert recorded(step(3), step(3), step(9, (0, 9)), step(1), step(1), step(1)) == [
        "cap 64: profile 64; forward 3; set 9; forward 9; forward 1; forward 1",
        "cap 64: profile 64; set 9; forward 9; forward 1; forward 1; forward 1",
    ]


def test_text_around_an_image_is_no_payload() -> None:
    assert recorded(step(12, (2, 5), (7, 9)))[0] == "cap 64: profile 64; set 12 spans=2-5+7-9; forward 12"


def test_equal_orders_are_one() -> None:
    steps = [step(9, (0, 9)), step(1), step(8, (0, 8)), step(2), step(7, (0, 7)), step(1)]
    assert len(recorded(*steps)) < len(steps)
    assert len(set(recorded(*steps))) == len(recorded(*steps))


def test_a_replay_is_captured_before_with_nothing_set() -> None:
    recorder = OrderRecorder()
    steps = [step(4, (3, 4), replayed=True), step(4, replayed=True), step(9), step(4, replayed=True)]
    recorder.add(FACTS, BUDGET, DEFAULT, steps)
    (one,) = recorder.recording().orders
    assert one.trace == (
        "cap 64: profile 64; profile 4; set 4 spans=3-4; forward 4; set 0; forward 4; set 0; forward 9; "
        "set 0; forward 4"
    )
    assert one.replayed
    assert one.settings == (("--max-num-batched-tokens of running decodes + 1",),)
    assert str(Trace.parse(one.trace)) == one.trace


def test_a_size_that_is_live_and_replayed_is_left_out() -> None:
    recorder = OrderRecorder()
    recorder.add(FACTS, BUDGET, DEFAULT, [step(4, (3, 4), replayed=True), step(4)])
    with pytest.raises(UsageError, match="nothing was recorded"):
        recorder.recording()


def test_the_fewest_flags_that_lead_there_are_returned() -> None:
    recorder = OrderRecorder()
    steps = [step(4, (3, 4), replayed=True), step(4, replayed=True)]
    limited = REPLAY_MODES["full_32"]  # FULL and a largest capture size
    for schedule, mode in ((PLAIN, limited), (BUDGET, FULL), (BUDGET, DEFAULT), (PLAIN, FULL)):
        recorder.add(FACTS, schedule, mode, steps)
    (one,) = recorder.recording().orders
    assert one.settings == (
        ("--compilation-config.cudagraph_mode=FULL",),
        ("--max-num-batched-tokens of running decodes + 1",),
    )


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    recorder = OrderRecorder()
    recorder.add(FACTS, PLAIN, None, [step(9, (0, 9)), step(1)])
    path, again = tmp_path / "a.json", tmp_path / "b.json"
    assert recorder.write(path) == recorder.write(again) == 1
    assert path.read_bytes() == again.read_bytes()
    assert load_file(path, EngineRecording, "a recording", 1) == recorder.recording()


def test_a_folder_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    recorder = OrderRecorder()
    recorder.add(FACTS, PLAIN, None, [step(9, (0, 9))])
    with pytest.raises(UsageError, match="cannot write to"):
        recorder.write(tmp_path / "none" / "a.json")


def test_what_is_stored_can_be_played() -> None:
    for recording in recordings("vllm"):
        traces = [order.trace for order in recording.orders]
        assert len(set(traces)) == len(traces) > 0
        assert all(str(Trace.parse(trace)) == trace for trace in traces)
        assert recording.deciding
