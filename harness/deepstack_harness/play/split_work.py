"""The work of a worker that plays a class of a source on each rank of a group, one after the other.

A rank is a stand-in: the class asks it for its number and for the size of the group, and nothing is
exchanged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import torch

from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation, ShardFacts, StepFacts
from deepstack_harness.engines.vllm_ascend_model import as_rank
from deepstack_harness.play.play_case import play_case
from deepstack_harness.play.source_class import SourceClass
from deepstack_harness.play.work import bind
from deepstack_harness.workers.child import Channel


def play_split(
    channel: Channel, case: Mapping[str, Any], source: Mapping[str, Any], ranks: int
) -> dict[str, Any]:
    """Play a `Case` unshared, and then on each rank; return an `Observation` with the rows of every rank."""
    torch.set_num_threads(1)
    parsed = msgspec.convert(case, Case)
    channel.phase("set-up")
    bound = bind(parsed, msgspec.convert(source, SourceClass))
    channel.phase("get")
    whole, seen = play_case(parsed, bound), []
    for rank in range(ranks):
        with as_rank(rank, ranks):
            seen.append(play_case(parsed, bound))
    found: dict[str, Any] = msgspec.to_builtins(_shared(whole, seen))
    return found


def _shared(whole: Observation, seen: Sequence[Observation]) -> Observation:
    steps = zip(whole.steps, *(one.steps for one in seen), strict=True)
    return replace(whole, steps=tuple(_step(first, shares) for first, *shares in steps))


def _step(first: StepFacts, shares: Sequence[StepFacts]) -> StepFacts:
    """Return a step with what each rank was answered; a rank whose get raised was given no rows."""
    if first.answer is None:
        return first
    shards = tuple(
        ShardFacts(rank, len(shares), share.answer.rows if share.answer else ())
        for rank, share in enumerate(shares)
    )
    return replace(first, shards=shards)
