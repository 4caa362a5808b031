"""Recorded orders: windows of steps as traces, each once, with the fewest settings that lead there."""

from pathlib import Path

import pytest

from deepstack_harness.catalogue.orders import EngineRecording, recordings
from deepstack_harness.contract.trace import Trace
from deepstack_harness.engines.live.play import OrderRecorder
from deepstack_harness.engines.live.schedules import REPLAY_MODES, SCHEDULES
from deepstack_harness.engines.live.session import LiveStep, StartFacts
from deepstack_harness.errors import UsageError
from deepstack_harness.files import load_file

FACTS = StartFacts("0.99.0", runner="a runner", capacity=64, deciding={"rule": "abc"})
PLAIN, BUDGET = SCHEDULES["staggered"], SCHEDULES["one_token_chunks"]
DEFAULT, FULL = REPLAY_MODES["full_and_piecewise"], REPLAY_MODES["full"]


def visual(rows: int, *spans: tuple[int, int], replayed: bool = False) -> LiveStep:
    count = sum(end - start for start, end in spans)
    return LiveStep(rows, answered=True, tokens=rows, visual=count, spans=spans, rows=rows, replayed=replayed)


def text(rows: int, *, replayed: bool = False) -> LiveStep:
    return LiveStep(rows, answered=True, tokens=rows, rows=rows, replayed=replayed)


def recorded(*steps: LiveStep) -> list[str]:
    recorder = OrderRecorder()
    recorder.add(FACTS, PLAIN, None, steps)
    return [one.trace for one in recorder.recording().orders]


def test_a_window_begins_with_a_visual_step_or_the_one_before_it() -> None:
    assert recorded(text(3), text(3), visual(9, (0, 9)), text(1), text(1), text(1)) == [
        "cap 64: profile 64; forward 3; set 9; forward 9; forward 1; forward 1",
        "cap 64: profile 64; set 9; forward 9; forward 1; forward 1; forward 1",
    ]


def test_text_around_an_image_is_no_payload() -> None:
    assert recorded(visual(12, (2, 5), (7, 9)))[0] == "cap 64: profile 64; set 12 spans=2-5+7-9; forward 12"


def test_equal_orders_are_one() -> None:
    steps = [visual(9, (0, 9)), text(1), visual(8, (0, 8)), text(2), visual(7, (0, 7)), text(1)]
    assert len(recorded(*steps)) < len(steps)
    assert len(set(recorded(*steps))) == len(recorded(*steps))


def test_a_replay_is_captured_before_with_nothing_set() -> None:
    recorder = OrderRecorder()
    steps = [visual(4, (3, 4), replayed=True), text(4, replayed=True), text(9), text(4, replayed=True)]
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
    recorder.add(FACTS, BUDGET, DEFAULT, [visual(4, (3, 4), replayed=True), text(4)])
    with pytest.raises(UsageError, match="nothing was recorded"):
        recorder.recording()


def test_the_fewest_flags_that_lead_there_are_kept() -> None:
    recorder = OrderRecorder()
    steps = [visual(4, (3, 4), replayed=True), text(4, replayed=True)]
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
    recorder.add(FACTS, PLAIN, None, [visual(9, (0, 9)), text(1)])
    path, again = tmp_path / "a.json", tmp_path / "b.json"
    assert recorder.write(path) == recorder.write(again) == 1
    assert path.read_bytes() == again.read_bytes()
    assert load_file(path, EngineRecording, "a recording", 1) == recorder.recording()


def test_a_folder_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    recorder = OrderRecorder()
    recorder.add(FACTS, PLAIN, None, [visual(9, (0, 9))])
    with pytest.raises(UsageError, match="cannot write to"):
        recorder.write(tmp_path / "none" / "a.json")


def test_what_is_stored_can_be_played() -> None:
    for recording in recordings("vllm"):
        traces = [one.trace for one in recording.orders]
        assert len(set(traces)) == len(traces) > 0
        assert all(str(Trace.parse(trace)) == trace for trace in traces)
        assert recording.deciding
