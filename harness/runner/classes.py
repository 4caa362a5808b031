"""One upstream class: what it breaks, and how the engine comes to it."""

from dataclasses import replace

from harness.case import Row
from harness.known_failures import known_of
from harness.matrix import Where, plan_audit
from harness.reach import ENGINE_ORDER, reach_of
from harness.rules import BROKEN, Rule
from harness.runner.audit import Standing, stand
from harness.runner.cells import Runner
from harness.upstream.bind import BoundClass
from harness.upstream.discover import Found
from harness.upstream.drive import DrivenClass

WHERE = Where("qwen3_vl")
"""Its hidden size and levels are those that buffers are made with; no decoder runs."""


def judge_class(found: Found) -> Standing:
    """The audit traces on its methods, or, where it has none, the engine's orders on the class itself.

    Each broken rule is given its reach, as far as the class can be driven in its
    own call order.
    """
    orders = _engine_orders(found)
    if found.buffer is not None:
        standing = _stand(found.model_class, found.buffer, None)
    else:
        assert found.driven is not None  # the caller has seen to that
        standing = _stand(found.model_class, found.driven, [order.trace for order in ENGINE_ORDER])
    return replace(standing, rows=tuple(_with_reach(row, orders) for row in standing.rows))


def _engine_orders(found: Found) -> list[Row] | None:
    """Every row of every order; None for a class that cannot be driven so."""
    if found.driven is None:
        return None
    label = found.driven.label
    plan = plan_audit(WHERE, label, found.model_class, [order.trace for order in ENGINE_ORDER])
    runner = Runner({label: found.driven})
    return [row for planned in plan for row in runner.play(planned).rows(None)]


def _stand(name: str, factory: BoundClass | DrivenClass, traces: list[str] | None) -> Standing:
    plan = (
        plan_audit(WHERE, factory.label, name, traces) if traces else plan_audit(WHERE, factory.label, name)
    )
    return stand(Runner({factory.label: factory}), factory.label, name, plan, known_of(factory.label, name))


def _with_reach(row: Row, orders: list[Row] | None) -> Row:
    if row.verdict not in BROKEN:
        return row
    return replace(row, reach="unknown" if orders is None else reach_of(Rule(row.rule), orders))
