"""Chunked prefill as engines do it: requests become steps, and steps become a trace.

Every step has a budget of tokens and a number of slots.  Running requests go first, in the order in which
they came.  A request that decodes takes one token, another one as much of its prompt as fits.  Free slots
take the next requests, so that decode steps and chunks of prompts mix.

The tokens of a request have one order: its images, its text, then its answer.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.errors import UsageError
from deepstack_harness.workload.padding import pad_to_capture
from deepstack_harness.workload.requests import Request

BUDGET = 512
SLOTS = 4
TEXT_EVERY = 4
TAIL_DECODES = 8


@dataclass(frozen=True)
class Chunk:
    """Tokens [start, start + tokens) of one request in one step; `visual` of them are of its images."""

    request: str
    start: int
    tokens: int
    visual: int


@dataclass(frozen=True)
class ScheduledStep:
    """A step of the engine: chunks of up to `slots` requests that are computed at once."""

    chunks: tuple[Chunk, ...]

    @property
    def tokens(self) -> int:
        """N, all tokens of the step, unpadded."""
        return sum(chunk.tokens for chunk in self.chunks)

    @property
    def visual(self) -> bool:
        """True if the step has visual tokens, so that the engine sets the buffer."""
        return any(chunk.visual for chunk in self.chunks)

    @property
    def requests(self) -> tuple[str, ...]:
        """Ids of the requests, in the order of the rows."""
        return tuple(chunk.request for chunk in self.chunks)


@dataclass
class _Running:
    request: Request
    done: int = 0

    @property
    def wanted(self) -> int:
        """Tokens that could be computed next: the rest of the prompt, or one of the answer."""
        left = self.request.tokens - self.done
        return min(left, max(self.request.prompt_tokens - self.done, 1))

    def take(self, tokens: int) -> Chunk:
        """Take the next `tokens` of this request."""
        visual = min(max(self.request.visual_tokens - self.done, 0), tokens)
        chunk = Chunk(self.request.id, self.done, tokens, visual)
        self.done += tokens
        return chunk


def schedule(requests: Iterable[Request], budget: int = BUDGET, slots: int = SLOTS) -> list[ScheduledStep]:
    """Return the steps in which an engine computes `requests`, which all wait from the beginning.

    `budget` is in tokens per step, `slots` in requests per step.  Raises `UsageError` for less than 1 of
    either, and for two requests with one id.
    """
    waiting = deque(map(_Running, _distinct(requests)))
    if min(budget, slots) < 1:
        raise UsageError(f"budget {budget} and slots {slots} schedule nothing: both must be 1 or more")
    running: list[_Running] = []
    steps: list[ScheduledStep] = []
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.popleft())
        steps.append(_step(running, budget))
        running = [one for one in running if one.wanted]
    return steps


def _step(running: list[_Running], budget: int) -> ScheduledStep:
    chunks: list[Chunk] = []
    for one in running:
        if tokens := min(one.wanted, budget):
            chunks.append(one.take(tokens))
            budget -= tokens
    return ScheduledStep(tuple(chunks))


def _distinct(requests: Iterable[Request]) -> list[Request]:
    known: dict[str, Request] = {}
    for request in requests:
        if request.id in known:
            raise UsageError(f"two requests have the id '{request.id}': rows could not be told apart")
        known[request.id] = request
    return list(known.values())


def mix_text(requests: Iterable[Request], every: int = TEXT_EVERY) -> list[Request]:
    """Return the requests with each `every`-th one followed by its question without images.

    The text-only request has the same id with `.text` at the end.  Raises `UsageError` for `every`
    below 1.
    """
    if every < 1:
        raise UsageError(f"every {every}-th request cannot be asked again: give 1 or more")
    mixed: list[Request] = []
    for number, request in enumerate(requests, start=1):
        mixed.append(request)
        if number % every == 0 and request.images and request.text_tokens:
            mixed.append(replace(request, id=f"{request.id}.text", images=()))
    return mixed


def serve(requests: Sequence[Request], budget: int = BUDGET, slots: int = SLOTS) -> list[ScheduledStep]:
    """Return the steps of an evaluation: the requests with text-only ones between, then one request alone.

    The last one repeats the first request with images under the id `tail`.  Its decode steps have one
    token, which are rare otherwise.  Raises what `schedule` raises, and `UsageError` for no requests.
    """
    if not requests:
        raise UsageError("a workload of no requests has no steps: give 1 request or more")
    last = next((request for request in requests if request.images), requests[0])
    tail = replace(last, id="tail", decode_tokens=TAIL_DECODES)
    *mixed, tail = _distinct([*mix_text(requests), tail])
    return [*schedule(mixed, budget, slots), *schedule([tail], budget, slots)]


def to_trace(
    steps: Iterable[ScheduledStep], capacity: int = BUDGET, pad: Callable[[int], int] = pad_to_capture
) -> Trace:
    """Return the lifecycle operations of an engine that computes `steps`.

    The first is the dummy run of `capacity` tokens, with nothing set.  Each step then is `set N`
    (unpadded, and only if the step has visual tokens) and `forward P`, where P is `pad(N)`, which may
    exceed the capacity.  The owner of a payload is named `a+b`, after the requests of the step.
    """
    operations = [Step(Op.PROFILE, capacity)]
    for step in steps:
        if step.visual:
            operations.append(Step(Op.SET, step.tokens, request="+".join(step.requests)))
        operations.append(Step(Op.FORWARD, pad(step.tokens)))
    return Trace(capacity, tuple(operations))


def distinct_counts(steps: Iterable[ScheduledStep]) -> int:
    """Return how many different token counts (unpadded) the steps have."""
    return len({step.tokens for step in steps})
