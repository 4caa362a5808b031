"""R13: races are found over recording streams and named; helpers of a source run unchanged."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from cases.selftest.engines.synthetic_vllm import STREAM_FILE, write_systems
from deepstack_harness.audit.streams import device, projections
from deepstack_harness.audit.streams.device import Lanes, Project
from deepstack_harness.audit.streams.projections import (
    IN_CAPTURE,
    ONE,
    TWO,
    DualStream,
    dual_streams_of,
)
from deepstack_harness.audit.streams.recording import Setting, rehearse
from deepstack_harness.audit.system_work import observe_ordering
from deepstack_harness.contract.facts import (
    OnDevice,
    OpResult,
    OrderingObservation,
    Recording,
    Subgraphs,
    System,
    SystemSubject,
)
from deepstack_harness.contract.oracles.neighbours import dependent, unordered
from deepstack_harness.contract.oracles.neighbours import judge_ordering as judge
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import UsageError

pytestmark = pytest.mark.xdist_group("aot_eager")
SUBJECT = SystemSubject(System.DUAL_STREAM, "dual")


def two_streams(project: Project, others: int = 1) -> Recording:
    return rehearse(Setting(TWO, others, lambda _: project))


def pairs(recording: Recording) -> set[tuple[str, str]]:
    return {(first.name, other.name) for first, other, _ in unordered(recording)}


INPUT, A, B, USE = "input: add", "projection A", "projection B", "use of the results: add"
RACES = {
    "start_forgotten": {
        (f"layer 1: {INPUT}", f"layer 1: {B}"), (f"layer 2: {INPUT}", f"layer 2: {B}"),
        # B of layer 2 reads its input where A of layer 1 had its result, and writes what layer 1 still adds.
        (f"layer 1: {A}", f"layer 2: {B}"), (f"layer 1: {USE}", f"layer 2: {B}"),
    },
    "done_forgotten": {
        (f"layer 1: {B}", f"layer 1: {USE}"), (f"layer 2: {B}", f"layer 2: {USE}"),
        # Both layers have B's result in one place; A's of layer 2 lies where layer 1 had its input.
        (f"layer 1: {B}", f"layer 2: {USE}"), (f"layer 1: {B}", f"layer 2: {A}"),
    },
    "memory_reused_too_early": {
        (f"layer 1: {B}", f"layer 1: {A}"), (f"layer 2: {B}", f"layer 2: {A}"),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RACES)
def test_both_operations_of_every_race_are_named(name: str) -> None:
    assert pairs(two_streams(getattr(projections, name))) == RACES[name]


def test_an_event_recorded_outside_orders_as_little_as_none() -> None:
    outside = two_streams(projections.done_recorded_outside)
    assert pairs(outside) == RACES["done_forgotten"]
    assert outside.early_waits == 0


@pytest.mark.parametrize("which", ["start_waited_too_early", "done_waited_too_early"])
def test_a_wait_before_the_first_recording_does_nothing(which: str) -> None:
    recording = two_streams(getattr(projections, which))
    assert recording.early_waits == 1  # in layer 2 the event has layer 1's place
    assert pairs(recording)


@pytest.mark.parametrize(
    ("project", "others"),
    [(device.sequential, 1), (device.dual, 1), (device.dual, 2), (device.dual_of_copy, 1)],
)
def test_correct_ways_have_no_race(project: Project, others: int) -> None:
    recording = two_streams(project, others)
    assert recording.equal
    assert not unordered(recording)
    assert dependent(recording)


FAULTY = [
    "start_forgotten", "done_forgotten", "done_recorded_outside", "start_waited_too_early",
    "done_waited_too_early", "memory_reused_too_early",
]  # fmt: skip


@pytest.mark.parametrize("name", FAULTY)
def test_every_race_is_found_though_the_hosts_own_order_gives_the_right_result(name: str) -> None:
    recording = two_streams(getattr(projections, name))
    assert recording.equal
    assert unordered(recording)


def unkept(x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes) -> tuple[Tensor, ...]:
    return device.dual_of_copy(x, weights, replace(lanes, keep=lambda *_: None))


def test_what_protects_the_copy_is_that_the_allocator_knows_the_stream() -> None:
    assert pairs(two_streams(unkept)) == RACES["memory_reused_too_early"]


def wrong(x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes) -> tuple[Tensor, ...]:
    one, other = device.sequential(x, weights, lanes)
    return one + 1, other


def failing(x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes) -> tuple[Tensor, ...]:
    raise RuntimeError("no stream left")


def nothing(x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes) -> tuple[Tensor, ...]:
    return x, x


def observed(project: Project, *settings: str) -> OrderingObservation:
    """Rehearsed in `settings`, results as if they were right."""
    made = tuple(Setting(name, int(name != ONE), lambda _: project) for name in settings or (TWO,))
    recordings = tuple(map(rehearse, made))
    return OrderingObservation(SUBJECT, recordings, (OpResult("eager", 8, 0, 0),), (), None, "2.13")


def test_a_wrong_result_is_a_violation_in_every_setting() -> None:
    judged = judge(observed(wrong, ONE, TWO))
    assert (judged.rule, judged.verdict, judged.value) == (Rule.ORDERING, Verdict.FAIL, 2)
    assert judged.detail == (
        "one stream: another result than sequential; two streams: another result than sequential; "
        "two streams: nothing ran on aux"
    )


def test_an_exception_is_a_violation() -> None:
    judged = judge(observed(failing))
    assert (judged.verdict, judged.value, judged.unit) == (Verdict.FAIL, 1, "violations")
    assert judged.detail == "two streams: raised RuntimeError: no stream left"


def test_a_race_is_reported_with_both_operations_streams_and_memory() -> None:
    judged = judge(observed(projections.done_recorded_outside))
    assert judged.value == 4
    assert judged.detail == (
        "two streams: nothing orders 'layer 1: projection B' on aux and 'layer 1: use of the results: add' "
        "on main, which share memory 6 (and 3 more pairs)"
    )


def test_streams_that_were_not_used_are_reported() -> None:
    judged = judge(observed(device.sequential))
    assert (judged.verdict, judged.detail) == (Verdict.PASS, "two streams: nothing ran on aux")
    assert judge(observed(device.dual)).detail == ""


RIGHT = observed(device.dual)


def changed(**changes: object) -> OrderingObservation:
    return replace(RIGHT, **changes)  # type: ignore[arg-type]


def test_different_elements_and_surplus_subgraphs_and_devices_count() -> None:
    results = (OpResult("eager", 8, 0, 0), OpResult("inductor", 8, 3, 1))
    judged = judge(changed(results=results))
    assert (judged.value, judged.detail) == (1, "inductor: 3 of 8 elements differ from sequential")
    subgraphs = tuple(
        Subgraphs(k, k, distinct, distinct, 0.1, "x") for k, distinct in ((1, 1), (4, 4), (16, 2))
    )
    judged = judge(changed(subgraphs=subgraphs))
    assert (judged.value, judged.detail) == (4, "4 identical layers build 4 distinct subgraphs, not 1")
    judged = judge(changed(on_device=OnDevice("cuda:0", 1000, 7, first="repetition 3")))
    said = "cuda:0: 7 of 1000 repetitions differ from sequential, the first with repetition 3"
    assert (judged.value, judged.detail) == (1, said)
    judged = judge(changed(on_device=OnDevice("cuda:0", 1000, 0, ended="timed out: no answer within 3 s")))
    assert (judged.value, judged.detail) == (1, "cuda:0: timed out: no answer within 3 s")
    assert judge(changed(on_device=OnDevice("cuda:0", 1000, 0))).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recordings": ()}, "no setting was rehearsed"),
        ({"results": ()}, "no result was compared"),
        (
            {"recordings": (replace(RIGHT.recordings[0], operations=RIGHT.recordings[0].operations[:1]),)},
            "two streams: no operation depends on another, nothing was put to the test",
        ),
    ],
)
def test_what_shows_nothing_is_no_pass(changes: dict[str, object], message: str) -> None:
    judged = judge(changed(**changes))
    assert (judged.verdict, judged.detail) == (Verdict.ERROR, message)


def ways(folder: Path, text: str) -> dict[str, DualStream]:
    return dual_streams_of(open_source(str(write_systems(folder, streams=text))))


def judged_helper(folder: Path, text: str) -> tuple[Verdict, str]:
    (way,) = ways(folder, text).values()
    judged = judge(observe_ordering(SUBJECT, way, backends=()))
    return judged.verdict, judged.detail


def test_a_helper_of_a_source_is_rehearsed_in_every_setting(tmp_path: Path) -> None:
    (way,) = ways(tmp_path, STREAM_FILE).values()
    recordings = {setting.name: rehearse(setting) for setting in way.settings}
    used = {
        name: {operation.stream for operation in recording.operations}
        for name, recording in recordings.items()
    }
    assert used == {ONE: {"main"}, TWO: {"main", "aux"}, IN_CAPTURE: {"main"}}
    assert not any(unordered(recording) for recording in recordings.values())
    seen = observe_ordering(SUBJECT, way)
    assert judge(seen).verdict is Verdict.PASS
    assert judge(seen).detail == f"{IN_CAPTURE}: nothing ran on aux"


def test_a_helper_without_a_capture_to_request_has_no_such_setting(tmp_path: Path) -> None:
    text = STREAM_FILE.replace(
        "    from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphCapture\n", ""
    )
    text = text.replace(" or BreakableCUDAGraphCapture.is_active()", "")
    (way,) = ways(tmp_path, text).values()
    assert [setting.name for setting in way.settings] == [ONE, TWO]


OUTSIDE = STREAM_FILE.replace("        event1.record()\n    first", "    event1.record()\n    first")


def test_a_faulty_helper_is_caught_with_the_pair_named(tmp_path: Path) -> None:
    verdict, detail = judged_helper(tmp_path, OUTSIDE)
    assert verdict is Verdict.FAIL
    assert "nothing orders 'layer 1: projection B' on aux and 'layer 1: use of the results: add'" in detail


def test_what_a_helper_raises_is_a_finding(tmp_path: Path) -> None:
    verdict, detail = judged_helper(tmp_path, STREAM_FILE.replace("event0.wait()", "event0.hold()"))
    assert verdict is Verdict.FAIL
    assert detail.startswith("two streams: raised AttributeError: 'Event' object has no attribute 'hold'")


MANY = '''\
"""A file of helpers."""
import torch


def execute_in_parallel(default_fn, aux_fns, start_event, done_events, aux_streams=None, enable=False{more}):
    if aux_streams is None or not enable:
        return default_fn(), [each() for each in aux_fns]
    start_event.record()
    results = []
    for each, done, stream in zip(aux_fns, done_events, aux_streams):
        with torch.cuda.stream(stream):
            start_event.wait()
            results.append(each())
            done.record()
    own = default_fn()
    for done in done_events[{first}:]:
        done.wait()
    return own, results
'''


def test_a_helper_for_many_streams(tmp_path: Path) -> None:
    (way,) = ways(tmp_path / "a", MANY.format(more="", first=0)).values()
    assert [setting.name for setting in way.settings] == [ONE, TWO, "three streams"]
    assert judge(observe_ordering(SUBJECT, way, backends=())).verdict is Verdict.PASS
    (way,) = ways(tmp_path / "b", MANY.format(more=", default_first=False", first=1)).values()
    assert way.settings[-1].name == "three streams, main one first"
    verdict, detail = judged_helper(tmp_path / "c", MANY.format(more="", first=1))
    assert verdict is Verdict.FAIL
    assert "three streams: nothing orders 'layer 1: projection B' on aux and" in detail


REFUSED = {
    "another inner import": (
        STREAM_FILE.replace("BreakableCUDAGraphCapture", "SomethingElse"),
        r"utils\.py:9: vllm\.compilation\.breakable_cudagraph\.SomethingElse is not there and is read",
    ),
    "a name of vLLM's": (
        STREAM_FILE.replace("event0.record()", "unneeded(event0)"),
        r"multi_stream_utils\.py:13: vllm\.utils\.multi_stream_utils\.unneeded is not there and is read",
    ),
    "other arguments": (
        STREAM_FILE.replace("aux_stream", "side_stream"),
        r"multi_stream_utils\.py:8: maybe_execute_in_parallel has no parameter 'aux_stream'",
    ),
    "no helper": ("import torch\n", "has none of maybe_execute_in_parallel, execute_in_parallel"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_source_whose_helper_cannot_be_run_is_refused(tmp_path: Path, what: str) -> None:
    text, said = REFUSED[what]
    with pytest.raises(UsageError, match=said):
        [rehearse(setting) for way in ways(tmp_path, text).values() for setting in way.settings]


def test_a_source_without_the_file_is_refused(tmp_path: Path) -> None:
    said = r"has no vllm/utils/multi_stream_utils\.py; it is there from vllm 0\.19\.0 on"
    with pytest.raises(UsageError, match=said):
        dual_streams_of(open_source(str(write_systems(tmp_path))))


def test_a_helper_may_use_any_other_part_of_torch(tmp_path: Path) -> None:
    own = "assert torch.is_tensor(torch.zeros(1)) and callable(torch.cuda.is_available)"
    text = STREAM_FILE.replace("event0.record()", f"{own}; event0.record()")
    assert own in text
    assert judged_helper(tmp_path, text)[0] is Verdict.PASS
