"""The audit of one upstream class: the rules that it breaks, and how the engine comes to it."""

from collections.abc import Iterable
from dataclasses import replace

from deepstack_harness.auditing.standing import Standing, judged_cases, stand, sum_up
from deepstack_harness.binding.bind import BoundClass
from deepstack_harness.binding.discover import Found
from deepstack_harness.binding.replayed import ReplayedClass
from deepstack_harness.catalogue.known_failures import known_of
from deepstack_harness.catalogue.matrix import Where, plan_audit
from deepstack_harness.catalogue.reach import ENGINE_ORDER, REPLAY_ORDER, Order, reach_of
from deepstack_harness.contract.buffer_ref import source_buffer
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.verdicts import BROKEN
from deepstack_harness.oracles.judged_case import JudgedCase

WHERE = Where("qwen3_vl")
"""Its hidden size and levels are those that buffers are made with; no decoder runs."""


def judge_class(found: Found) -> Standing:
    """Judge a class by the audit traces on its methods, or, without methods, by the engine's orders.

    Each broken rule is given its reach, as far as the class can be driven in its
    own call order.
    """
    orders = engine_orders(found)
    standing = _by_methods(found, found.buffer) if found.buffer else _by_orders(found, orders)
    return replace(standing, rows=tuple(_with_reach(row, orders) for row in standing.rows))


def _by_methods(found: Found, buffer: BoundClass) -> Standing:
    name, label = found.model_class, buffer.label
    of_source = source_buffer(label, name)
    plan = plan_audit(WHERE, of_source)
    return stand({of_source: buffer}, label, name, plan, known_of(label, name))


def _by_orders(found: Found, orders: list[JudgedCase]) -> Standing:
    assert found.driven is not None  # the caller has seen to that
    name, label = found.model_class, found.driven.label
    return sum_up(orders, label, name, known_of(label, name))


def engine_orders(found: Found) -> list[JudgedCase]:
    """Play and judge every order of the engine; none for a class that cannot be driven so."""
    if found.driven is None:
        return []
    return [*_played(found, ENGINE_ORDER, replayed=False), *_played(found, REPLAY_ORDER, replayed=True)]


def _played(found: Found, orders: Iterable[Order], *, replayed: bool) -> list[JudgedCase]:
    assert found.driven is not None  # the caller has seen to that
    buffer = replace(source_buffer(found.driven.label, found.model_class), replayed=replayed)
    plan = plan_audit(WHERE, buffer, [order.trace for order in orders])
    return judged_cases(plan, {buffer: ReplayedClass(found.driven) if replayed else found.driven})


def _with_reach(row: Row, orders: list[JudgedCase]) -> Row:
    if row.verdict not in BROKEN:
        return row
    rows = (played for judged in orders for played in judged.rows())
    return replace(row, reach=reach_of(row.rule, rows) if orders else "unknown")
