"""Judge one class of a source: the rules that it breaks, and how the engine comes to it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from deepstack_harness.auditing.standing import Standing, sum_up
from deepstack_harness.binding.found_classes import Found
from deepstack_harness.binding.replayed import ReplayedClass
from deepstack_harness.catalogue.known_failures import known_of
from deepstack_harness.catalogue.matrix import Where, plan_audit
from deepstack_harness.catalogue.orders import Order, orders_of
from deepstack_harness.catalogue.reach import LATENT, UNKNOWN, reach_of
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import BROKEN, Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.play.cells import Cell, Runner

WHERE = Where("qwen3_vl")
"""Its hidden size and levels are those that buffers are made with; no decoder runs."""


@dataclass(frozen=True)
class PlayedOrder:
    """One order of the engine, and what became of it."""

    order: Order
    cell: Cell


def judge_class(found: Found) -> Standing:
    """Play the audit traces on the methods of a class, and the engine's orders on the class itself.

    A class without methods is judged by the orders alone.  Replayed orders are judged in any
    case, since a fault of a captured graph may show on no other trace.  Each broken rule is given
    its reach, as far as the class can be driven in its own call order.
    """
    played = play_orders(found)
    if found.methods is None:
        cells = [one.cell for one in played]
    else:
        replayed = orders_of(found.source.package).replayed
        cells = _play(found, found.methods, None)
        cells += [one.cell for one in played if one.order in replayed]
    source = found.source
    known = known_of(source.package, source.version, found.model_class)
    standing = sum_up(cells, source.label, found.model_class, known)
    return replace(standing, rows=tuple(_with_reach(row, found, played) for row in standing.rows))


def play_orders(found: Found) -> list[PlayedOrder]:
    """Play every order of the engine on the class itself, or else on its methods.

    Methods stand in where `forward` cannot be driven: `embed_input_ids` sets the payload, and the
    outer forward gets and clears it.  On the classes of vLLM 0.19.1 to 0.33.0 that have both, the
    same rules break on every order that a release takes.
    """
    factory = found.forward or found.methods
    if factory is None:
        return []
    orders = orders_of(found.source.package)
    return [
        *_play_orders(found, factory, orders.live),
        *_play_orders(found, ReplayedClass(factory), orders.replayed),
    ]


def reach_in(rule: Rule, found: Found, played: Iterable[PlayedOrder]) -> str:
    """Return how the engine comes to break `rule`, by the orders that were played.

    `latent` is said only of a class that was driven in the engine's own call order, `unknown`
    otherwise: its `embed_input_ids` and `forward` may do more than to call the methods.
    """
    reach = reach_of((one.order for one in played if rule in one.cell.broken), found.source.version)
    driven = found.forward is not None and orders_of(found.source.package).live
    return reach if driven or reach != LATENT else UNKNOWN


def _play_orders(found: Found, factory: BufferFactory, orders: Sequence[Order]) -> list[PlayedOrder]:
    cells = _play(found, factory, [order.trace for order in orders])
    return [PlayedOrder(order, cell) for order, cell in zip(orders, cells, strict=True)]


def _play(found: Found, factory: BufferFactory, traces: Iterable[Trace] | None) -> list[Cell]:
    """Play traces, by default the audit traces, on buffers that `factory` makes."""
    label = found.source.label
    runner = Runner({label: factory})
    return [runner.play(planned) for planned in plan_audit(WHERE, label, found.model_class, traces)]


def _with_reach(row: Row, found: Found, played: Sequence[PlayedOrder]) -> Row:
    if row.verdict not in BROKEN:
        return row
    return replace(row, reach=reach_in(Rule(row.rule), found, played))
