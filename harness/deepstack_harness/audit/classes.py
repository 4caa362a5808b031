"""Judge a class of a source: the rules that it breaks, and how the engine comes to it.

Every class is judged by the orders in which its engine calls it, played on its own `embed_input_ids` and
`forward`, or on its methods where these two cannot be called. A class with get, set and clear is judged by
the audit traces on these methods too, live and captured.  What either of the two breaks is broken.  A
text model whose payload is an argument is judged live by the audit traces, and captured by the graphs
of its own engine.  A plugin that gives each rank of a step its rows, and a function that splits a
payload over ranks, are judged by R9, rank by rank in one process.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from deepstack_harness.audit.class_verdicts import (
    ClassVerdicts,
    compare_ways,
    same_without_graphs,
    sum_up,
    sum_up_regimes,
)
from deepstack_harness.audit.source_worker import AuditedClass, SourceWorker, gives_up
from deepstack_harness.catalogue.known import KNOWN_FAILURES, KnownRules
from deepstack_harness.catalogue.orders import (
    DEFAULT,
    FLAG,
    LATENT,
    UNKNOWN,
    Order,
    evidence_of,
    latent_argument,
    reach_of,
)
from deepstack_harness.catalogue.plans import AUDIT_TRACES, Where, plan_audit, plan_compiled
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import HIDDEN_ALONE, LEVELS_ALONE, BufferRef, Case, PlannedCase, Regime
from deepstack_harness.contract.observation import Observation, Raised, StepFacts
from deepstack_harness.contract.oracles.judge import JudgedCase, judge_case, judge_cases, unjudged_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import BROKEN, Evidence, Row, Verdict
from deepstack_harness.engines.known import engine_of
from deepstack_harness.play.case_worker import PLAY_SPLIT, SPLIT, SourceClass, Way, kind_of
from deepstack_harness.sources.request import Overlaid, Release
from deepstack_harness.sources.source import Source, buffer_of
from deepstack_harness.text import plural
from deepstack_harness.workers.outcomes import WorkerEnd, value_of

WHERE = Where("qwen3_vl")
"""Its hidden size and levels are those that buffers are made with; no decoder runs."""
EVERY_TOKEN = Where("gemma4")
"""The same for a class whose payload has rows for every token of a step."""
LIVE_TRACES = tuple(map(Trace.parse, AUDIT_TRACES))
"""The audit traces without those that record calls of a buffer: the engine's own runner captures."""


def judge_replayed(audited: AuditedClass, traces: Iterable[str], worker: SourceWorker) -> list[JudgedCase]:
    """Play traces under the graphs of the engine's own runner, and judge them."""
    buffer = replace(buffer_of(worker.source, audited.model_class), replayed=True)
    return worker.judge(plan_audit(WHERE, buffer, map(Trace.parse, traces)), audited.model_class, "methods")


def not_judged(row: Row, why: str) -> Row:
    """Return the row of a rule that was not put to the test, with the reason."""
    return replace(row, verdict=Verdict.SKIP, value=None, detail=why, expected=None)


def known_rules_of(source: Source, model_class: str) -> KnownRules:
    """Return rule -> reference of the known failures of one class, and of the base of its plugin."""
    overlay = engine_of(source).overlay
    sources = [source]
    if overlay is not None and overlay.base_storage and isinstance(source, Overlaid):
        sources.append(source.base)
    entries = (
        entry
        for entry in KNOWN_FAILURES.entries
        if any(entry.is_about(known.package, known.version, model_class) for known in sources)
    )
    return KnownRules(entries, of_any_release=any(known.version is None for known in sources))


PADDED = (
    ("cap 16: set 9; get 10", 2),
    ("cap 16: set 9; get 12", 4),
    ("cap 16: set 9; get 16", 8),
    ("cap 16: set 9; get 12; clear 12; set 3; get 4", 4),
)
"""Steps that were padded to a multiple of the ranks, and how many ranks share them."""
UNPADDED = (("cap 16: set 10; get 10", 4), ("cap 16: set 9; get 9", 8))
"""Steps that were not padded: `torch.chunk` makes parts of unequal size, or fewer than there are ranks."""
_SETTING = "sequence parallelism"


