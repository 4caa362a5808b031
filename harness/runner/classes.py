"""One upstream class: what it breaks, and how the engine comes to it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from harness.case import Row
from harness.known_failures import known_of
from harness.matrix import AUDIT_TRACES, Where, plan_audit
from harness.protocols import BufferFactory
from harness.reach import ENGINE_ORDER, REPLAY_ORDER, Order, reach_of
from harness.rules import BROKEN, Rule
from harness.runner.audit import Standing, merged, stand
from harness.runner.cells import Runner
from harness.upstream.bind import BoundClass
from harness.upstream.discover import Found
from harness.upstream.drive import DrivenClass
from harness.upstream.replayed import ReplayedClass

WHERE = Where("qwen3_vl")
"""Its hidden size and levels are those that buffers are made with; no decoder runs."""


def judge_class(found: Found) -> Standing:
    """The audit traces on its methods, or, where it has none, the engine's orders on the class itself.

    Each broken rule is given its reach, as far as the class can be driven in its
    own call order.
    """
    standing = _by_methods(found, found.buffer) if found.buffer else _by_orders(found, found.driven)
    orders = _engine_orders(found)
    return replace(standing, rows=tuple(_with_reach(row, orders) for row in standing.rows))


def _by_methods(found: Found, buffer: BoundClass) -> Standing:
    return _stand(found.model_class, buffer.label, buffer, AUDIT_TRACES)


def _by_orders(found: Found, driven: DrivenClass | None) -> Standing:
    assert driven is not None  # the caller has seen to that
    name, label = found.model_class, driven.label
    return merged(
        _stand(name, label, driven, _traces(ENGINE_ORDER)),
        _stand(name, label, ReplayedClass(driven), _traces(REPLAY_ORDER)),
    )


def _stand(name: str, label: str, factory: BufferFactory, traces: Iterable[str]) -> Standing:
    plan = plan_audit(WHERE, label, name, traces)
    return stand(Runner({label: factory}), label, name, plan, known_of(label, name))


def _engine_orders(found: Found) -> list[Row] | None:
    """Every row of every order; None for a class that cannot be driven so."""
    if found.driven is None:
        return None
    replayed = ReplayedClass(found.driven)
    return [*_rows(found, found.driven, ENGINE_ORDER), *_rows(found, replayed, REPLAY_ORDER)]


def _rows(found: Found, factory: BufferFactory, orders: Iterable[Order]) -> Iterator[Row]:
    assert found.driven is not None  # the caller has seen to that
    label = found.driven.label
    runner = Runner({label: factory})
    for planned in plan_audit(WHERE, label, found.model_class, _traces(orders)):
        yield from runner.play(planned).rows(None)


def _traces(orders: Iterable[Order]) -> list[str]:
    return [order.trace for order in orders]


def _with_reach(row: Row, orders: list[Row] | None) -> Row:
    if row.verdict not in BROKEN:
        return row
    return replace(row, reach="unknown" if orders is None else reach_of(Rule(row.rule), orders))
