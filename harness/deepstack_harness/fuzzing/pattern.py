"""What a trace has in common with others that show the same: its operations, and how their counts relate."""

from collections.abc import Iterable, Iterator, Sequence

from deepstack_harness.contract.trace import RUNS_DECODER, Op, Step, Trace

Pattern = tuple[str, ...]
_TO_N = frozenset({"<N", "=N", ">N"})


def pattern_of(trace: Trace) -> Pattern:
    """One word for each step: the operation, and its count against N and the capacity.

    `set 9; set 3; get 16` at capacity 16 is `set`, `set <N`, `get >N`.
    """
    return tuple(_words(trace.capacity, trace.steps))


def contains(pattern: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the words of `wanted` come in `pattern` in this order, whatever stands between.

    A word that says nothing of N, because nothing was set, stands for any relation to it.
    """
    rest = iter(pattern)
    return all(any(_is(word, wish) for word in rest) for wish in wanted)


def loosely(pattern: Sequence[str]) -> Pattern:
    """Without what is said of N and of 0: one keeps further away from what ends a process."""
    return tuple(" ".join(part for part in word.split() if part not in _TO_N | {"=0"}) for word in pattern)


def _is(word: str, wish: str) -> bool:
    return word == wish or (not _TO_N & {*wish.split()} and _without_n(word) == wish)


def _without_n(word: str) -> str:
    return " ".join(part for part in word.split() if part not in _TO_N)


def _words(capacity: int, steps: Iterable[Step]) -> Iterator[str]:
    live = 0
    for step in steps:
        yield " ".join([str(step.op), *_relations(step, live, capacity)])
        if step.op is Op.SET and not _deviates(step):
            live = step.tokens
        elif step.op is Op.CLEAR or step.op in RUNS_DECODER:
            live = 0 if step.tokens >= 0 else live
        if step.op is Op.RESIZE and step.tokens >= live:
            capacity = step.tokens
        capacity = max(capacity, 0 if step.op is Op.CLEAR else step.tokens)


def _relations(step: Step, live: int, capacity: int) -> Iterator[str]:
    if _deviates(step):
        yield "misshapen"
    if step.tokens < 0:
        yield "<0"
    elif step.tokens == 0:
        yield "=0"
    elif live:
        yield "<N" if step.tokens < live else "=N" if step.tokens == live else ">N"
    if step.tokens > capacity:
        yield ">capacity"


def _deviates(step: Step) -> bool:
    return (step.levels, step.hidden) != (None, None)
