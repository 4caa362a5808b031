"""No dropped guard fails under a buffer that fulfils its contract, however it is written."""

import pytest

from cases.by_day import by_day
from cases.played import observed
from deepstack_harness.catalogue.buffers import CORRECT
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, registered
from deepstack_harness.contract.trace import Trace

TRACE = Trace.parse("cap 16: profile 16; set 9; forward 16; forward 4; set 16; forward 16")
DAILY = {"one_tensor", "interleaved", "lazy"}
"""The tensors of their get have strides or storages of their own."""


@pytest.mark.xdist_group("eager")
@pytest.mark.parametrize(
    "name",
    by_day([name if name in DAILY else pytest.param(name, marks=pytest.mark.slow) for name in CORRECT]),
)
def test_no_guard_fails_that_decides(name: str) -> None:
    case = Case("qwen3_vl", registered(name), TRACE, ArmSpec.parse("eager/drop_all"))
    graphs = observed(case, few_layers=True).graphs
    assert graphs is not None
    assert graphs.guards > graphs.kept == 0
    assert graphs.failed == ()


def test_the_buffers_that_are_played_daily_are_there() -> None:
    assert set(CORRECT) >= DAILY
