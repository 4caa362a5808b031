"""Oracles of the buffer: R1 to R8, judged from what each call returned, raised and left in the storage.

R2, R3, R4, R5 and R8 share one audit of the trace (`trace_audit`), which decides which rule a wrong row or
call breaks. R1 counts return values without all levels, R7 those of another dtype or device, R6 storage that
moved or that captured graphs lost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

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
from deepstack_harness.contract.verdicts import Effect, FaultKind, Judgement, Verdict
from deepstack_harness.text import plural


def judge_boundary(observed: ObservedCase) -> Judgement:
    """Judge R2: wrong counts, exceptions and wrong values within the capacity."""
    judged = _judge_rows_and_calls(Rule.BOUNDARY, observed, "no get or clear within the capacity")
    less = observed.observation.payload_kind.unchecked.get(Rule.BOUNDARY)
    if not less or judged.verdict is Verdict.FAIL:
        return judged
    return replace(judged, detail="; ".join(filter(None, [judged.detail, less])))


def judge_freshness(observed: ObservedCase) -> Judgement:
    """Judge R3: rows of a payload that a later set replaced.

    For a payload that has rows for every token, stale rows after N are by design: their effect is `padding`
    though the rule passes, and the rule is broken where a real row of the output depends on them.
    """
    judged = _judge_rows_and_calls(Rule.FRESHNESS, observed, "no row of a replaced payload could be read")
    stale = observed.audited().stale_padding
    if judged.verdict not in {Verdict.PASS, Verdict.SKIP} or not stale:
        return judged
    influence = (
        "no real row changed when padding held other values"
        if judged.verdict is Verdict.PASS
        else "no live decoder ran over it"
    )
    detail = f"stale padding, by design: {_first_of(stale)}; {influence}"
    return replace(judged, detail=detail, effect=Effect.PADDING)


def judge_capacity(observed: ObservedCase) -> Judgement:
    """Judge R4: calls above the capacity, and resize."""
    return _judge_rows_and_calls(Rule.CAPACITY, observed, "no step went above the capacity with a payload")


def judge_clear(observed: ObservedCase) -> Judgement:
    """Judge R5: rows of a payload that was cleared."""
    if why := observed.observation.payload_kind.unchecked.get(Rule.CLEAR):
        return skip(Rule.CLEAR, why)
    return _judge_rows_and_calls(Rule.CLEAR, observed, "no row of a cleared payload could be read")


def judge_rejection(observed: ObservedCase) -> Judgement:
    """Judge R8: bad calls that were accepted, or changed something though they were rejected."""
    return _judge_rows_and_calls(Rule.REJECTION, observed, "no step makes a bad call")


def _judge_rows_and_calls(rule: Rule, observed: ObservedCase, why_skipped: str) -> Judgement:
    audit = observed.audited()
    deviations = audit.deviations_of(rule)
    if deviations:
        return judge_deviations(rule, deviations, _first_of(deviations), audit.chances[rule])
    if not audit.chances[rule]:
        return skip(rule, "; ".join([why_skipped, *audit.unavailable]))
    return passed(rule, 0, 0, "rows", chances=audit.chances[rule])


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


class StorageFault(NamedTuple):
    """A fault of the storage that graphs were captured on, in the step with this number."""

    number: int
    detail: str
    shape: FaultKind


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
    faults = sorted(
        [
            *_moved(case, observation),
            *_generation_went_back(case, observation),
            *_faults_of_graphs(case, observation),
        ]
    )
    uses = sum(facts.graph_use is not None for facts in observation.steps)
    if not faults:
        return passed(Rule.ADDRESS, 0, 0, "events", chances=uses)
    first, steps = faults[0], [fault.number for fault in faults]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    detail = f"step {first.number} '{case.trace.steps[first.number - 1]}' {first.detail}{more}"
    return judge_figure(
        Rule.ADDRESS, len(faults), 0, "events", detail, steps, shape=first.shape, chances=uses
    )


def _moved(case: Case, observation: Observation) -> Iterator[StorageFault]:
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
            yield StorageFault(number, "answered from other storage, unannounced", FaultKind.MOVED)
        seen[step.tokens] = now


def _generation_went_back(case: Case, observation: Observation) -> Iterator[StorageFault]:
    last: int | None = None
    for number, _, facts in numbered_steps(case, observation):
        if last is not None and facts.generation is not None and facts.generation < last:
            detail = f"took the generation back from {last} to {facts.generation}"
            yield StorageFault(number, detail, FaultKind.GENERATION)
        last = facts.generation


def _faults_of_graphs(case: Case, observation: Observation) -> Iterator[StorageFault]:
    """Iterate over faults of captured graphs; freed storage is reported once, in the step that freed it."""
    before = GraphUse()
    for number, _, facts in numbered_steps(case, observation):
        use = facts.graph_use or GraphUse()
        if use.allocated:
            detail = f"allocated {plural(use.allocated, 'tensor')} in get or clear while they were captured"
            yield StorageFault(number, detail, FaultKind.ALLOCATED)
        if use.detached:
            detail = "replayed a graph on storage that get no longer answers from, unannounced"
            yield StorageFault(number, detail, FaultKind.DETACHED)
        if use.freed > before.freed:
            detail = f"found {plural(use.freed, 'storage')} freed that captured graphs still read"
            yield StorageFault(number, detail, FaultKind.FREED)
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
