"""Lifecycles: what hunts draw is what engines do and buffers must refuse, the same in any installation."""

import sys
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from cases.selftest.fuzzing.hunting import target
from deepstack_harness.contract.trace import Op, Trace
from deepstack_harness.fuzzing.lifecycles import lifecycles


def drawn(arm: str, examples: int = 200, number: int = 0) -> list[Trace]:
    found: list[Trace] = []

    @seed(number)
    @settings(
        max_examples=examples, phases=[Phase.generate], database=None, deadline=None, derandomize=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(lifecycles(target("reference", arm)))
    def collect(trace: Trace) -> None:
        found.append(trace)

    collect()
    return found


@pytest.mark.parametrize("arm", ["eager", "eager/drop_all", "eager/full"])
def test_drawn_traces_parse_back(arm: str) -> None:
    assert all(Trace.parse(str(trace)) == trace for trace in drawn(arm, 50))


def test_a_buffer_alone_sees_all_its_calls_good_and_bad() -> None:
    steps = [step for trace in drawn("eager") for step in trace]
    assert {step.op for step in steps} == set(Op) - {Op.CAPTURE, Op.REPLAY, Op.RELOAD}
    assert {step.op for step in steps if step.tokens < 0} == {Op.GET, Op.CLEAR, Op.RESIZE}
    assert {(step.levels, step.hidden) for step in steps} > {(None, None), (0, None), (4, None), (None, 1)}
    assert any(step.spans for step in steps)


def test_counts_lie_around_the_payload_and_the_rows() -> None:
    traces, seen = drawn("eager"), set()
    for trace in traces:
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
    assert {1, 2, 16, 80} <= {trace.capacity for trace in traces}


@pytest.mark.parametrize(("arm", "first"), [("eager/drop_all", Op.PROFILE), ("inductor/stock", Op.PROFILE)])
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
