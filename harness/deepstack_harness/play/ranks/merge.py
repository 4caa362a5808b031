"""Merge what the ranks of one case saw into one observation."""

from collections.abc import Sequence
from dataclasses import replace

from deepstack_harness.callers.collectives import PeerFailed
from deepstack_harness.contract.case import Distances, GraphFacts, Observation, Raised, StepFacts

_CONSEQUENCE = PeerFailed.__name__


def merged(seen: Sequence[Observation], ranks: Sequence[int]) -> Observation:
    """Return the first observation with the shards of all ranks and their worst figures.

    `ranks` are the numbers of the ranks, in the order of `seen`.  Everything else must be the same on every
    rank; where it is not, the observation has an error that says so.
    """
    steps = tuple(_step(facts, ranks) for facts in zip(*(one.steps for one in seen), strict=True))
    errors = [one.error for one in seen if one.error]
    return replace(
        seen[0],
        steps=steps,
        graphs=_worst_graphs(seen),
        error=errors[0] if errors else _disagreement(seen, ranks),
    )


def _step(facts: Sequence[StepFacts], ranks: Sequence[int]) -> StepFacts:
    attended = [one.attended for one in facts if one.attended is not None]
    return replace(
        facts[0],
        raised=_cause(facts, ranks),
        distances=_worst([one.distances for one in facts if one.distances]),
        graphs=max(one.graphs for one in facts),
        attended=max(attended, default=None),
        shards=tuple(shard for one in facts for shard in one.shards),
    )


def _cause(facts: Sequence[StepFacts], ranks: Sequence[int]) -> Raised | None:
    """Return the error of the first rank that failed by itself, and was not told of another rank's error."""
    raised = [(rank, one.raised) for rank, one in zip(ranks, facts, strict=True) if one.raised]
    own = [(rank, error) for rank, error in raised if error.type != _CONSEQUENCE]
    if not raised:
        return None
    rank, error = (own or raised)[0]
    return replace(error, message=f"rank {rank}: {error.message}")


def _worst(distances: Sequence[Distances]) -> Distances | None:
    return max(distances, key=lambda found: found.eager, default=None)


def _worst_graphs(seen: Sequence[Observation]) -> GraphFacts | None:
    built = [one.graphs for one in seen if one.graphs]
    return max(built, key=lambda facts: facts.graphs + facts.breaks + facts.limit_hit, default=None)


def _disagreement(seen: Sequence[Observation], ranks: Sequence[int]) -> str | None:
    """Name the first step in which a rank's buffer answered differently from the first rank's."""
    for rank, one in zip(ranks[1:], seen[1:], strict=True):
        for number, (first, facts) in enumerate(zip(seen[0].steps, one.steps, strict=True), 1):
            if _comparable(first) != _comparable(facts):
                asked = f"step {number} '{facts.step}', where both were asked the same"
                return f"the buffer of rank {rank} was another than that of rank {ranks[0]} in {asked}"
    return None


def _comparable(facts: StepFacts) -> tuple[object, ...]:
    """Return the facts that sharding cannot change: the buffer is whole on every rank."""
    answer = facts.answer
    answered = answer and (answer.structure, answer.rows, answer.hidden, answer.dtypes)
    return answered, facts.capacity, facts.generation, facts.unavailable
