"""Oracles of an engine's code near the buffer: placeholder ranges (R12) and dual streams (R13).

R12 holds where every result equals a plain count, for all masks of up to six positions. R13 counts
violations, each once: a pair of operations that depend on each other and are not ordered, as vector clocks
have it; a setting, a run or a device whose result differs, that raises or hangs; and every distinct subgraph
above one.
"""

from collections.abc import Iterator
from itertools import combinations, combinations_with_replacement, product

from deepstack_harness.contract.facts import (
    Bounds,
    Operation,
    OrderingObservation,
    RangeObservation,
    Recording,
)
from deepstack_harness.contract.oracles.trace_audit import error, judge_figure, passed
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import FaultKind, Judgement

Pair = tuple[Operation, Operation, str]
"""Two operations, in the order of the host's calls, and the memory that both use and one writes."""


def judge_ordering(observation: OrderingObservation) -> Judgement:
    """Count violations; ERROR where what was measured shows nothing."""
    if missing := _unmeasured(observation):
        return error(Rule.ORDERING, missing)
    violations = list(_violations(observation))
    words = [detail for _, detail, _ in violations]
    for recording in observation.recordings:
        # A stream on which nothing ran is in order, but of no use.
        unused = set(recording.streams) - {operation.stream for operation in recording.operations}
        if unused and not recording.raised:
            words.append(f"{recording.setting}: nothing ran on {', '.join(sorted(unused))}")
    amount, detail = sum(amount for amount, *_ in violations), "; ".join(words)
    chances = len(observation.recordings) + len(observation.results)
    if not violations:
        return passed(Rule.ORDERING, 0, 0, "violations", detail, chances=chances)
    return judge_figure(
        Rule.ORDERING, amount, 0, "violations", detail, shape=violations[0][2], chances=chances
    )


def unordered(recording: Recording) -> list[Pair]:
    """Return dependent pairs on two streams of which neither is certainly done before the other begins."""
    streams = {name: index for index, name in enumerate(recording.streams)}
    pairs = []
    for first, second, shared in dependent(recording):
        own = streams[first.stream]
        if first.stream != second.stream and second.clock[own] < first.clock[own]:
            pairs.append((first, second, shared))
    return pairs


def dependent(recording: Recording) -> list[Pair]:
    """Return all pairs that use the same memory, one of them writing it; the first such memory is named."""
    pairs = []
    for first, second in combinations(recording.operations, 2):
        written, used = {*first.writes, *second.writes}, {*second.reads, *second.writes}
        shared = [name for name in (*first.writes, *first.reads) if name in used and name in written]
        pairs += [(first, second, shared[0])] if shared else []
    return pairs


def _unmeasured(observation: OrderingObservation) -> str:
    if not observation.recordings:
        return "no setting was rehearsed"
    empty = [
        recording.setting
        for recording in observation.recordings
        if not recording.raised and not dependent(recording)
    ]
    if empty:
        return f"{empty[0]}: no operation depends on another, nothing was put to the test"
    return "" if observation.results else "no result was compared"


_Violation = tuple[int, str, FaultKind]
"""How many, in words, and the shape."""


def _violations(observation: OrderingObservation) -> Iterator[_Violation]:
    for recording in observation.recordings:
        yield from _of_recording(recording)
    for result in observation.results:
        if result.different:
            differ = f"{result.different} of {result.elements} elements differ from sequential"
            yield 1, f"{result.how}: {differ}", FaultKind.OUTPUT
    surplus = sum(max(0, subgraphs.distinct - 1) for subgraphs in observation.subgraphs)
    if surplus:
        largest = max(observation.subgraphs, key=lambda subgraphs: subgraphs.distinct)
        detail = f"{largest.layers} identical layers build {largest.distinct} distinct subgraphs, not 1"
        yield surplus, detail, FaultKind.SUBGRAPHS
    seen = observation.on_device
    if seen and seen.ended:
        yield 1, f"{seen.device}: {seen.ended}", FaultKind.RAISED
    elif seen and seen.different:
        words = f"{seen.different} of {seen.repetitions} repetitions differ from sequential"
        yield 1, f"{seen.device}: {words}, the first with {seen.first}", FaultKind.OUTPUT


def _of_recording(recording: Recording) -> Iterator[_Violation]:
    where = recording.setting
    pairs = unordered(recording)
    if recording.raised:
        yield 1, f"{where}: raised {recording.raised}", FaultKind.RAISED
        return
    if pairs:
        first, second, memory = pairs[0]
        more = f" (and {len(pairs) - 1} more pairs)" if len(pairs) > 1 else ""
        both = f"'{first.name}' on {first.stream} and '{second.name}' on {second.stream}"
        detail = f"{where}: nothing orders {both}, which share {memory}{more}"
        yield len(pairs), detail, FaultKind.UNORDERED
    if not recording.equal:
        yield 1, f"{where}: another result than sequential", FaultKind.OUTPUT


MOST_POSITIONS = 6
"""Positions of the longest placeholder, with 64 masks: runs, gaps and both edges are among them."""


def placeholders() -> Iterator[tuple[str | None, int]]:
    """Yield every placeholder of up to six positions: (its mask or None for no mask, its length)."""
    for length in range(MOST_POSITIONS + 1):
        yield None, length
        for bits in product("01", repeat=length):
            yield "".join(bits), length


def bounds_within(length: int) -> list[Bounds]:
    """Return every (start, end) with 0 <= start <= end <= length."""
    return list(combinations_with_replacement(range(length + 1), 2))


def judge_ranges(observation: RangeObservation) -> Judgement:
    """Compare with a plain count; ERROR where a placeholder or one of its ranges was left out."""
    answers = {(seen.mask, seen.length): seen for seen in observation.placeholders}
    wrong: list[tuple[FaultKind, str]] = []
    chances = 0
    for mask, length in placeholders():
        bounds, seen = bounds_within(length), answers.get((mask, length))
        if seen is None or len(seen.ranges) != len(bounds):
            return error(Rule.RANGES, f"never called: {_placeholder(mask, length)}")
        every = "1" * length if mask is None else mask
        if seen.embeds != every.count("1"):
            said = f"get_num_embeds() gives {seen.embeds}, {every.count('1')} is right"
            wrong.append((_shape(mask, None), f"{_placeholder(mask, length)}: {said}"))
        for (start, end), answer in zip(bounds, seen.ranges, strict=True):
            right, chances = (every[:start].count("1"), every[:end].count("1")), chances + 1
            if answer != right:
                said = f"start {start}, end {end}: gives {answer}, {right} is right"
                wrong.append((_shape(mask, end), f"{_placeholder(mask, length)}, {said}"))
    if not wrong:
        return passed(Rule.RANGES, 0, 0, "wrong answers", chances=chances)
    first = dict(reversed(wrong))  # of each shape
    more = f" (and {len(wrong) - len(first)} more)" if len(wrong) > len(first) else ""
    detail = "; ".join(reversed(first.values())) + more
    return judge_figure(
        Rule.RANGES, len(wrong), 0, "wrong answers", detail, shape=wrong[0][0], chances=chances
    )


def _shape(mask: str | None, end: int | None) -> FaultKind:
    """Return the known fault that a wrong result resembles."""
    if mask == "":
        return FaultKind.EMPTY_MASK
    return FaultKind.END_ZERO if end == 0 else FaultKind.COUNT


def _placeholder(mask: str | None, length: int) -> str:
    if mask is None:
        return f"length {length} without a mask"
    return f"mask {mask} ({length})" if mask else "an empty mask"
