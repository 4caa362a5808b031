"""Dual-stream helpers are taken from a source and run unchanged, or refused with a sentence."""

from pathlib import Path

import pytest
import torch

from cases.selftest.engines.synthetic_vllm import STREAM_FILE, write_systems
from deepstack_harness.audit.streams.model_check import rehearse
from deepstack_harness.audit.streams.projections import (
    BREAKABLE,
    IN_CAPTURE,
    ONE,
    TWO,
    DualStream,
    dual_streams_of,
    helpers_of,
)
from deepstack_harness.audit.system_work import observe_ordering
from deepstack_harness.contract.facts import System, SystemSubject
from deepstack_harness.contract.oracles.neighbours import judge_ordering as judge
from deepstack_harness.contract.oracles.neighbours import unordered
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import UsageError

pytestmark = pytest.mark.xdist_group("aot_eager")
SUBJECT = SystemSubject(System.DUAL_STREAM, "dual")


def ways(folder: Path, text: str) -> dict[str, DualStream]:
    return dual_streams_of(open_source(str(write_systems(folder, streams=text))))


def judged_helper(folder: Path, text: str) -> tuple[Verdict, str]:
    (way,) = ways(folder, text).values()
    judged = judge(observe_ordering(SUBJECT, way, backends=()))
    return judged.verdict, judged.detail


def test_a_helper_is_cut_out_of_a_source_and_rehearsed_in_every_setting(tmp_path: Path) -> None:
    (way,) = ways(tmp_path, STREAM_FILE).values()
    recordings = {setting.name: rehearse(setting) for setting in way.settings}
    used = {name: {one.stream for one in recording.operations} for name, recording in recordings.items()}
    assert used == {ONE: {"main"}, TWO: {"main", "aux"}, IN_CAPTURE: {"main"}}
    assert not any(unordered(recording) or recording.different for recording in recordings.values())
    seen = observe_ordering(SUBJECT, way)
    assert judge(seen).verdict is Verdict.PASS
    assert judge(seen).detail == f"{IN_CAPTURE}: nothing ran on aux"


def test_a_helper_without_a_capture_to_ask_for_has_no_such_setting(tmp_path: Path) -> None:
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
        r"multi_stream_utils\.py:9: maybe_execute_in_parallel needs the import of vllm\.compilation",
    ),
    "a name of vLLM's": (
        STREAM_FILE.replace("event0.record()", "unneeded(event0)"),
        r"multi_stream_utils\.py:13: .* needs 'unneeded', which comes from vllm\.streams",
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


def test_a_helper_is_not_defined_without_what_it_imports(tmp_path: Path) -> None:
    (code,) = (code for code, _ in helpers_of(open_source(str(write_systems(tmp_path, streams=STREAM_FILE)))))
    with pytest.raises(UsageError, match=rf"py:{code.line}: {code.name} needs vLLM's {BREAKABLE}$"):
        code.run_with(torch=torch)
