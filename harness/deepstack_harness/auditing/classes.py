"""Judge one class of a source: the rules that it breaks, and how the engine comes to it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from deepstack_harness.auditing.argument_classes import LIVE_TRACES, WHERE, told
from deepstack_harness.auditing.causes import same_without_graphs
from deepstack_harness.auditing.known_in_source import known_in
from deepstack_harness.auditing.source_worker import AuditedClass, SourceWorker
from deepstack_harness.auditing.split_ranks import judge_split
from deepstack_harness.auditing.splitters import judge_splitter
from deepstack_harness.auditing.standing import Standing, sum_up, sum_up_regimes
from deepstack_harness.catalogue.latent import latent_argument
from deepstack_harness.catalogue.matrix import plan_audit
from deepstack_harness.catalogue.orders import Order
from deepstack_harness.catalogue.reach import FLAG, LATENT, UNKNOWN, evidence_of, reach_of
from deepstack_harness.contract.case import PlannedCase, Regime
from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.row import Evidence, Row
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import BROKEN
from deepstack_harness.engines.known import engine_of
from deepstack_harness.oracles.judged_case import JudgedCase, unjudged_case
from deepstack_harness.play.source_class import Way
from deepstack_harness.sources.source import buffer_of


@dataclass(frozen=True)
class PlayedOrder:
    """One order of the engine, and what became of it."""

    order: Order
    judged: JudgedCase


def judge_class(found: AuditedClass, worker: SourceWorker) -> Standing:
    """Judge a class by the audit traces on its methods, and by the engine's orders on the class itself.

    A class without methods is judged by the orders alone.  Replayed orders are judged in any
    case, since a fault of a captured graph may show on no other trace.  Each broken rule is given
    its reach in either regime, as far as the class can be driven in its own call order.  Every rule of a
    class whose definition ended the worker is ERROR.
    """
    source = worker.source
    known = known_in(source, found.model_class)
    if found.ended is not None:
        planned, *_ = plan_audit(WHERE, buffer_of(source, found.model_class))
        return sum_up([unjudged_case(planned, found.ended)], source.label, found.model_class, known)
    if found.splits:
        return judge_splitter(found, worker, known)
    played = play_orders(found, worker)
    if found.argument:
        cases = _play(found, worker, "methods", LIVE_TRACES)
        cases += [one.judged for one in played if one.judged.case.buffer.replayed]
    elif found.methods:
        cases = _play(found, worker, "methods", None)
        cases += [one.judged for one in played if one.order in worker.orders.replayed]
    else:
        cases = [one.judged for one in played]
    standing = sum_up_regimes(cases, source.label, found.model_class, known)
    standing = told(standing, found, engine_of(source).cannot_ask)
    rows = tuple(_with_reach(row, found, worker, played) for row in standing.rows)
    rows = (*rows, *_shared_rows(found, worker, known))
    same = same_without_graphs(cases, _broken_by_graphs(rows), partial(_again, found, worker))
    return replace(standing, rows=rows, effects={**standing.effects, **same})


def _shared_rows(found: AuditedClass, worker: SourceWorker, known: Mapping[Rule, str]) -> list[Row]:
    """Return the row of R9 for a plugin that gives ranks their rows."""
    overlay = engine_of(worker.source).overlay
    splits = overlay is not None and overlay.splits and found.methods
    return [judge_split(found, worker, known)] if splits else []


def _broken_by_graphs(rows: Iterable[Row]) -> dict[Rule, str]:
    broken = (row for row in rows if row.regime is Regime.CAPTURED and row.verdict in BROKEN)
    return {row.rule: row.trace for row in broken}


def _again(found: AuditedClass, worker: SourceWorker, planned: PlannedCase) -> JudgedCase:
    """Play one more case, in the way that shows more of the class."""
    # Graphs that are given the payload are those of whole steps.
    way: Way = "methods" if found.methods and not (found.argument and found.forward) else "forward"
    (judged,) = worker.judge([planned], found.model_class, way)
    return judged


def play_orders(found: AuditedClass, worker: SourceWorker) -> list[PlayedOrder]:
    """Play every order of the engine on the class itself, or else on its methods.

    Methods stand in where `forward` cannot be driven: `embed_input_ids` sets the payload, and the
    outer forward gets and clears it.  On the classes of vLLM 0.19.1 to 0.33.0 that have both, the
    same rules break on every order that a release takes.
    """
    orders = worker.orders
    replayed = () if found.argument and not found.replayed_at else orders.replayed
    return [
        *_play_orders(found, worker, orders.live, replayed=False),
        *_play_orders(found, worker, replayed, replayed=True),
    ]


def reach_in(
    rule: Rule, found: AuditedClass, worker: SourceWorker, played: Iterable[PlayedOrder]
) -> tuple[str, Evidence | None]:
    """Return how the engine comes to break `rule`, by the orders that were played, and what that rests on.

    `latent` is said only of a class that was driven in the engine's own call order, and of a rule with a
    written argument (`catalogue.latent`), `unknown` otherwise: its `embed_input_ids` and `forward` may do
    more than to call the methods.
    """
    source = worker.source
    orders = [one.order for one in played if rule in one.judged.broken]
    reach = reach_of(orders, source.version)
    if reach != LATENT:
        return reach, evidence_of(orders, source.version)
    driven = found.forward and worker.orders.live
    argued = latent_argument(source.package, rule) is not None
    return (LATENT, Evidence.READ) if driven and argued else (UNKNOWN, None)


def _play_orders(
    found: AuditedClass, worker: SourceWorker, orders: Sequence[Order], *, replayed: bool
) -> list[PlayedOrder]:
    way: Way = "forward" if found.forward else "methods"
    judged = _play(found, worker, way, [order.trace for order in orders], replayed=replayed)
    return [PlayedOrder(order, each) for order, each in zip(orders, judged, strict=True)]


def _play(
    found: AuditedClass,
    worker: SourceWorker,
    way: Way,
    traces: Iterable[Trace] | None,
    *,
    replayed: bool = False,
) -> list[JudgedCase]:
    """Play traces, by default the audit traces, and judge them."""
    buffer = replace(buffer_of(worker.source, found.model_class), replayed=replayed)
    return worker.judge(plan_audit(WHERE, buffer, traces), found.model_class, way)


def _with_reach(row: Row, found: AuditedClass, worker: SourceWorker, played: Sequence[PlayedOrder]) -> Row:
    if row.verdict not in BROKEN:
        return row
    # An order of the other regime does not lead to this fault.
    mine = [one for one in played if one.judged.case.regime is row.regime]
    reach, evidence = reach_in(row.rule, found, worker, mine)
    if row.regime is Regime.CAPTURED and reach.startswith(FLAG) and found.graphs_settings:
        reach = f"{FLAG}{found.graphs_settings}"
    detail = f"{row.detail}{_tried(mine)}" if reach == UNKNOWN else row.detail
    return replace(row, reach=reach, evidence=evidence, detail=detail)


def _tried(played: Sequence[PlayedOrder]) -> str:
    """Return how many orders did not lead to a fault whose reach is unknown."""
    return (
        f"; {plural(len(played), 'order')} of the engine tried"
        if played
        else "; no order of the engine is known"
    )
