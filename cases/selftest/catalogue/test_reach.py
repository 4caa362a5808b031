"""How an engine comes to break a rule: the nearest of the orders on which it breaks."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from packaging.version import Version

from deepstack_harness.catalogue.latent import latent_argument
from deepstack_harness.catalogue.orders import VLLM_ORDERS, Order, Orders, orders_of
from deepstack_harness.catalogue.reach import evidence_of, reach_of
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op

NORMAL, *_, LATER = VLLM_ORDERS.live
MICRO_BATCHES = next(order for order in VLLM_ORDERS.live if order.setting == "--enable-dbo (V1 runner)")
PARALLEL = next(order for order in VLLM_ORDERS.live if order.releases)
ENABLE_SP = "flag: --compilation-config.pass_config.enable_sp and a budget that is no multiple of the ranks"
DBO = "flag: --enable-dbo (V1 runner)"
RELEASE = Version("0.22.1")


@pytest.mark.parametrize(
    ("orders", "reach"),
    [
        ([LATER, MICRO_BATCHES, NORMAL], "default"),
        ([LATER, MICRO_BATCHES], DBO),
        (
            [MICRO_BATCHES, PARALLEL, MICRO_BATCHES],
            f"{DBO} or {ENABLE_SP.removeprefix('flag: ')}",
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


FULL = "flag: --compilation-config.cudagraph_mode=FULL"
CHUNK = next(order for order in VLLM_ORDERS.replayed if "one visual token" in order.how)


@pytest.mark.parametrize(
    ("version", "settings"),
    [
        ("0.21.0", []),
        ("0.22.1", ["VLLM_USE_BREAKABLE_CUDAGRAPH=1"]),
        ("0.33.0", ["VLLM_USE_BREAKABLE_CUDAGRAPH=1", "VLLM_BATCH_INVARIANT=1"]),
    ],
)
def test_a_setting_counts_from_the_release_that_has_it(version: str, settings: list[str]) -> None:
    first, *others = (order for order in VLLM_ORDERS.replayed if order.taken)
    assert reach_of([first, *others], Version(version)).split(" or ") == [
        FULL, *settings, "--max-num-batched-tokens of running decodes + 1"
    ]  # fmt: skip


@pytest.mark.parametrize(("version", "named"), [("0.22.1", True), ("0.19.0", False)])
def test_one_visual_token_needs_no_graph_mode(version: str, named: bool) -> None:
    settings = reach_of([CHUNK], Version(version)).split(" or ")
    assert ("--max-num-batched-tokens of running decodes + 1" in settings) == named


@pytest.mark.parametrize(
    ("orders", "version", "evidence"),
    [
        ([CHUNK], "0.32.0", "emulated"),
        ([NORMAL, CHUNK], "0.33.0", "emulated"),
        ([CHUNK], "0.31.0", "read"),
        ([CHUNK], "0.34.0", "read"),
        ([CHUNK], None, "read"),
        ([NORMAL], "0.32.0", "read"),
        ([VLLM_ORDERS.replayed[-1]], "0.32.0", "read"),
    ],
)
def test_evidence_holds_for_the_releases_that_were_seen(
    orders: list[Order], version: str | None, evidence: str
) -> None:
    assert evidence_of(orders, Version(version) if version else None) == evidence


def test_a_setting_that_needs_more_flags_than_another_is_left_out() -> None:
    orders = [replace(CHUNK, setting="a and b", others=()), replace(CHUNK, setting="b", others=())]
    assert reach_of(orders, RELEASE) == "flag: b"
    assert reach_of(orders[:1], RELEASE) == "flag: a and b"


def test_an_argument_for_latent_has_a_file_and_a_line() -> None:
    argued = {rule: text for rule in Rule if (text := latent_argument("vllm", rule))}
    assert set(argued) == {Rule.R3, Rule.R4, Rule.R6, Rule.R8}
    assert all(re.search(r"\w+\.py:\d+", text) for text in argued.values())
    assert latent_argument("sglang", Rule.R4) is None


def test_an_engine_that_nobody_has_read_has_no_orders() -> None:
    assert orders_of("vllm").live[-len(VLLM_ORDERS.live) :] == VLLM_ORDERS.live
    assert orders_of("mlx-vlm") == Orders()


def test_every_clear_of_an_order_follows_a_get_of_as_many_tokens() -> None:
    for steps in (order.trace.steps for order in (*VLLM_ORDERS.live, *VLLM_ORDERS.replayed)):
        gets = [step for step in steps if step.op is Op.GET]
        clears = [after for step, after in pairwise(steps) if step.op is Op.GET]
        assert [(step.op, step.tokens) for step in clears] == [(Op.CLEAR, step.tokens) for step in gets]


def test_no_two_orders_are_the_same() -> None:
    traces = [order.trace for order in (*VLLM_ORDERS.live, *VLLM_ORDERS.replayed)]
    assert len(set(traces)) == len(traces)
