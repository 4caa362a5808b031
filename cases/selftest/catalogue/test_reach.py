"""How the engine comes to break a rule: the nearest order on which it breaks."""

from itertools import pairwise

import pytest

from deepstack_harness.catalogue.reach import ENGINE_ORDER, REACHABLE, reach_of
from deepstack_harness.contract.arm_spec import EAGER
from deepstack_harness.contract.buffer_ref import source_buffer
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.row import Row, row_of_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict

NORMAL, *_, LATER = (order.trace for order in ENGINE_ORDER)
MICRO_BATCHES = next(order.trace for order in ENGINE_ORDER if order.setting == "--enable-dbo")
PARALLEL = next(order.trace for order in ENGINE_ORDER if order.until)
ENABLE_SP = "flag: --compilation-config.pass_config.enable_sp"


def row(
    trace: str, verdict: Verdict = Verdict.FAIL, source: str = "vllm 0.22.1", rule: Rule = Rule.R3
) -> Row:
    case = Case("qwen3_vl", source_buffer(source, "SomeModel"), Trace.parse(trace), EAGER)
    return row_of_case(case, Judgement(rule, verdict), "2.13.0")


@pytest.mark.parametrize(
    ("traces", "reach"),
    [
        ([LATER, MICRO_BATCHES, NORMAL], REACHABLE),
        ([LATER, MICRO_BATCHES], "flag: --enable-dbo"),
        ([LATER], "latent"),
        ([], "latent"),
        (["cap 16: set 9; set 3; get 9"], "latent"),
    ],
)
def test_the_nearest_order_decides(traces: list[str], reach: str) -> None:
    assert reach_of(Rule.R3, map(row, traces)) == reach


def test_only_failures_of_the_rule_count_and_known_ones_do() -> None:
    kept = [row(NORMAL, Verdict.PASS), row(NORMAL, Verdict.SKIP), row(NORMAL, rule=Rule.R4)]
    assert reach_of(Rule.R3, kept) == "latent"
    assert reach_of(Rule.R3, [*kept, row(NORMAL, Verdict.XFAIL)]) == REACHABLE


@pytest.mark.parametrize(
    ("source", "reach"),
    [
        ("vllm 0.22.1", ENABLE_SP),
        ("vllm 0.31.2", ENABLE_SP),
        ("vllm 0.32.0", "latent"),
        ("vllm 0.33.0", "latent"),
        ("vllm at /src/vllm (v0.33.0-4-gabc)", ENABLE_SP),
    ],
)
def test_a_setting_that_a_release_no_longer_has_reaches_nothing(source: str, reach: str) -> None:
    assert reach_of(Rule.R4, [row(PARALLEL, source=source, rule=Rule.R4)]) == reach


def test_orders_are_traces_in_which_every_clear_follows_a_get_of_as_many_tokens() -> None:
    traces = [Trace.parse(order.trace) for order in ENGINE_ORDER]
    assert [str(trace) for trace in traces] == [order.trace for order in ENGINE_ORDER]
    for steps in (trace.steps for trace in traces):
        gets = [step for step in steps if step.op is Op.GET]
        clears = [after for step, after in pairwise(steps) if step.op is Op.GET]
        assert [(step.op, step.tokens) for step in clears] == [(Op.CLEAR, step.tokens) for step in gets]