def judge_split(audited: AuditedClass, worker: SourceWorker, known: Mapping[Rule, str]) -> Row:
    """Return the row of R9: the worst of all steps, with how the engine comes to it."""
    padded = [_judge_on_ranks(audited, worker, text, ranks) for text, ranks in PADDED]
    unpadded = [_judge_on_ranks(audited, worker, text, ranks) for text, ranks in UNPADDED]
    cases = [*padded, *unpadded]
    (row,) = sum_up(cases, worker.source.label, audited.model_class, known, rules=[Rule.SHARDING]).rows
    if row.verdict not in BROKEN:
        return row
    if any(Rule.SHARDING in judged.broken for judged in padded):
        return replace(row, reach=f"{FLAG}{_SETTING}", evidence=Evidence.READ)
    # An engine that pads does not come to a fault of other steps.
    detail = f"{row.detail}; {plural(len(padded), 'step')} padded to a multiple of the ranks kept it"
    if latent_argument(worker.source.package, Rule.SHARDING) is None:
        return replace(row, reach=UNKNOWN, detail=detail)
    return replace(row, reach=LATENT, evidence=Evidence.READ, detail=detail)


def _judge_on_ranks(audited: AuditedClass, worker: SourceWorker, text: str, ranks: int) -> JudgedCase:
    """Play one trace on every rank, and judge it as a step that ranks share."""
    buffer = buffer_of(worker.source, audited.model_class)
    (single,) = plan_audit(WHERE, buffer, [Trace.parse(text)])
    shared = PlannedCase(replace(single.case, arm=ArmSpec.parse(f"eager/tp{ranks}")), None)
    source = SourceClass(worker.text, audited.model_class)
    result = worker.call(PLAY_SPLIT, {"case": single.case, "source": source, "ranks": ranks})
    if isinstance(result, WorkerEnd):
        return unjudged_case(shared, result.sentence)
    seen = value_of(result, f"the rows of each rank of {audited.model_class}")
    return judge_case(shared, seen)


STEPS = (
    # All tokens visual; images across the edges of ranks; ranks without a visual token; a step that is
    # padded to a multiple of the ranks; a step of text after a visual one.
    (16, "set 16"),
    (16, "set 16 spans=1-6+7-11"),
    (16, "set 16 spans=0-3"),
    (9, "set 9 spans=2-9"),
    (8, "set 8 spans=5-7; forward 8; set 0"),
)
"""The tokens of the last step, and what comes before it."""
RANKS = (2, 4, 8)


def judge_splitter(
    audited: AuditedClass, worker: SourceWorker, known: Mapping[Rule, str] | None
) -> ClassVerdicts:
    """Judge a splitter by R9; how an engine comes to a fault is unknown, since no runner was read."""

    def play(case: Case) -> Observation:
        named = {"text": worker.text, "model_class": audited.model_class}
        result = worker.call(SPLIT, {**named, "case": case})
        if not isinstance(result, WorkerEnd):
            return value_of(result, f"the parts of {audited.model_class}")
        # The last step of the case ended the process.
        *before, last = (StepFacts(str(step), case.trace.capacity) for step in case.trace)
        raised = Raised(kind_of(result), result.reason, "decoder", "", ends=True)
        steps = (*before, replace(last, raised=raised))
        return Observation(case.dtype, case.device, LEVELS_ALONE, HIDDEN_ALONE, "", steps)

    plan = plan_splits(buffer_of(worker.source, audited.model_class))
    cases = list(judge_cases(plan, play, (Rule.SHARDING,), given_up=gives_up(worker)))
    verdicts = sum_up(cases, worker.source.label, audited.model_class, known, rules=(Rule.SHARDING,))
    rows = (replace(row, reach=UNKNOWN) if row.verdict in BROKEN else row for row in verdicts.rows)
    return replace(verdicts, rows=tuple(rows))


