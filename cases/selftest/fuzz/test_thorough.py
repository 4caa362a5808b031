"""The traces of `check --thorough`: drawn, the same in each process, legal, and with all there is to play."""

import os
import re
import subprocess
import sys
from itertools import islice, pairwise
from pathlib import Path

import pytest

from cases.selftest.models.checking import broken_in
from deepstack_harness.catalogue.buffers import buffer_named
from deepstack_harness.catalogue.pairs import other_pairs
from deepstack_harness.catalogue.plans import check_traces
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.trace import Op, Trace
from deepstack_harness.fuzz.strategies import _DRAWN, thorough_traces

CALLS = (Op.SET, Op.GET, Op.CLEAR, Op.RESIZE, Op.FORWARD)

pytestmark = pytest.mark.xdist_group("thorough")  # they are drawn once


@pytest.fixture(scope="module")
def thorough() -> list[Trace]:
    return [Trace.parse(text) for text in thorough_traces()]


def is_captured(trace: Trace) -> bool:
    return any(step.op is Op.CAPTURE for step in trace)


def test_another_process_draws_the_same(tmp_path: Path) -> None:
    """It has loaded other modules, hashes text in another way and seems to be CI, where profiles differ.

    It draws the first eighth of each kind of trace, each of which has a seed of its own.
    """
    code = (
        "from deepstack_harness.fuzz import strategies\n"
        "strategies._DRAWN = [(arm, count // 8, phrases) for arm, count, phrases in strategies._DRAWN]\n"
        "print(*strategies.thorough_traces(), sep='\\n')"
    )
    environment = {
        **os.environ, "PYTHONHASHSEED": "5", "CI": "true", "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    drawn = iter(thorough_traces())
    others, first = done.stdout.splitlines(), [*islice(drawn, len(other_pairs()))]
    for _, count, _ in _DRAWN:
        first += [*islice(drawn, count)][: count // 8]
    assert others == [*first, *drawn]
    assert not {*thorough_traces()} & {*check_traces()}


def test_there_are_real_sizes_all_sizes_and_long_histories(thorough: list[Trace]) -> None:
    real = [trace for trace in thorough if trace.capacity == 8192]
    assert any((trace.hidden or 0) >= 2048 and trace.dtype == "bfloat16" for trace in real)
    assert any(trace.replays for trace in real)
    assert {1, 2, 13, 15, 16, 17, 128} <= {trace.capacity for trace in thorough}
    assert {None, 1, 2, 4, 8} <= {trace.levels for trace in thorough}
    assert {None, 1, 7, 9, 2049} <= {trace.hidden for trace in thorough}
    assert {(trace.mode, trace.replays) for trace in thorough} >= {
        (mode, replays) for mode in (None, "inference") for replays in (True, False)
    }
    long = [is_captured(trace) for trace in thorough if len(trace.steps) >= 150]
    assert min(long.count(True), long.count(False)) >= 10
    assert {step.fail for trace in thorough for step in trace} >= {None, *range(1, 8)}


@pytest.mark.parametrize("captured", [False, True])
def test_each_call_follows_each_other_call(captured: bool, thorough: list[Trace]) -> None:
    ops = {*CALLS, Op.REPLAY} if captured else {*CALLS}
    traces = [trace for trace in thorough if is_captured(trace) is captured]
    seen = {(step.op, other.op) for trace in traces for step, other in pairwise(trace)}
    missing = {(operation, other) for operation in ops for other in ops} - seen
    assert len(missing) <= 1, missing  # none with hypothesis 6.170; another release draws other traces


def test_no_trace_gets_more_than_the_contract_promises(thorough: list[Trace]) -> None:
    captured = [*filter(is_captured, thorough)]
    assert len(captured) >= 60
    for trace in captured:  # all sizes up front, with nothing set
        assert re.fullmatch("c+[^c]*", "".join("c" if step.op is Op.CAPTURE else "-" for step in trace))


@pytest.mark.slow  # 20 s each
@pytest.mark.parametrize("name", ["reference", "reserve", "one_tensor", "clears_by_parts"])
def test_right_buffers_keep_everything(name: str) -> None:
    for regime in Regime:
        assert broken_in(buffer_named(name), regime, thorough_traces()) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lazy", "row_by_row", "masked"])
def test_right_buffers_of_live_use_keep_everything_live(name: str) -> None:
    assert broken_in(buffer_named(name), Regime.LIVE, thorough_traces()) == {}


@pytest.mark.slow  # 8 s
def test_a_short_part_of_it_on_the_reference() -> None:
    short = tuple(text for text in thorough_traces() if text.count(";") < 18 and "8192" not in text)
    assert len(short) > 20
    for regime in Regime:
        assert broken_in(buffer_named("reference"), regime, short) == {}
