"""R14 on accesses written down by hand."""

import pytest

from deepstack_harness.contract.facts.accesses import AccessFacts, KernelAccess
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.oracles.memory import judge


@pytest.mark.parametrize(
    ("first", "end", "rows", "verdict", "value"),
    [
        (0, 64, 0, Verdict.PASS, 0),
        (-4, 64, 0, Verdict.FAIL, 4),
        (0, 72, 0, Verdict.FAIL, 8),
        (-4, 72, 3, Verdict.FAIL, 12),
        (0, 64, 3, Verdict.FAIL, 3),
    ],
)
def test_memory_outside_and_memory_never_written(
    first: int, end: int, rows: int, verdict: Verdict, value: int
) -> None:
    accesses = (KernelAccess("add_0", "buffer", 64, 0, 64), KernelAccess("add_1", "x", 64, first, end, 8))
    said = judge(AccessFacts(accesses, unwritten_rows=rows))
    assert (said.verdict, said.value) == (verdict, value)
    assert ("add_1" in said.detail) is (value > 0)


def test_nothing_measured_is_no_pass() -> None:
    assert judge(AccessFacts(())).verdict is Verdict.ERROR
