"""Decode steps are timed by turns: rows that a step does not have cost time.  Ratios of one run only."""

import json
from pathlib import Path

import pytest

from deepstack_harness.cli import main
from deepstack_harness.errors import ExitCode
from deepstack_harness.kernels import costs
from deepstack_harness.kernels.costs import Costs, StepCost, measure_costs

STEPS = (StepCost(256, 1, 0.5, 0.25, 0.125), StepCost(4096, 8, 6.0, 0.003, 0.002))
MEASURED = Costs("granite4_vision:opaque", "inductor/drop_all", "float32", "cpu", "2.13.0", 2, STEPS)


@pytest.mark.slow  # the C++ compiler takes half a minute for its two graphs
@pytest.mark.xdist_group("inductor")
def test_whole_buffers_cost_more_than_slices() -> None:
    found = measure_costs([64, 4096], [1], 1, layers=1)
    small, large = found.steps
    assert [(step.capacity, step.tokens) for step in found.steps] == [(64, 1), (4096, 1)]
    assert large.extra_rows > 2
    assert large.extra_rows > small.extra_rows
    assert large.zeros > 0.1


def test_each_step_is_a_line_and_a_row_with_both_ratios(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "measure_costs", lambda: MEASURED)
    path = tmp_path / "rows.jsonl"
    assert main(["kernels", "--cost", "--json", str(path)]) == ExitCode.HOLDS
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[-2:]] == [
        ["256", "1", "500.00", "250.00", "2.0x", "125.00", "2.00x"],
        ["4096", "8", "6000.00", "3.00", "2000.0x", "2.00", "1.50x"],
    ]
    small, large = map(json.loads, path.read_text().splitlines())
    assert (small["kind"], small["full_to_sliced"], small["zeros_to_skipped"]) == ("cost", 2.0, 2.0)
    assert (large["full_seconds"], large["sliced_seconds"], large["skipped_seconds"]) == (6.0, 0.003, 0.002)
    assert (large["capacity"], large["tokens"], large["family"]) == (4096, 8, "granite4_vision:opaque")
