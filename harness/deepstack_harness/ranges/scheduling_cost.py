"""Measure what placeholder ranges cost a scheduler: steps, growth, and building the cumulative sum.

In every step vLLM's scheduler asks each feature of each running request how many
embeddings it has, until one begins behind the step, and those that the step reaches
which of them (`_try_schedule_encoder_inputs`, vllm/v1/core/sched/scheduler.py);
the same is done here over a `Served` workload.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from time import process_time
from timeit import Timer

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from deepstack_harness.contract.facts.ranges import BuildCost, CostObservation, SchedulingCost
from deepstack_harness.errors import NotMeasured
from deepstack_harness.ranges.observe import as_tensor
from deepstack_harness.ranges.placeholder_range import KEPT, MakeRange, PlaceholderRange
from deepstack_harness.ranges.workloads import Served, decoding, geo3k, video
from deepstack_harness.workload.schedule import ScheduledStep

REPETITIONS = 9
GROWTH = ((1, 1), (8, 1), (64, 1), (8, 8), (8, 32))
"""(requests, features of each)."""
LENGTHS = (64, 1024, 16384)
_BUILDS = 20
_SHARED = 256  # CPython makes smaller numbers once for all

Placed = Mapping[str, Sequence[PlaceholderRange]]


def observe_costs(makes: Mapping[str, MakeRange], repetitions: int = REPETITIONS) -> CostObservation:
    """Measure each variant by name, in turns so that a busy machine hits all alike.

    Raises `NotMeasured` when two variants do not answer the same, or nothing was asked.
    """
    return CostObservation(
        tuple(cost for served in (geo3k(), video()) for cost in step_costs(makes, served, repetitions)),
        tuple(cost for size in GROWTH for cost in step_costs(makes, decoding(*size), repetitions)),
        tuple(cost for length in LENGTHS for cost in build_costs(makes, length, repetitions)),
        str(torch.__version__),
    )


def step_costs(makes: Mapping[str, MakeRange], served: Served, repetitions: int) -> list[SchedulingCost]:
    """Measure a mean step of `served` with each variant; raise as `observe_costs`."""
    placed = {name: place(make, served) for name, make in makes.items()}
    walks = {name: _walk_of(served, each) for name, each in placed.items()}
    totals = {walk() for walk in walks.values()}  # which also builds what is cached
    if len(totals) != 1 or not all(sum(total) for total in totals):
        raise NotMeasured(
            f"workload {served.name}: (embeddings, questions) were {sorted(totals)}, not the same"
        )
    cheapest = _cheapest(walks, repetitions)
    ((_, questions),) = totals
    return [_step_cost(name, served, questions, cheapest[name], _torch_calls(walks[name])) for name in makes]


def build_costs(makes: Mapping[str, MakeRange], length: int, repetitions: int) -> list[BuildCost]:
    """Measure building the cumulative sum of one placeholder of `length` positions with each variant."""
    mask = as_tensor(f"0{'1' * (length - 2)}0")
    builds = {name: _build_of(make, length, mask) for name, make in makes.items()}
    cheapest = _cheapest(builds, repetitions)
    kept = {name: getattr(make(0, length, mask), KEPT, None) for name, make in makes.items()}
    return [BuildCost(name, length, cheapest[name] / _BUILDS, held_bytes(kept[name])) for name in makes]


def place(make: MakeRange, served: Served) -> Placed:
    """Make the placeholders of every request; none of them was asked yet."""
    return {
        request: [make(feature.offset, len(feature.mask), as_tensor(feature.mask)) for feature in features]
        for request, features in served.features.items()
    }


def schedule_step(step: ScheduledStep, placed: Placed) -> tuple[int, int]:
    """Ask what one step asks; return embeddings found, and questions put."""
    embeddings = questions = 0
    for chunk in step.chunks:
        behind = chunk.start + chunk.tokens
        for placeholder in placed.get(chunk.request, ()):
            embeddings += placeholder.get_num_embeds()
            questions += 1
            if placeholder.offset >= behind:
                break
            if placeholder.offset + placeholder.length <= chunk.start:
                continue
            first, last = placeholder.get_embeds_indices_in_range(
                max(0, chunk.start - placeholder.offset), min(placeholder.length, behind - placeholder.offset)
            )
            embeddings += last - first
            questions += 1
    return embeddings, questions


def held_bytes(kept: object) -> int:
    """Return the bytes that a cumulative sum holds: a tensor's data, or a list with its numbers.

    Raises `NotMeasured` for what is neither.
    """
    if isinstance(kept, Tensor):
        return sys.getsizeof(kept) + kept.untyped_storage().nbytes()
    if isinstance(kept, list):
        own = {id(number): sys.getsizeof(number) for number in kept if number > _SHARED}
        return sys.getsizeof(kept) + sum(own.values())
    raise NotMeasured(f"a cumulative sum kept as {type(kept).__name__}: its size is not known")


def _walk_of(served: Served, placed: Placed) -> Callable[[], tuple[int, int]]:
    def walk() -> tuple[int, int]:
        embeddings = questions = 0
        for step in served.steps:
            found, asked = schedule_step(step, placed)
            embeddings, questions = embeddings + found, questions + asked
        return embeddings, questions

    return walk


def _step_cost(name: str, served: Served, questions: int, microseconds: float, calls: int) -> SchedulingCost:
    count = len(served.steps)
    features = max(len(features) for features in served.features.values())
    requests = max(len(step.chunks) for step in served.steps)
    return SchedulingCost(
        name, served.name, requests, features, count, questions, microseconds / count, calls / count
    )


def _build_of(make: MakeRange, length: int, mask: Tensor | None) -> Callable[[], list[int]]:
    return lambda: [make(0, length, mask).get_num_embeds() for _ in range(_BUILDS)]


def _cheapest(works: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Return the least microseconds of the processor of each work; in every round each runs once.

    On 2 cores with 8 others at work, tensor to list was 4.1 .. 5.1 by minima and 3.3 .. 5.1 by medians.
    """
    # The processor's time, of this process: on a busy machine the clock on the wall would charge
    # the longer work for all the others that ran meanwhile.  timeit keeps the collector out of it.
    timers = {name: Timer(work, timer=process_time) for name, work in works.items()}
    rounds = [{name: timer.timeit(1) for name, timer in timers.items()} for _ in range(repetitions)]
    return {name: min(taken[name] for taken in rounds) * 1e6 for name in timers}


def _torch_calls(work: Callable[[], object]) -> int:
    counting = _Counting()
    with counting:
        work()
    return counting.calls


class _Counting(TorchFunctionMode):
    """Counter of calls into torch's Python interface, indexing and conversions included."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    @override
    def __torch_function__(
        self, func: Callable[..., object], types: object, args: Sequence[object] = (), kwargs: object = None
    ) -> object:
        self.calls += 1
        return func(*args, **(kwargs if isinstance(kwargs, dict) else {}))
