"""Strategies: what hunts draw is what engines do and buffers must refuse, the same in any installation."""

import sys
from itertools import groupby, takewhile
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from cases.by_day import by_day
from deepstack_harness.catalogue.workload import ScheduledStep
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.trace import (
    DTYPES,
    INTEGERS,
    LAYOUTS,
    READS_BUFFER,
    SHAPES,
    VALUES,
    Op,
    Step,
    Trace,
)
from deepstack_harness.fuzz.strategies import engine_traces, lifecycles, pairs, schedules
from deepstack_harness.fuzz.writer import REPORTED_PAIRS

pytestmark = pytest.mark.xdist_group("lifecycles")  # its fixtures are played once


def drawn(arm: str, examples: int = 200, number: int = 0) -> list[Trace]:
    found: list[Trace] = []

    @seed(number)
    @settings(
        max_examples=examples, phases=[Phase.generate], database=None, deadline=None, derandomize=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(lifecycles(ArmSpec.parse(arm), alone=arm == "eager"))
    def collect(trace: Trace) -> None:
        found.append(trace)

    collect()
    return found


@pytest.fixture(scope="module")
def alone() -> list[Trace]:
    return [trace for number in range(3) for trace in drawn("eager", 250, number)]


@pytest.mark.parametrize("arm", by_day(["eager/full", "eager/drop_all", "eager"]))
def test_drawn_traces_parse_back(arm: str) -> None:
    assert all(Trace.parse(str(trace)) == trace for trace in drawn(arm, 50))


def test_a_buffer_by_itself_sees_all_its_calls_good_and_bad(alone: list[Trace]) -> None:
    steps = [step for trace in alone for step in trace]
    assert {step.op for step in steps} == set(Op) - {Op.CAPTURE, Op.REPLAY, Op.RELOAD}
    assert {step.op for step in steps if step.tokens < 0} == {Op.GET, Op.CLEAR, Op.RESIZE}
    assert min(step.tokens for step in steps) < -16
    # 0 to 2L levels, and a hidden size of 1, H - 1, H + 1 and 2H.
    wrong: set[tuple[int | None, int | None]] = {(levels, None) for levels in (0, 1, 2, 4, 6)} | {
        (None, hidden) for hidden in (1, 7, 9, 16)
    }
    wrong |= {(4, 9), (6, 4)}  # both wrong, and in the last one the product right
    assert {(step.levels, step.hidden) for step in steps} > {(None, None), *wrong}


def test_payloads_lie_in_memory_as_those_of_engines_and_hold_any_values(alone: list[Trace]) -> None:
    sets = [step for trace in alone for step in trace if step.op is Op.SET]
    assert {step.layout for step in sets} == {None, *LAYOUTS}
    assert {step.dtype for step in sets} == {None, *DTYPES, *INTEGERS}
    assert {step.shape for step in sets} == {None, *SHAPES}
    assert {step.values for step in sets} == {None, *VALUES}
    assert {step.grad for step in sets} == {True, False}
    spans = {len(step.spans) for step in sets if step.spans is not None}
    assert min(spans) == 1
    assert len(spans) >= 4
    assert any(step.layout and step.values and step.dtype for step in sets)


def test_buffers_have_other_sizes_modes_and_neighbours(alone: list[Trace]) -> None:
    assert {trace.levels for trace in alone} == {None, 1, 2, 4, 8}
    assert {trace.hidden for trace in alone} == {None, 1, 7, 9, 16}
    assert {trace.dtype for trace in alone} == {None, "bfloat16", "float16", "float64"}
    assert {trace.mode for trace in alone} == {None, "inference"}
    assert {1, 2, 7, 13, 15, 16, 17, 33, 80} <= {trace.capacity for trace in alone}
    shared = [trace for trace in alone if trace.buffers == 2]
    assert all({step.on for step in trace} <= {None, "b"} for trace in shared)
    assert any(step.op is Op.SET and step.on for trace in shared for step in trace)


def test_calls_lie_far_above_the_capacity_run_out_of_memory_and_go_on_for_long(alone: list[Trace]) -> None:
    above, failing, longest = set(), set(), 0
    for trace in alone:
        above |= {step.op for step in trace if step.tokens > 8 * trace.capacity}
        failing |= {(step.op, step.fail) for step in trace if step.fail}
        runs = ([*run] for _, run in groupby(trace, key=lambda step: (step.op, step.tokens)))
        longest = max(longest, *map(len, runs))
    assert {Op.SET, Op.GET, Op.CLEAR} <= above
    assert {op for op, _ in failing} == {Op.SET, Op.GET, Op.RESIZE}
    assert {1, 2, 3, 4} <= {number for _, number in failing}
    assert longest >= 64
    assert max(step.calls or 1 for trace in alone for step in trace) > 2048
    assert {step.after for trace in alone for step in trace} == {None, 90, 86_400}


@pytest.mark.parametrize("arm", ["eager/drop_all", "eager/full"])
def test_with_a_decoder_outputs_stay_finite_and_sizes_are_those_of_the_family(arm: str) -> None:
    traces = drawn(arm, 100)
    assert {step.values for trace in traces for step in trace} <= {None, "constant"}
    assert not any(trace.changes_sizes or trace.buffers > 1 for trace in traces)
    # A compiled decoder guards on the mode.
    assert {trace.mode for trace in traces} == ({None} if arm == "eager/drop_all" else {None, "inference"})


def test_counts_lie_around_the_payload_and_the_rows(alone: list[Trace]) -> None:
    seen = set()
    for trace in alone:
        live = 0
        for step in trace:
            if step.op is Op.GET and live:
                seen.add(step.tokens - live)
            if step.op is Op.SET and step.levels is step.hidden is None:
                live = step.tokens
            elif step.op in (Op.CLEAR, Op.FORWARD, Op.PROFILE):
                live = 0
    assert {0, 1} <= seen
    assert min(seen) < -1


@pytest.mark.parametrize(
    ("arm", "first"), by_day([("eager/drop_all", Op.PROFILE), ("inductor/stock", Op.PROFILE)])
)
def test_a_compiled_decoder_is_profiled_first_with_more_than_one_row(arm: str, first: Op) -> None:
    assert all(trace.steps[0].op is first and trace.capacity > 1 for trace in drawn(arm, 60))


def test_graphs_are_replayed_in_sizes_that_were_captured() -> None:
    replays = 0
    for trace in drawn("eager/full", 60):
        captured = set()
        for step in trace:
            captured |= {step.tokens} if step.op is Op.CAPTURE else set()
            replays += step.op is Op.REPLAY
            assert step.op is not Op.REPLAY or step.tokens in captured
    assert replays > 30


def test_all_sizes_are_captured_up_front_the_largest_first_with_nothing_set() -> None:
    begun = []
    for trace in drawn("eager/full", 60):
        first = [*takewhile(lambda step: step.op in {Op.PROFILE, Op.CAPTURE}, trace)]
        begun.append([step.tokens for step in first if step.op is Op.CAPTURE])
    assert [16, 8, 4, 1] in [sizes[:4] for sizes in begun]
    assert all(sizes for sizes in begun)


@pytest.mark.slow  # by day another process in test_thorough.py
def test_modules_that_are_loaded_change_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """hypothesis mixes integers of 100 and more from the source of local modules into what it draws."""
    before = drawn("eager", 150)
    source = "NUMBERS = [" + ", ".join(str(number) for number in range(100, 900)) + "]\n"
    loaded = ModuleType("numbers_everywhere")
    loaded.__file__ = f"{tmp_path}/numbers_everywhere.py"
    Path(loaded.__file__).write_text(source, encoding="utf-8")
    monkeypatch.setitem(sys.modules, "numbers_everywhere", loaded)
    assert drawn("eager", 150) == before


def test_another_seed_draws_other_traces() -> None:
    numbers = Random(0).sample(range(1000), 2)
    assert drawn("eager", 20, numbers[0]) != drawn("eager", 20, numbers[1])


@given(pairs(480, 8))
def test_pairs_get_what_was_set_or_more(pair: tuple[int, int]) -> None:
    assert pair[0] <= pair[1]


def test_reported_pairs_are_drawn_as_far_as_they_fit() -> None:
    drawn = set()

    @given(pairs(80))
    def collect(pair: tuple[int, int]) -> None:
        drawn.add(pair)

    collect()
    assert set(REPORTED_PAIRS) & drawn == {pair for pair in REPORTED_PAIRS if pair[1] <= 80}


@given(engine_traces(capacity=16))
def test_an_engine_in_order_profiles_first_and_runs_after_every_set(trace: Trace) -> None:
    assert trace.steps[0] == Step(Op.PROFILE, 16)
    for step, following in zip(trace.steps, trace.steps[1:], strict=False):
        if step.op is Op.SET:
            assert following.op in READS_BUFFER
            assert following.tokens >= step.tokens


@given(schedules(budget=16))
def test_schedules_keep_their_budget(done: list[ScheduledStep]) -> None:
    assert all(1 <= step.tokens <= 16 for step in done)
