"""Requests to an engine as counts of tokens, and chunked prefill, which turns them into steps and a trace.

Every step has a budget of tokens and a number of slots.  Running requests go first, in the order in which
they came.  A request that decodes takes one token, another one as much of its prompt as fits.  Free slots
take the next requests, so that decode steps and chunks of prompts mix.  The tokens of a request have one
order: its images, its text, then its answer.

Images count as Qwen3-VL's processor counts them: patches of 16 x 16 pixels are merged 2 x 2, so that 32 x
32 pixels give one token.  The constants are those of the released Qwen3-VL processors; the class defaults in
transformers (patch 14) are Qwen2-VL's.  Steps are padded as engines pad them: to the sizes of captured
graphs, or to a multiple of the ranks.
"""

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.errors import UsageError

FACTOR = 32
MIN_PIXELS = 65_536
MAX_PIXELS = 16_777_216
MAX_ASPECT = 200


def smart_resize(height: int, width: int) -> tuple[int, int]:
    """Return the (height, width) in pixels to which the processor scales an image.

    Both are multiples of 32, near the image's size and aspect, with an area between 65,536 and 16,777,216
    pixels.  Raises `UsageError` for a side below 1 pixel, and for a side more than 200 times the other.
    """
    _check_sides(height, width)
    rounded = round(height / FACTOR) * FACTOR, round(width / FACTOR) * FACTOR
    if math.prod(rounded) > MAX_PIXELS:
        shrink = math.sqrt(height * width / MAX_PIXELS)
        return _floor(height / shrink), _floor(width / shrink)
    if math.prod(rounded) < MIN_PIXELS:
        grow = math.sqrt(MIN_PIXELS / (height * width))
        return _ceil(height * grow), _ceil(width * grow)
    return rounded


def visual_tokens(height: int, width: int) -> int:
    """Return the tokens of an image of `height` x `width` pixels; raises what `smart_resize` raises."""
    resized_height, resized_width = smart_resize(height, width)
    return (resized_height // FACTOR) * (resized_width // FACTOR)


def _check_sides(height: int, width: int) -> None:
    if min(height, width) < 1:
        raise UsageError(f"an image of {height} x {width} pixels has no area: sides are 1 pixel or more")
    if max(height, width) / min(height, width) > MAX_ASPECT:
        raise UsageError(
            f"an image of {height} x {width} pixels is too narrow: Qwen3-VL takes up to {MAX_ASPECT} to 1"
        )


def _floor(side: float) -> int:
    return math.floor(side / FACTOR) * FACTOR


def _ceil(side: float) -> int:
    return math.ceil(side / FACTOR) * FACTOR


_ID = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Request:
    """A prompt and its answer.

    `images` are (height, width) in pixels, empty for a text-only request.  `text_tokens` counts the prompt
    without the images, `decode_tokens` the answer tokens that go through the decoder, one per step.
    Making one raises `UsageError` for an id that a trace cannot carry, a negative count, an image without
    area, and an empty prompt.
    """

    id: str
    images: tuple[tuple[int, int], ...]
    text_tokens: int
    decode_tokens: int

    def __post_init__(self) -> None:
        """Check the counts; raises `UsageError` for a request that no engine can be sent."""
        if not _ID.fullmatch(self.id):
            raise UsageError(f"request id '{self.id}' may have only letters, digits, '_', '.' and '-'")
        for name in ("text_tokens", "decode_tokens"):
            if (count := getattr(self, name)) < 0:
                raise UsageError(f"request '{self.id}': {name} is {count}, it should be 0 or more")
        if not self.prompt_tokens:
            raise UsageError(f"request '{self.id}' has neither images nor text: a prompt has 1 token or more")

    @property
    def visual_tokens(self) -> int:
        """Tokens of all images together, as Qwen3-VL's processor counts them."""
        try:
            return sum(visual_tokens(height, width) for height, width in self.images)
        except UsageError as error:
            raise UsageError(f"request '{self.id}': {error}") from None

    @property
    def prompt_tokens(self) -> int:
        """Visual and text tokens, which the prefill computes."""
        return self.visual_tokens + self.text_tokens

    @property
    def tokens(self) -> int:
        """All tokens that go through the decoder."""
        return self.prompt_tokens + self.decode_tokens


CAPTURE_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""vLLM's default sizes in tokens (`max_cudagraph_capture_size` in its compilation settings)."""


def unpadded(tokens: int) -> int:
    """Return `tokens` unchanged, as an engine without captured graphs does."""
    return _not_negative(tokens)


def pad_to_capture(tokens: int, largest: int = CAPTURE_SIZES[-1]) -> int:
    """Return the next capture size up to `largest`, or `tokens` itself above `largest` and for 0.

    An engine with few slots captures only the sizes of its decode steps, so that `largest` is twice the
    slots and prefill runs unpadded.  Raises `UsageError` for a negative count.
    """
    fitting = (size for size in CAPTURE_SIZES if _not_negative(tokens) <= size <= largest)
    return next(fitting, tokens) if tokens else 0


def pad_to_multiple(tokens: int, ranks: int) -> int:
    """Return the next multiple of `ranks`, which share a step equally under sequence parallelism.

    Raises `UsageError` for a negative count and for less than one rank.
    """
    if ranks < 1:
        raise UsageError(f"{ranks} ranks cannot share a step: sequence parallelism has 1 rank or more")
    return -(-_not_negative(tokens) // ranks) * ranks


def _not_negative(tokens: int) -> int:
    if tokens < 0:
        raise UsageError(f"a step of {tokens} tokens cannot be padded: counts are 0 or more")
    return tokens


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
    def next_tokens(self) -> int:
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
    waiting = deque(map(_Running, _with_distinct_ids(requests)))
    if min(budget, slots) < 1:
        raise UsageError(f"budget {budget} and slots {slots} schedule nothing: both must be 1 or more")
    running: list[_Running] = []
    steps: list[ScheduledStep] = []
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.popleft())
        steps.append(_schedule_step(running, budget))
        running = [request for request in running if request.next_tokens]
    return steps


def _schedule_step(running: list[_Running], budget: int) -> ScheduledStep:
    chunks: list[Chunk] = []
    for request in running:
        if tokens := min(request.next_tokens, budget):
            chunks.append(request.take(tokens))
            budget -= tokens
    return ScheduledStep(tuple(chunks))


def _with_distinct_ids(requests: Iterable[Request]) -> list[Request]:
    by_id: dict[str, Request] = {}
    for request in requests:
        if request.id in by_id:
            raise UsageError(f"two requests have the id '{request.id}': rows could not be told apart")
        by_id[request.id] = request
    return list(by_id.values())


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
    *mixed, tail = _with_distinct_ids([*mix_text(requests), tail])
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
