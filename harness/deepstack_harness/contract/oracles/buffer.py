"""Oracles of the buffer: R1 to R8, judged from what each call returned, raised and left in the storage.

R2, R3, R4, R5 and R8 share one audit of the trace (`trace_audit`), which decides which rule a wrong row or
call breaks. R1 counts return values without all levels, R7 those of another dtype or device, R6 storage that
moved or that captured graphs lost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from deepstack_harness.contract.case import Case, Regime
from deepstack_harness.contract.observation import GraphUse, Observation
from deepstack_harness.contract.oracles.trace_audit import (
    Deviation,
    ObservedCase,
    judge_deviations,
    judge_figure,
    numbered_steps,
    passed,
    skip,
)
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op
from deepstack_harness.contract.verdicts import Effect, FaultKind, Judgement
from deepstack_harness.text import plural

_NOT_TESTED = {
    Rule.BOUNDARY: "no get or clear within the capacity",
    Rule.FRESHNESS: "no row of a replaced payload could be read",
    Rule.CAPACITY: "no step went above the capacity with a payload",
    Rule.CLEAR: "no row of a cleared payload could be read",
    Rule.REJECTION: "no step makes a bad call",
}


def judge_rows_and_calls(rule: Rule, observed: ObservedCase) -> Judgement:
    """Judge R2, R3, R4, R5 or R8 by the audit of the trace, each as far as the kind of payload allows.

    For a payload that has rows for every token, stale rows after N are by design: their effect is `padding`
    though R3 passes, and R3 is broken where a real row of the output depends on them.
    """
    unchecked = observed.observation.payload_kind.unchecked.get(rule)
    if unchecked and rule is Rule.CLEAR:
        return skip(rule, unchecked)
    audit = observed.audited()
    deviations, chances = audit.deviations_of(rule), audit.chances[rule]
    if deviations:
        return judge_deviations(rule, deviations, _first_of(deviations), chances)
    stale = audit.stale_padding if rule is Rule.FRESHNESS else []
    if chances:
        judged = passed(rule, 0, 0, "rows", chances=chances)
        influence = "no real row changed when padding held other values"
    else:
        judged = skip(rule, "; ".join([_NOT_TESTED[rule], *audit.unavailable]))
        influence = "no live decoder ran over it"
    if stale:
        detail = f"stale padding, by design: {_first_of(stale)}; {influence}"
        return replace(judged, detail=detail, effect=Effect.PADDING)
    return replace(judged, detail="; ".join(filter(None, [judged.detail, unchecked])))


def _first_of(deviations: Sequence[Deviation]) -> str:
    more = f" (and {len(deviations) - 1} more)" if len(deviations) > 1 else ""
    return deviations[0].detail + more


def judge_structure(observed: ObservedCase) -> Judgement:
    """Count return values without all levels; a model without a vision tower has to return None, always."""
    case, observation = observed.case, observed.observation
    answers = [
        (number, step, facts.answer)
        for number, step, facts in numbered_steps(case, observation)
        if facts.answer is not None and step.tokens >= 0  # a negative count should not return at all: R8
    ]
    if not answers:
        return skip(Rule.STRUCTURE, "no get answered")
    wanted = observation.levels if observation.vision else 0
    wrong = [(number, step, answer) for number, step, answer in answers if len(answer.rows) != wanted]
    if not wrong:
        return passed(Rule.STRUCTURE, 0, 0, "answers", chances=len(answers))
    number, step, answer = wrong[0]
    # An engine that passes an empty tuple to its decoder differs from one whose get returns None.
    is_none, is_tensor = answer.structure == "none", answer.container == "Tensor"
    given = "None" if is_none else "one tensor" if is_tensor else plural(len(answer.rows), "level")
    detail = f"step {number} '{step}' was answered with {given}, not with {plural(wanted, 'tensor')}"
    steps = [number for number, *_ in wrong]
    shape = FaultKind.NONE if is_none else FaultKind.ONE_TENSOR if is_tensor else FaultKind.LEVELS
    return judge_figure(
        Rule.STRUCTURE, len(wrong), 0, "answers", detail, steps, shape=shape, chances=len(answers)
    )


_StorageFault = tuple[int, str, FaultKind]
"""A fault of the storage that graphs were captured on: the number of the step, in words, its shape."""


def judge_address(observed: ObservedCase) -> Judgement:
    """Count moves that were not announced, and faults of captured graphs; the detail describes the first.

    Only the captured regime is judged: where the buffer's Python runs at every step, no address is relied on.
    A buffer without a generation promised never to move.
    """
    case, observation = observed.case, observed.observation
    if case.regime is not Regime.CAPTURED:
        return skip(Rule.ADDRESS, "no step replays a graph: addresses matter in the captured regime alone")
    if not any(facts.graph_use for facts in observation.steps):
        return skip(Rule.ADDRESS, "no graph was captured")
    faults = sorted([*_moved(case, observation), *_faults_of_graphs(case, observation)])
    uses = sum(facts.graph_use is not None for facts in observation.steps)
    if not faults:
        return passed(Rule.ADDRESS, 0, 0, "events", chances=uses)
    (first, what, shape), steps = faults[0], [number for number, *_ in faults]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    detail = f"step {first} '{case.trace.steps[first - 1]}' {what}{more}"
    return judge_figure(Rule.ADDRESS, len(faults), 0, "events", detail, steps, shape=shape, chances=uses)


def _moved(case: Case, observation: Observation) -> Iterator[_StorageFault]:
    """Iterate over returned levels whose addresses are not those of the last get of as many tokens.

    A new generation announces a move. Before the first capture nobody relies on an address.
    """
    seen: dict[int, tuple[int | None, tuple[int, ...]]] = {}
    captured = False
    for number, step, facts in numbered_steps(case, observation):
        captured |= step.op is Op.CAPTURE
        if not captured or facts.answer is None or not facts.answer.rows:
            continue
        if not all((*facts.answer.rows, *facts.answer.addresses)):  # an empty slice has no address of its own
            continue
        now = (facts.generation, facts.answer.addresses)
        before = seen.get(step.tokens, now)
        # Levels that are missing are R1.
        if before[0] == now[0] and any(was != at for was, at in zip(before[1], now[1], strict=False)):
            yield number, "answered from other storage, unannounced", FaultKind.MOVED
        seen[step.tokens] = now


def _faults_of_graphs(case: Case, observation: Observation) -> Iterator[_StorageFault]:
    """Iterate over generations that went back, and faults of captured graphs.

    Freed storage is reported once, in the step that freed it.
    """
    before, last = GraphUse(), None
    for number, _, facts in numbered_steps(case, observation):
        if last is not None and facts.generation is not None and facts.generation < last:
            detail = f"took the generation back from {last} to {facts.generation}"
            yield number, detail, FaultKind.GENERATION
        last = facts.generation
        use = facts.graph_use or GraphUse()
        if use.allocated:
            detail = f"allocated {plural(use.allocated, 'tensor')} in get or clear while they were captured"
            yield number, detail, FaultKind.ALLOCATED
        if use.detached:
            detail = "replayed a graph on storage that get no longer answers from, unannounced"
            yield number, detail, FaultKind.DETACHED
        if use.freed > before.freed:
            detail = f"found {plural(use.freed, 'storage')} freed that captured graphs still read"
            yield number, detail, FaultKind.FREED
        before = use


def judge_placement(observed: ObservedCase) -> Judgement:
    """Count return values that have a level on another device, or in another dtype."""
    case, observation = observed.case, observed.observation
    wanted = (observation.dtype, observation.device)
    answers = [
        (number, step, set(zip(facts.answer.dtypes, facts.answer.devices, strict=True)))
        for number, step, facts in numbered_steps(case, observation)
        if facts.answer is not None and facts.answer.rows and step.tokens >= 0
    ]
    if not answers:
        return skip(Rule.PLACEMENT, "no get answered with tensors")
    wrong = [answer for answer in answers if answer[2] != {wanted}]
    if not wrong:
        return passed(Rule.PLACEMENT, 0, 0, "answers", chances=len(answers))
    number, step, places = wrong[0]
    others = places - {wanted}
    elsewhere = " and ".join(f"{dtype} on {device}" for dtype, device in sorted(others))
    detail = f"step {number} '{step}' answered in {elsewhere}, the hidden states are in {' on '.join(wanted)}"
    # The first set may move the levels, so that later return values are right.
    later = [(number, step) for number, step, _ in answers if number > wrong[-1][0]]
    if later:
        detail += f"; right from step {later[0][0]} '{later[0][1]}' on"
    shape = FaultKind.DTYPE if any(dtype != wanted[0] for dtype, _ in others) else FaultKind.DEVICE
    steps = [number for number, *_ in wrong]
    return judge_figure(
        Rule.PLACEMENT, len(wrong), 0, "answers", detail, steps, shape=shape, chances=len(answers)
    )
