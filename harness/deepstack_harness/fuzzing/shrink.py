"""The smallest trace that still shows a finding: steps dropped, counts and the capacity lowered.

hypothesis would shrink its own choices; the reads that the machine puts behind
every step are not among them, and a trace that ended its process has to be shrunk
from outside.  So traces are shrunk as what they are.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.errors import UsageError

Shows = Callable[[Trace], bool]
"""Whether a trace still shows the finding."""


def shrink(trace: Trace, shows: Shows, *, keep: int = 0, plays: int = 500) -> Trace:
    """Lower `trace` while `shows` says so, in at most `plays` tries; its first `keep` steps stay.

    `shows` is asked about no trace twice.
    """
    tried = {str(trace)}
    progress = True
    while progress:
        progress = False
        for smaller in _candidates(trace, keep):
            if len(tried) > plays:
                return trace
            if str(smaller) in tried:
                continue
            tried.add(str(smaller))
            if shows(smaller):
                trace, progress = smaller, True
                break
    return trace


def _candidates(trace: Trace, keep: int) -> Iterator[Trace]:
    """Smaller traces, the greatest reductions first."""
    yield from _without_reads(trace, keep)
    size = len(trace.steps) - keep
    while size:
        for start in range(len(trace.steps) - size, keep - 1, -1):
            yield from _made(trace.capacity, trace.steps[:start] + trace.steps[start + size :])
        size //= 2
    yield from _plainer(trace, keep)
    yield from _with_smaller_capacity(trace)
    yield from _with_smaller_counts(trace, keep)


def _without_reads(trace: Trace, keep: int) -> Iterator[Trace]:
    rest = trace.steps[keep:-1]
    acting = tuple(step for step in rest if step.op is not Op.GET)
    if len(acting) < len(rest):
        yield from _made(trace.capacity, (*trace.steps[:keep], *acting, trace.steps[-1]))


def _plainer(trace: Trace, keep: int) -> Iterator[Trace]:
    """Less that is unusual, and half of a step of the engine."""
    for place, step in enumerate(trace.steps[keep:], keep):
        if step.spans is not None or step.request is not None:
            yield _with_step(trace, place, replace(step, spans=None, request=None))
        if step.op in (Op.FORWARD, Op.PROFILE):
            yield _with_step(trace, place, replace(step, op=Op.GET))
            yield _with_step(trace, place, replace(step, op=Op.CLEAR))


def _with_smaller_capacity(trace: Trace) -> Iterator[Trace]:
    """Less room; steps that are kept and counts that stood at or above the capacity go along."""
    for capacity in dict.fromkeys((1, 2, 4, trace.capacity // 2, trace.capacity - 1)):
        if 0 < capacity < trace.capacity:
            less = trace.capacity - capacity
            moved = [
                _counted(step, step.tokens - less) if step.tokens >= trace.capacity else step
                for step in trace.steps
            ]
            if all(step is not None for step in moved):
                yield Trace(capacity, tuple(step for step in moved if step is not None))


def _with_smaller_counts(trace: Trace, keep: int) -> Iterator[Trace]:
    for place, step in enumerate(trace.steps[keep:], keep):
        # A count of 0 is a case of its own: it is kept, and nothing is lowered to it.
        for tokens in dict.fromkeys((1, 2, step.tokens // 2, step.tokens - 1)):
            smaller = _counted(step, tokens) if 0 < tokens < step.tokens else None
            if smaller is not None:
                yield _with_step(trace, place, smaller)


def _counted(step: Step, tokens: int) -> Step | None:
    try:
        return replace(step, tokens=tokens)
    except UsageError:  # its spans would lie outside
        return None


def _with_step(trace: Trace, place: int, step: Step) -> Trace:
    return Trace(trace.capacity, (*trace.steps[:place], step, *trace.steps[place + 1 :]))


def _made(capacity: int, steps: tuple[Step, ...]) -> Iterator[Trace]:
    if steps:
        yield Trace(capacity, steps)