def plan_splits(buffer: BufferRef) -> list[PlannedCase]:
    """Plan every step for each number of ranks, padded to a multiple of them."""
    return [
        replace(planned, case=replace(planned.case, arm=ArmSpec(ranks=ranks)))
        for tokens, before in STEPS
        for ranks in RANKS
        for padded in [-(-tokens // ranks) * ranks]
        for planned in plan_audit(WHERE, buffer, [Trace.parse(f"cap 64: {before}; forward {padded}")])
    ]


PlayedOrder = tuple[Order, JudgedCase]
"""An order of the engine that was played on a class, and its judged case."""


def judge_class(audited: AuditedClass, worker: SourceWorker) -> ClassVerdicts:
    """Judge a class by the audit traces on its methods, and by the engine's orders on the class itself.

    A class without methods is judged only by the orders. Each broken rule gets its reach in either regime, as
    far as the class can be called in its own call order, with a note where it passes in the other way to call
    the class. Every rule of a class whose definition ended the worker is ERROR.
    """
    source = worker.source
    known = known_rules_of(source, audited.model_class)
    if audited.ended is not None:
        planned, *_ = plan_audit(WHERE, buffer_of(source, audited.model_class))
        return sum_up([unjudged_case(planned, audited.ended)], source.label, audited.model_class, known)
    if audited.ways.splits:
        return judge_splitter(audited, worker, known)
    traces = LIVE_TRACES if audited.argument else None
    by_methods = _play(audited, worker, "methods", traces) if audited.ways.methods else []
    played = play_orders(audited, worker)
    in_order = [judged for _, judged in played]
    cases = [*by_methods, *in_order]
    verdicts = sum_up_regimes(cases, source.label, audited.model_class, known)
    if audited.ways.methods and audited.ways.forward:
        verdicts = compare_ways(verdicts, by_methods, in_order)
    rows = tuple(_explained(row, audited, worker, played) for row in verdicts.rows)
    overlay = engine_of(source).overlay
    splits = overlay is not None and overlay.splits and audited.ways.methods
    shared = [judge_split(audited, worker, known)] if splits else []
    rows = (*judge_compiled(audited, worker, known), *rows, *shared)
    if not isinstance(source, Release):
        rows = tuple(_against_known_reach(row, known) for row in rows)
    broken = (row for row in rows if row.regime is Regime.CAPTURED and row.verdict in BROKEN)
    by_graphs = {row.rule: row.trace for row in broken}
    same = same_without_graphs(cases, by_graphs, partial(_play_once_more, audited, worker))
    return replace(verdicts, rows=rows, effects={**verdicts.effects, **same})


def _against_known_reach(row: Row, known: KnownRules) -> Row:
    """Return a known failure of a tree as a new one if default settings lead to it only in this tree."""
    entry = known.entry_of(row.rule, row.regime, row.shape, row.trace)
    if (
        row.verdict is not Verdict.XFAIL
        or row.reach != DEFAULT
        or entry is None
        or entry.worst_reach == DEFAULT
    ):
        return row
    worse = f"worse than the known failure, which needs a flag: reach {row.reach}"
    return replace(row, verdict=Verdict.FAIL, expected=False, detail=f"{row.detail}; {worse}")


COMPILED_TRACE = Trace.parse("cap 16: profile 16; set 16; forward 16; forward 1")
"""A profile run, which calls no `embed_input_ids`, a prefill with a payload, and a decode."""


def judge_compiled(audited: AuditedClass, worker: SourceWorker, known: Mapping[Rule, str]) -> list[Row]:
    """Return the row of R0: what the class's own text model computes, compiled with all guards dropped.

    The layers of the text model are replaced by linear maps; its own `forward` runs. The list is empty for an
    engine whose text models are not looked for.
    """
    buffer = buffer_of(worker.source, audited.model_class)
    (planned,) = plan_compiled(WHERE, buffer, COMPILED_TRACE)
    if not audited.ways.compiled:
        if not audited.ways.uncompiled:
            return []
        judged = unjudged_case(planned, audited.ways.uncompiled)
    else:
        (judged,) = worker.judge([planned], audited.model_class, "compiled")
    verdicts = sum_up([judged], worker.source.label, audited.model_class, known, rules=[Rule.OUTPUT])
    (row,) = verdicts.rows
    if not audited.ways.compiled:
        return [not_judged(row, audited.ways.uncompiled)]
    if row.verdict not in BROKEN:
        return [row]
    detail = f"{row.detail}; compiled in the profile run: {audited.ways.compiled}"
    if not worker.orders.live:
        return [replace(row, reach=UNKNOWN, detail=detail)]
    return [replace(row, reach=DEFAULT, evidence=Evidence.READ, detail=detail)]


def _play_once_more(audited: AuditedClass, worker: SourceWorker, planned: PlannedCase) -> JudgedCase:
    """Play one more case, in the way in which the class was called on its trace."""
    traces = {order.trace for order in worker.orders.replayed}
    whole = audited.argument or planned.case.trace in traces or not audited.ways.methods
    way: Way = "forward" if audited.ways.forward and whole else "methods"
    (judged,) = worker.judge([planned], audited.model_class, way)
    return judged


def play_orders(audited: AuditedClass, worker: SourceWorker) -> list[PlayedOrder]:
    """Play every order of the engine on the class itself, or else on its methods.

    Where `forward` cannot be called, the methods are called as it would call them: set for
    `embed_input_ids`, get and clear for the outer forward. On the classes of vLLM 0.19.1 to 0.33.0 that have
    both, the same rules break on every order that a release takes.
    """
    orders = worker.orders
    replayed = () if audited.argument and not audited.replayed_at else orders.replayed
    way: Way = "forward" if audited.ways.forward else "methods"
    played: list[PlayedOrder] = []
    for of_regime, by_graphs in ((orders.live, False), (replayed, True)):
        traces = [order.trace for order in of_regime]
        judged = _play(audited, worker, way, traces, replayed=by_graphs)
        played += zip(of_regime, judged, strict=True)
    return played


def reach_in(
    rule: Rule, audited: AuditedClass, worker: SourceWorker, played: Iterable[PlayedOrder]
) -> tuple[str, Evidence | None]:
    """Return how the engine comes to break `rule`, by the orders that were played, and what that rests on.

    It is `latent` only for a class that was called in the engine's own order, and a rule with a written
    argument (`catalogue.latent`); else `unknown`, since `embed_input_ids` and `forward` may do more than to
    call the methods.
    """
    source = worker.source
    orders = [order for order, judged in played if rule in judged.broken]
    reach = reach_of(orders, source.version)
    if reach != LATENT:
        return reach, evidence_of(orders, source.version)
    in_order = audited.ways.forward and worker.orders.live
    argued = latent_argument(source.package, rule) is not None
    return (LATENT, Evidence.READ) if in_order and argued else (UNKNOWN, None)


def _play(
    audited: AuditedClass,
    worker: SourceWorker,
    way: Way,
    traces: Iterable[Trace] | None,
    *,
    replayed: bool = False,
) -> list[JudgedCase]:
    """Play traces, by default the audit traces, and judge them."""
    buffer = replace(buffer_of(worker.source, audited.model_class), replayed=replayed)
    where = EVERY_TOKEN if audited.ways.every_token else WHERE
    return worker.judge(plan_audit(where, buffer, traces), audited.model_class, way)


def _explained(row: Row, audited: AuditedClass, worker: SourceWorker, played: Sequence[PlayedOrder]) -> Row:
    """Return a row with how the engine comes to a broken rule, and with what its graphs lose.

    A rule that does not apply to the engine is SKIP.
    """
    engine = engine_of(worker.source)
    if row.rule in engine.inapplicable:
        return not_judged(row, engine.inapplicable[row.rule])
    if row.verdict not in BROKEN:
        return row
    # An order of the other regime does not lead to this fault.
    of_regime = [(order, judged) for order, judged in played if judged.case.regime is row.regime]
    reach, evidence = reach_in(row.rule, audited, worker, of_regime)
    settings = audited.runner.settings if audited.runner else ""
    if row.regime is Regime.CAPTURED and reach.startswith(FLAG) and settings:
        reach = f"{FLAG}{settings}"
    needed = engine.needs.get(audited.model_class)
    if needed and reach == DEFAULT:
        reach = f"{FLAG}{needed}"
    detail = row.detail
    if audited.ways.lost and row.regime is Regime.CAPTURED:
        detail = f"{detail}; {audited.ways.lost} ({audited.replayed_at})"
    if reach == UNKNOWN:
        tried = f"{plural(len(of_regime), 'order')} of the engine tried"
        detail = f"{detail}; {tried if of_regime else 'no order of the engine is known'}"
    return replace(row, reach=reach, evidence=evidence, detail=detail)
