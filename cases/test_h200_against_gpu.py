"""Interpreted kernels against kernels that run: each planted fault is seen by both, by one, or by neither.

With a GPU: `python -m pytest cases/test_h200_against_gpu.py -m gpu -rP`, which prints a line for each fault.
Without a GPU the same cases run nightly against Inductor's code for the CPU.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from cases.played import observed
from cases.test_h200 import TRACE, WHY_NOT
from deepstack_harness.catalogue.plans import graph_budget
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, PlannedCase, registered
from deepstack_harness.contract.facts import Measured
from deepstack_harness.contract.oracles.judge import judge_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace

pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.xdist_group("h200")]
SHOWN_BY_KERNELS = {Rule.OUTPUT, Rule.WORK, Rule.GRAPHS, Rule.MEMORY}
"""The rules that compiled code may break; those of only the buffer are judged without it."""


class Planted(NamedTuple):
    """A revision with a fault, or a right one, and the rules that interpreting its kernels must break."""

    name: str
    family: str
    revision: str
    policy: str
    trace: str
    interpreted: frozenset[Rule]


FULL = "cap 16: profile 16; set 16; forward 16"
PLANTED = (
    Planted("right", "qwen3_vl:opaque", "pr43617", "drop_all", TRACE, frozenset()),
    Planted("no payload when traced", "qwen3_vl", "pr40145", "drop_all", FULL, frozenset({Rule.OUTPUT})),
    Planted("the same, shapes guarded", "qwen3_vl", "pr40145", "shape_env_only", FULL,
    frozenset({Rule.OUTPUT})),
    Planted("the same, all guarded", "qwen3_vl", "pr40145", "stock", FULL, frozenset({Rule.GRAPHS})),
    Planted(
        "a level that is one row short", "qwen3_vl:opaque", "one_row_short_at_capacity",
        "drop_all/no_size_asserts", "cap 17: profile 9; set 17; forward 17", frozenset({Rule.MEMORY}),
    ),
)  # fmt: skip


def broken(planted: Planted, backend: str, device: str) -> set[Rule]:
    spec, trace = ArmSpec.parse(f"{backend}/{planted.policy}"), Trace.parse(planted.trace)
    case = Case(
        planted.family, registered(planted.revision), trace, spec, "float32", device,
        graph_budget=graph_budget(trace, spec),
    )  # fmt: skip
    return set(judge_case(PlannedCase(case, None), observed(case)).broken) & SHOWN_BY_KERNELS


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: one.name.replace(" ", "-"))
def test_what_kernels_show_when_they_run_is_seen_when_they_are_interpreted(
    planted: Planted, device: str, keep_figure: Callable[[Measured], None]
) -> None:
    interpreted, real = broken(planted, "h200", "cpu"), broken(planted, "inductor", device)
    seen = {
        "both": interpreted & real, "interpreted": interpreted - real, device: real - interpreted,
    }  # fmt: skip
    broken_by = {by: ", ".join(sorted(rules)) for by, rules in seen.items() if rules}
    told = f"{planted.name}: seen by {broken_by or 'neither'}"
    print(told)  # the comparison is what is requested
    conditions: dict[str, str | int | float] = {"planted": planted.name, "device": device}
    keep_figure(
        Measured("rules that real kernels break", len(real), "rules", len(interpreted), conditions, told)
    )
    assert planted.interpreted <= interpreted
    assert bool(interpreted) == bool(planted.interpreted)
    if Rule.MEMORY not in interpreted:  # a read outside may do anything where it really happens
        assert not seen[device], broken_by
