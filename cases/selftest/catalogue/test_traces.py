"""The traces of `check`: a sample of a fixed size, and what `--thorough` plays beside it."""

import re

import pytest

from deepstack_harness.catalogue.buffers import INPUT_MUTANTS, MUTANTS, buffer_named
from deepstack_harness.catalogue.plans import Where, check_traces, plan_check
from deepstack_harness.catalogue.traces import thorough_traces
from deepstack_harness.contract.case import live_buffer
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Trace
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.pytest_plugin.fixtures import judge_in_process

SAMPLE = [Trace.parse(text) for text in check_traces()]
THOROUGH = [Trace.parse(text) for text in thorough_traces()]


def test_the_sample_is_small() -> None:
    """Its size stands for its time: 104 traces took 2.6 s of processor time, half of it the first capture."""
    assert 90 <= len(SAMPLE) <= 110
    assert sum(len(trace.steps) for trace in SAMPLE) <= 2_000
    # Each row of an answer is compared: 8192 rows are fine where there is one level of four columns.
    elements = [
        step.tokens * (trace.levels or 3) * (trace.hidden or 128)
        for trace in SAMPLE
        for step in trace
        if step.op in (Op.SET, Op.GET)
    ]
    assert max(elements) <= 300_000
    assert sum(elements) <= 9_000_000


def test_the_thorough_part_is_the_same_at_every_run() -> None:
    played = thorough_traces()
    thorough_traces.cache_clear()
    assert thorough_traces() == played
    assert not set(played) & set(check_traces())


def test_the_thorough_part_has_real_sizes_all_sizes_and_long_histories() -> None:
    real = [trace for trace in THOROUGH if trace.capacity == 8192]
    assert any((trace.hidden or 0) >= 2048 and trace.dtype == "bfloat16" for trace in real)
    assert any(trace.replays for trace in real)
    assert {1, 2, 13, 15, 16, 17, 128} <= {trace.capacity for trace in THOROUGH}
    assert {1, 2, 4} <= {trace.levels for trace in THOROUGH}
    assert {1, 2, 127} <= {trace.hidden for trace in THOROUGH}
    assert {(trace.mode, trace.replays) for trace in THOROUGH} >= {
        (mode, replays) for mode in (None, "inference") for replays in (True, False)
    }
    long = [trace for trace in THOROUGH if len(trace.steps) >= 200]
    assert len([trace for trace in long if trace.replays]) >= 12
    assert len([trace for trace in long if not trace.replays]) >= 24
    assert {step.fail for trace in THOROUGH for step in trace} >= {None, *range(1, 9)}


def test_the_thorough_part_makes_the_calls_that_are_legal() -> None:
    """A trace that asks for more than the contract promises would refuse right buffers."""
    for trace in THOROUGH:
        seen = [step.op for step in trace]
        if Op.CAPTURE in seen:  # all sizes up front, with nothing set
            assert re.fullmatch("c+[^c]*", "".join("c" if op is Op.CAPTURE else "-" for op in seen))


def broken(name: str, traces: tuple[str, ...]) -> set[Rule]:
    buffer = live_buffer(name)
    cases = judge_in_process(plan_check(Where("qwen3_vl"), buffer, traces), {buffer: buffer_named(name)})
    bad = {Verdict.FAIL, Verdict.ERROR}
    return {said.rule for judged in cases for said in judged.judgements if said.verdict in bad}


@pytest.mark.slow  # 1 s each
@pytest.mark.parametrize("name", [*MUTANTS, *INPUT_MUTANTS])
def test_the_sample_has_the_power_of_all_traces(name: str) -> None:
    assert {**MUTANTS, **INPUT_MUTANTS}[name].rule in broken(name, check_traces())


LIVE = tuple(str(trace) for trace in THOROUGH if not trace.replays)


@pytest.mark.slow  # 15 s each
@pytest.mark.parametrize("name", ["reference", "reserve", "one_tensor", "clears_by_parts"])
def test_right_buffers_keep_everything(name: str) -> None:
    assert broken(name, thorough_traces()) == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lazy", "row_by_row", "masked"])
def test_right_buffers_of_live_use_keep_everything_live(name: str) -> None:
    assert broken(name, LIVE) == set()


def test_a_short_part_of_it_on_the_reference() -> None:
    short = tuple(text for text in thorough_traces() if text.count(";") < 18 and "8192" not in text)
    assert len(short) > 20
    assert broken("reference", short) == set()
