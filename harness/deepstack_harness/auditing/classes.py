"""One upstream class: what it breaks, and how the engine comes to it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from deepstack_harness.auditing.standing import Standing, stand, sum_up
from deepstack_harness.binding.bind import BoundClass
from deepstack_harness.binding.discover import Found
from deepstack_harness.binding.replayed import ReplayedClass
from deepstack_harness.catalogue.known_failures import known_of
from deepstack_harness.catalogue.matrix import Where, plan_audit
from deepstack_harness.catalogue.reach import ENGINE_ORDER, REPLAY_ORDER, Order, reach_of
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import BROKEN, Rule
from deepstack_harness.play.cells import Cell, Runner

WHERE = Where("qwen3_vl")
"""Its hidden size and levels are those that buffers are made with; no decoder runs."""


def judge_class(found: Found) -> Standing:
    """The audit traces on its methods, or, where it has none, the engine's orders on the class itself.

    Each broken rule is given its reach, as far as the class can be driven in its
    own call order.
    """
    orders = engine_orders(found)
    standing = _by_methods(found, found.buffer) if found.buffer else _by_orders(found, orders)
    return replace(standing, rows=tuple(_with_reach(row, orders) for row in standing.rows))


def _by_methods(found: Found, buffer: BoundClass) -> Standing:
    name, label = found.model_class, buffer.label
    plan = plan_audit(WHERE, label, name)
    return stand(Runner({label: buffer}), label, name, plan, known_of(label, name))


def _by_orders(found: Found, orders: list[Cell]) -> Standing:
    assert found.driven is not None  # the caller has seen to that
    name, label = found.model_class, found.driven.label
    return sum_up(orders, label, name, known_of(label, name))


def engine_orders(found: Found) -> list[Cell]:
    """Every order of the engine, played; none for a class that cannot be driven so."""
    if found.driven is None:
        return []
    replayed = ReplayedClass(found.driven)
    return [*_played(found, found.driven, ENGINE_ORDER), *_played(found, replayed, REPLAY_ORDER)]


def _played(found: Found, factory: BufferFactory, orders: Iterable[Order]) -> Iterator[Cell]:
    assert found.driven is not None  # the caller has seen to that
    label = found.driven.label
    plan = plan_audit(WHERE, label, found.model_class, [order.trace for order in orders])
    return map(Runner({label: factory}).play, plan)


def _with_reach(row: Row, orders: list[Cell]) -> Row:
    if row.verdict not in BROKEN:
        return row
    rows = (played for cell in orders for played in cell.rows(None))
    return replace(row, reach=reach_of(Rule(row.rule), rows) if orders else "unknown")
