"""R6: storage stays where it was while the generation stays, and captured graphs can go on reading it."""

from collections.abc import Iterator
from itertools import pairwise

from deepstack_harness.contract.case import Answer, Case, GraphUse, Judgement, Observation
from deepstack_harness.contract.rules import Rule
from deepstack_harness.oracles.base import against, numbered_steps, skip

Event = tuple[int, str]
"""The number of a step, and what happened in it."""


def judge(case: Case, observation: Observation) -> Judgement:
    """Answers that moved unannounced, and what graphs suffered: how often, the first one told.

    A buffer without a generation promised never to move.
    """
    seen = [
        (number, facts.generation, facts.answer.addresses)
        for number, _, facts in numbered_steps(case, observation)
        if facts.answer is not None and _has_storage(facts.answer)
    ]
    captured = any(facts.graph_use for facts in observation.steps)
    if len(seen) < 2 and not captured:
        return skip(Rule.R6, "fewer than two answers to compare")
    moved = [
        (number, "answered from other storage, unannounced")
        for (_, before, old), (number, after, new) in pairwise(seen)
        if before == after and any(one != other for one, other in zip(old, new, strict=False))
    ]
    events = sorted([*moved, *_suffered(case, observation)])
    return against(Rule.R6, len(events), 0, "events", _tell(case, events))


def _suffered(case: Case, observation: Observation) -> Iterator[Event]:
    """What happened to captured graphs; storage that is gone is told once, when it went."""
    before = GraphUse()
    for number, _, facts in numbered_steps(case, observation):
        use = facts.graph_use or GraphUse()
        if use.allocated:
            yield number, f"allocated {use.allocated} tensors in get or clear while they were captured"
        if use.detached:
            yield number, "replayed a graph on storage that get no longer answers from, unannounced"
        if use.freed > before.freed:
            yield number, f"found {use.freed} storages freed that captured graphs still read"
        before = use


def _tell(case: Case, events: list[Event]) -> str:
    told = [f"step {number} '{case.trace.steps[number - 1]}' {what}" for number, what in events]
    return told[0] + (f" (and {len(told) - 1} more)" if told[1:] else "") if told else ""


def _has_storage(answer: Answer) -> bool:
    # An empty slice has no address of its own.
    return bool(answer.rows) and all(
        rows and address for rows, address in zip(answer.rows, answer.addresses, strict=True)
    )
