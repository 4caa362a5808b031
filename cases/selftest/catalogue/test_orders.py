"""How an engine comes to break a rule: the nearest of the orders on which it breaks."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from msgspec import structs
from packaging.version import Version

from deepstack_harness.catalogue.orders import (
    VLLM_ORDERS,
    Order,
    Orders,
    deciding_functions,
    evidence_of,
    latent_argument,
    orders_of,
    reach_of,
    recordings,
)
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Trace
from deepstack_harness.contract.verdicts import Evidence

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


(RECORDING,) = recordings("vllm")
RECORDED = orders_of("vllm", RECORDING.deciding)
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
        ([CHUNK, NORMAL], "0.32.0", "read"),
        ([RECORDED.replayed[0]], "0.32.0", "emulated"),
        ([RECORDED.replayed[0], CHUNK], None, "emulated"),
        ([RECORDED.live[0], RECORDED.replayed[0]], "0.32.0", "engine"),
        ([replace(RECORDED.live[0], releases="<0.32"), NORMAL], "0.32.0", "read"),
        ([replace(RECORDED.live[0], taken=False)], "0.32.0", "read"),
    ],
)
def test_the_best_evidence_of_this_version_counts(
    orders: list[Order], version: str | None, evidence: str
) -> None:
    assert evidence_of(orders, Version(version) if version else None) == evidence


def test_a_setting_that_needs_more_flags_than_another_is_left_out() -> None:
    orders = [replace(CHUNK, setting="a and b", others=()), replace(CHUNK, setting="b", others=())]
    assert reach_of(orders, RELEASE) == "flag: b"
    assert reach_of(orders[:1], RELEASE) == "flag: a and b"


def test_an_argument_for_latent_has_a_file_and_a_line() -> None:
    argued = {rule: text for rule in Rule if (text := latent_argument("vllm", rule))}
    assert set(argued) == {Rule.FRESHNESS, Rule.CAPACITY, Rule.ADDRESS, Rule.REJECTION}
    assert all(re.search(r"\w+\.py:\d+", text) for text in argued.values())
    assert latent_argument("sglang", Rule.CAPACITY) is None


def test_an_engine_that_nobody_has_read_has_no_orders() -> None:
    assert orders_of("vllm") == VLLM_ORDERS
    assert orders_of("mlx-vlm", RECORDING.deciding) == Orders()
    assert deciding_functions("mlx-vlm") == frozenset()


def test_a_source_inherits_a_recording_where_all_that_decides_is_equal() -> None:
    orders = orders_of("vllm", {**RECORDING.deciding, "another": "function"})
    seen = [order for order in (*orders.live, *orders.replayed) if order.evidence is not Evidence.READ]
    assert len(seen) == len(RECORDING.orders) > 0
    assert {str(order.trace) for order in seen} == {order.trace for order in RECORDING.orders}


@pytest.mark.parametrize("name", sorted(RECORDING.deciding))
@pytest.mark.parametrize("other", ["0" * 64, None])
def test_one_function_that_differs_or_is_missing_leaves_what_was_read(name: str, other: str | None) -> None:
    hashes = {**RECORDING.deciding, name: other or ""}
    if other is None:
        del hashes[name]
    assert orders_of("vllm", hashes) == VLLM_ORDERS


def test_a_recording_that_names_no_function_speaks_of_no_source() -> None:
    assert not structs.replace(RECORDING, deciding={}).applies_to(RECORDING.deciding)


def test_an_order_that_was_read_gives_way_to_a_recorded_one_that_is_like_it() -> None:
    read = (*VLLM_ORDERS.live, *VLLM_ORDERS.replayed)
    both = (*RECORDED.live, *RECORDED.replayed)
    covered = [order for order in read if order.covered]
    assert [order for order in read if order not in both] == covered
    assert len(covered) == 3
    seen = [(order.setting, shape_of(order.trace)) for order in both if order.evidence is not Evidence.READ]
    for order in covered:
        settings = {order.setting, *(other.text for other in order.others)}
        assert any(setting in settings and shape[:2] == shape_of(order.trace)[:2] for setting, shape in seen)


def shape_of(trace: Trace) -> list[tuple[bool, bool]]:
    """Return for each step after the profile runs whether it is visual, and whether it fills the budget."""
    calls = [step for step in trace.steps if step.op in {Op.SET, Op.FORWARD}]
    pairs = zip([None, *calls], calls, strict=False)
    return [
        (before is not None and before.op is Op.SET and before.tokens > 0, step.tokens == trace.capacity)
        for before, step in pairs
        if step.op is Op.FORWARD
    ]


def test_every_clear_of_an_order_follows_a_get_of_as_many_tokens() -> None:
    for steps in (order.trace.steps for order in (*VLLM_ORDERS.live, *VLLM_ORDERS.replayed)):
        gets = [step for step in steps if step.op is Op.GET]
        clears = [after for step, after in pairwise(steps) if step.op is Op.GET]
        assert [(step.op, step.tokens) for step in clears] == [(Op.CLEAR, step.tokens) for step in gets]


def test_no_two_orders_are_the_same() -> None:
    traces = [order.trace for order in (*VLLM_ORDERS.live, *VLLM_ORDERS.replayed)]
    assert len(set(traces)) == len(traces)
