"""Play cases whose ranks share steps: a few ranks in processes of their own, of many ranks a sample."""

from dataclasses import replace

from deepstack_harness.contract.case import Case, Compare
from deepstack_harness.contract.observation import Observation, StepFacts
from deepstack_harness.errors import UsageError
from deepstack_harness.play.in_process import NOTHING_BOUND, Bound, factory_of, shared_model
from deepstack_harness.play.observe import play
from deepstack_harness.play.ranks.merge import merged
from deepstack_harness.play.ranks.pool import rank_pool
from deepstack_harness.torch_compat.fake_world import fake_world

LARGEST_WORLD = 4
"""Most ranks that run on a CPU: each is a process of half a gigabyte that imports torch for seconds."""


def play_among_ranks(case: Case, bound: Bound = NOTHING_BOUND) -> Observation:
    """Play a case whose arm has more than one rank.

    On GPUs, and up to four ranks on a CPU, all ranks are real.  Of more ranks the first, the middle and
    the last are played in this process, one after the other, in torch's fake process group: the rows that
    they are given are real, their outputs are not, and are not compared.  Raises `UsageError` for a case
    that can be played in neither way.
    """
    if case.arm.ranks > LARGEST_WORLD and not case.device.startswith("cuda"):
        return _sampled(case, bound)
    if case.buffer in bound:
        raise UsageError(
            f"'{case.buffer.name}' cannot be played under arm {case.arm.name}: its ranks are "
            "processes of their own, which find only buffers that are named in the registry"
        )
    return rank_pool().play(case)


def _sampled(case: Case, bound: Bound) -> Observation:
    ranks = case.arm.ranks
    if case.arm.compiled:
        raise UsageError(
            f"arm {case.arm.name}: more than {LARGEST_WORLD} ranks exchange nothing on a CPU, so there is "
            f"no compiled output to compare; use eager/tp{ranks}"
        )
    quick = replace(case, compare=Compare.EAGER) if case.compare is Compare.ALL else case
    model = shared_model(case.family, case.dtype, case.device, case.seed)
    seen = {}
    for rank in (0, ranks // 2, ranks - 1):
        with fake_world(rank, ranks):
            seen[rank] = _without_outputs(play(quick, model, factory_of(case.buffer, bound)))
    return merged(list(seen.values()), list(seen))


def _without_outputs(observation: Observation) -> Observation:
    return replace(observation, steps=tuple(map(_without_output, observation.steps)))


def _without_output(facts: StepFacts) -> StepFacts:
    """Return the facts without what was computed from rows of other ranks."""
    shards = tuple(replace(shard, stray=None) for shard in facts.shards)
    return replace(facts, distances=None, shards=shards)
