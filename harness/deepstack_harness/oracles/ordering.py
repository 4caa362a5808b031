"""R13: dependent operations are ordered, results are the sequential bits, equal layers are one subgraph.

The figure counts violations, each once: a pair of operations that depend on each other
and are not ordered; a setting, a run or a device whose result differs, that raises or hangs;
and every distinct subgraph above one.
"""

from collections.abc import Iterator
from itertools import combinations

from deepstack_harness.contract.case import Judgement
from deepstack_harness.contract.facts.ordering import (
    OnDevice,
    Operation,
    OrderingObservation,
    Recording,
    Subgraphs,
)
from deepstack_harness.contract.rules import Rule
from deepstack_harness.oracles.base import against, error

Pair = tuple[Operation, Operation, str]
"""Two operations, in the order of the host's calls, and the memory that both use and one writes."""


def judge(observation: OrderingObservation) -> Judgement:
    """How many violations; ERROR where what was measured shows nothing."""
    if missing := _unmeasured(observation):
        return error(Rule.R13, missing)
    found = list(_violations(observation))
    said = [what for _, what in found] + list(_idle(observation))
    return against(Rule.R13, sum(amount for amount, _ in found), 0, "violations", "; ".join(said))


def unordered(recording: Recording) -> list[Pair]:
    """Dependent pairs on two streams of which neither is certainly done before the other begins."""
    streams = {name: index for index, name in enumerate(recording.streams)}
    return [pair for pair in dependent(recording) if not _ordered(pair, streams)]


def dependent(recording: Recording) -> list[Pair]:
    """All pairs that use the same memory, one of them writing it; the first such memory is named."""
    return [
        (one, other, shared[0])
        for one, other in combinations(recording.operations, 2)
        if (shared := _shared(one, other))
    ]


def _shared(one: Operation, other: Operation) -> list[str]:
    uses = {*other.reads, *other.writes}
    return [
        name for name in (*one.writes, *one.reads) if name in uses and name in {*one.writes, *other.writes}
    ]


def _ordered(pair: Pair, streams: dict[str, int]) -> bool:
    one, other, _ = pair
    own = streams[one.stream]
    return one.stream == other.stream or other.clock[own] >= one.clock[own]


def _unmeasured(observation: OrderingObservation) -> str:
    if not observation.recordings:
        return "no setting was rehearsed"
    empty = [one.setting for one in observation.recordings if not one.raised and not dependent(one)]
    if empty:
        return f"{empty[0]}: no operation depends on another, nothing was put to the test"
    return "" if observation.results else "no result was compared"


def _idle(observation: OrderingObservation) -> Iterator[str]:
    """Settings with streams that were not used: in order, and not what the streams are for."""
    for recording in observation.recordings:
        unused = set(recording.streams) - {operation.stream for operation in recording.operations}
        if unused and not recording.raised:
            yield f"{recording.setting}: nothing ran on {', '.join(sorted(unused))}"


def _violations(observation: OrderingObservation) -> Iterator[tuple[int, str]]:
    for recording in observation.recordings:
        yield from _of_recording(recording)
    for result in observation.results:
        if result.different:
            said = f"{result.different} of {result.elements} elements differ from sequential"
            yield 1, f"{result.how}: {said}"
    yield from _of_subgraphs(observation.subgraphs)
    if observation.on_device:
        yield from _of_device(observation.on_device)


def _of_recording(recording: Recording) -> Iterator[tuple[int, str]]:
    where = recording.setting
    pairs = unordered(recording)
    if recording.raised:
        yield 1, f"{where}: raised {recording.raised}"
        return
    if pairs:
        one, other, memory = pairs[0]
        more = f" (and {len(pairs) - 1} more pairs)" if len(pairs) > 1 else ""
        both = f"'{one.name}' on {one.stream} and '{other.name}' on {other.stream}"
        yield len(pairs), f"{where}: nothing orders {both}, which share {memory}{more}"
    if recording.different:
        yield 1, f"{where}: {recording.different} of {recording.orders} orders give another result"
    if not recording.equal:
        yield 1, f"{where}: another result than sequential"


def _of_subgraphs(counted: tuple[Subgraphs, ...]) -> Iterator[tuple[int, str]]:
    surplus = sum(max(0, one.distinct - 1) for one in counted)
    if surplus:
        largest = max(counted, key=lambda one: one.distinct)
        yield surplus, f"{largest.layers} identical layers build {largest.distinct} distinct subgraphs, not 1"


def _of_device(seen: OnDevice) -> Iterator[tuple[int, str]]:
    if seen.ended:
        yield 1, f"{seen.device}: {seen.ended}"
    elif seen.different:
        said = f"{seen.different} of {seen.repetitions} repetitions differ from sequential"
        yield 1, f"{seen.device}: {said}, the first with {seen.first}"
