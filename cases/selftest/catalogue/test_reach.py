"""How an engine comes to break a rule: the nearest of the orders on which it breaks."""

from itertools import pairwise

import pytest
from packaging.version import Version

from deepstack_harness.catalogue.orders import VLLM_ORDERS, Order, Orders, orders_of
from deepstack_harness.catalogue.reach import reach_of
from deepstack_harness.contract.trace import Op

NORMAL, *_, LATER = VLLM_ORDERS.live
MICRO_BATCHES = next(order for order in VLLM_ORDERS.live if order.setting == "--enable-dbo")
PARALLEL = next(order for order in VLLM_ORDERS.live if order.releases)
ENABLE_SP = "flag: --compilation-config.pass_config.enable_sp"
RELEASE = Version("0.22.1")


@pytest.mark.parametrize(
    ("orders", "reach"),
    [
        ([LATER, MICRO_BATCHES, NORMAL], "default"),
        ([LATER, MICRO_BATCHES], "flag: --enable-dbo"),
        (
            [MICRO_BATCHES, PARALLEL, MICRO_BATCHES],
            f"flag: --enable-dbo or {ENABLE_SP.removeprefix('flag: ')}",
        ),
        ([LATER], "latent"),
        ([], "latent"),
    ],
)
def test_the_nearest_order_decides(orders: list[Order], reach: str) -> None:
    assert reach_of(orders, RELEASE) == reach


@pytest.mark.parametrize(
    ("version", "reach"),
    [
        ("0.22.1", ENABLE_SP),
        ("0.31.2", ENABLE_SP),
        ("0.31.3.dev4+g1a2b3c4", ENABLE_SP),
        ("0.32.0.dev4+g1a2b3c4", "latent"),
        ("0.32.0rc1", "latent"),
        ("0.32.0", "latent"),
        ("0.33.0", "latent"),
        (None, ENABLE_SP),
    ],
)
def test_a_setting_that_a_release_no_longer_has_reaches_nothing(version: str | None, reach: str) -> None:
    assert reach_of([PARALLEL], Version(version) if version else None) == reach


def test_an_engine_that_nobody_has_read_has_no_orders() -> None:
    assert orders_of("vllm") is VLLM_ORDERS
    assert orders_of("sglang") == Orders()


def test_every_clear_of_an_order_follows_a_get_of_as_many_tokens() -> None:
    for steps in (order.trace.steps for order in (*VLLM_ORDERS.live, *VLLM_ORDERS.replayed)):
        gets = [step for step in steps if step.op is Op.GET]
        clears = [after for step, after in pairwise(steps) if step.op is Op.GET]
        assert [(step.op, step.tokens) for step in clears] == [(Op.CLEAR, step.tokens) for step in gets]


def test_no_two_orders_are_the_same() -> None:
    traces = [order.trace for order in (*VLLM_ORDERS.live, *VLLM_ORDERS.replayed)]
    assert len(set(traces)) == len(traces)
