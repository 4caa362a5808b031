"""R6: storage stays where it was while the generation stays, and captured graphs can go on reading it."""

from collections.abc import Iterator

from deepstack_harness.contract.case import Case, Regime
from deepstack_harness.contract.observation import Answer, GraphUse, Observation
from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op
from deepstack_harness.contract.verdicts import Judgement
from deepstack_harness.oracles.base import against, numbered_steps, skip
from deepstack_harness.oracles.observed_case import ObservedCase

Event = tuple[int, str]
"""Number of a step, and the fault in it."""


def judge(observed: ObservedCase) -> Judgement:
    """Count answers that moved unannounced, and faults that captured graphs suffered; the first one is told.

    Only the captured regime is judged: where the buffer's Python runs at every step, an address is nobody's
    business.  A buffer without a generation promised never to move.
    """
    case, observation = observed.case, observed.observation
    if case.regime is not Regime.CAPTURED:
        return skip(Rule.R6, "no step replays a graph: addresses matter in the captured regime alone")
    if not any(facts.graph_use for facts in observation.steps):
        return skip(Rule.R6, "no graph was captured")
    events = sorted(
        [*_moved(case, observation), *_went_back(case, observation), *_suffered(case, observation)]
    )
    steps = [number for number, _ in events]
    return against(Rule.R6, len(events), 0, "events", _tell(case, events), steps)


def _moved(case: Case, observation: Observation) -> Iterator[Event]:
    """Iterate over answers from other storage than the last answer to as many tokens, unannounced.

    Before the first capture nobody relies on an address.
    """
    seen: dict[int, tuple[int | None, tuple[int, ...]]] = {}
    captured = False
    for number, step, facts in numbered_steps(case, observation):
        captured |= step.op is Op.CAPTURE
        if not captured or facts.answer is None or not _has_storage(facts.answer):
            continue
        now = (facts.generation, facts.answer.addresses)
        before = seen.get(step.tokens, now)
        # Levels that are missing are R1.
        if before[0] == now[0] and any(was != at for was, at in zip(before[1], now[1], strict=False)):
            yield number, "answered from other storage, unannounced"
        seen[step.tokens] = now


def _went_back(case: Case, observation: Observation) -> Iterator[Event]:
    last: int | None = None
    for number, _, facts in numbered_steps(case, observation):
        if last is not None and facts.generation is not None and facts.generation < last:
            yield number, f"took the generation back from {last} to {facts.generation}"
        last = facts.generation


def _suffered(case: Case, observation: Observation) -> Iterator[Event]:
    """Iterate over faults that captured graphs suffered; freed storage is told once, when it was freed."""
    before = GraphUse()
    for number, _, facts in numbered_steps(case, observation):
        use = facts.graph_use or GraphUse()
        if use.allocated:
            made = plural(use.allocated, "tensor")
            yield number, f"allocated {made} in get or clear while they were captured"
        if use.detached:
            yield number, "replayed a graph on storage that get no longer answers from, unannounced"
        if use.freed > before.freed:
            yield number, f"found {plural(use.freed, 'storage')} freed that captured graphs still read"
        before = use


def _tell(case: Case, events: list[Event]) -> str:
    told = [f"step {number} '{case.trace.steps[number - 1]}' {what}" for number, what in events]
    return told[0] + (f" (and {len(told) - 1} more)" if told[1:] else "") if told else ""


def _has_storage(answer: Answer) -> bool:
    # An empty slice has no address of its own.
    return bool(answer.rows) and all(
        rows and address for rows, address in zip(answer.rows, answer.addresses, strict=True)
    )
