"""Requests to an engine as counts of tokens, and chunked prefill, which turns them into steps and a trace.

Every step has a budget of tokens and a number of slots. Running requests go first, in the order in which
they came. A request that decodes takes one token, another one as much of its prompt as fits. Free slots
take the next requests, so that decode steps and chunks of prompts mix. The tokens of a request have one
order: its images, its text, then its output.

Images count as Qwen3-VL's processor counts them: patches of 16 x 16 pixels are merged 2 x 2, so that 32 x
32 pixels give one token. The constants are those of the released Qwen3-VL processors; the class defaults in
transformers (patch 14) are Qwen2-VL's.
"""

import math
import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.errors import UsageError

FACTOR = 32
"""Pixels of a side of one visual token: Qwen3-VL merges 2 x 2 patches of 16 pixels."""
MIN_PIXELS = 65_536
"""The least area of an image in Qwen3-VL's processor; smaller ones are enlarged."""
MAX_PIXELS = 16_777_216
"""The largest area of an image in Qwen3-VL's processor; larger ones are reduced."""
MAX_ASPECT = 200
"""The largest ratio of the sides in Qwen3-VL's processor, which refuses others."""


def smart_resize(height: int, width: int) -> tuple[int, int]:
    """Return the (height, width) in pixels to which the processor scales an image.

    Both are multiples of 32, near the image's size and aspect, with an area between 65,536 and 16,777,216
    pixels. Raises `UsageError` for a side below 1 pixel, and for a side more than 200 times the other.
    """
    if min(height, width) < 1:
        raise UsageError(f"an image of {height} x {width} pixels has no area: sides are 1 pixel or more")
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise UsageError(
            f"an image of {height} x {width} pixels is too narrow: Qwen3-VL takes up to {MAX_ASPECT} to 1"
        )
    rounded = round(height / FACTOR) * FACTOR, round(width / FACTOR) * FACTOR
    if math.prod(rounded) > MAX_PIXELS:
        shrink = math.sqrt(height * width / MAX_PIXELS)
        return math.floor(height / shrink / FACTOR) * FACTOR, math.floor(width / shrink / FACTOR) * FACTOR
    if math.prod(rounded) < MIN_PIXELS:
        grow = math.sqrt(MIN_PIXELS / (height * width))
        return math.ceil(height * grow / FACTOR) * FACTOR, math.ceil(width * grow / FACTOR) * FACTOR
    return rounded


@dataclass(frozen=True)
class Request:
    """A prompt and its output.

    `images` are (height, width) in pixels, empty for a text-only request. `text_tokens` counts the prompt
    without the images, `decode_tokens` the generated tokens that go through the decoder, one per step.
    Making one raises `UsageError` for an id that a trace cannot have, a negative count, an image without
    area, and an empty prompt.
    """

    id: str
    images: tuple[tuple[int, int], ...]
    text_tokens: int
    decode_tokens: int

    def __post_init__(self) -> None:
        """Check the counts; raises `UsageError` for a request that no engine can be sent."""
        if not re.fullmatch(r"[\w.-]+", self.id):
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
            return sum(math.prod(smart_resize(*size)) // FACTOR**2 for size in self.images)
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


def pad_to_capture(tokens: int) -> int:
    """Return the next capture size, or `tokens` itself above the largest one and for 0."""
    return next((size for size in CAPTURE_SIZES if tokens <= size), tokens) if tokens else 0


def pad_to_multiple(tokens: int, ranks: int) -> int:
    """Return the next multiple of `ranks`, which share a step equally under sequence parallelism.

    Raises `UsageError` for less than one rank.
    """
    if ranks < 1:
        raise UsageError(f"{ranks} ranks cannot share a step: sequence parallelism has 1 rank or more")
    return -(-tokens // ranks) * ranks


BUDGET = 512
"""Tokens of a step: small, so that prompts are split and a case plays in milliseconds."""
SLOTS = 4
"""Requests of a step: several, so that prompts and decodes share one."""
TEXT_EVERY = 4
"""One request of so many has no image: steps without a payload come between those with one."""
TAIL_DECODES = 8
"""Output tokens of a request: enough decodes after the last image to read a row that was not cleared."""


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


def schedule(requests: Iterable[Request], budget: int = BUDGET, slots: int = SLOTS) -> list[ScheduledStep]:
    """Return the steps in which an engine computes `requests`, which all wait from the beginning.

    `budget` is in tokens per step, `slots` in requests per step. Raises `UsageError` for less than 1 of
    either, and for two requests with one id.
    """
    waiting = deque(requests)
    _refuse_equal_ids(waiting)
    if min(budget, slots) < 1:
        raise UsageError(f"budget {budget} and slots {slots} schedule nothing: both must be 1 or more")
    done: Counter[str] = Counter()
    running: list[Request] = []
    steps: list[ScheduledStep] = []
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.popleft())
        chunks: list[Chunk] = []
        left = budget
        for request in running:
            start = done[request.id]
            if tokens := min(left, max(request.prompt_tokens - start, 1)):
                visual = min(max(request.visual_tokens - start, 0), tokens)
                chunks.append(Chunk(request.id, start, tokens, visual))
                done[request.id] += tokens
                left -= tokens
        steps.append(ScheduledStep(tuple(chunks)))
        running = [request for request in running if done[request.id] < request.tokens]
    return steps


def _refuse_equal_ids(requests: Iterable[Request]) -> None:
    for name, count in Counter(request.id for request in requests).items():
        if count > 1:
            raise UsageError(f"two requests have the id '{name}': rows could not be told apart")


def serve(requests: Sequence[Request], budget: int = BUDGET, slots: int = SLOTS) -> list[ScheduledStep]:
    """Return the steps of an evaluation: the requests with text-only ones between, then one by itself.

    Each fourth request is followed by its question without images, with `.text` at the end of its id. The
    last one repeats the first request with images under the id `tail`. Its decode steps have one token,
    which are rare otherwise. Raises what `schedule` raises, and `UsageError` for no requests.
    """
    if not requests:
        raise UsageError("a workload of no requests has no steps: give 1 request or more")
    mixed: list[Request] = []
    for number, request in enumerate(requests, start=1):
        mixed.append(request)
        if number % TEXT_EVERY == 0 and request.images and request.text_tokens:
            mixed.append(replace(request, id=f"{request.id}.text", images=()))
    last = next((request for request in requests if request.images), requests[0])
    tail = replace(last, id="tail", decode_tokens=TAIL_DECODES)
    _refuse_equal_ids([*mixed, tail])
    return [*schedule(mixed, budget, slots), *schedule([tail], budget, slots)]


def to_trace(steps: Iterable[ScheduledStep], capacity: int = BUDGET) -> Trace:
    """Return the lifecycle operations of an engine without captured graphs that computes `steps`.

    The first is the dummy run of `capacity` tokens, with nothing set. Each step then is `set N`, only if the
    step has visual tokens, and `forward N`. The owner of a payload is named `a+b`, after the requests of the
    step.
    """
    operations = [Step(Op.PROFILE, capacity)]
    for step in steps:
        if step.visual:
            operations.append(Step(Op.SET, step.tokens, request="+".join(step.requests)))
        operations.append(Step(Op.FORWARD, step.tokens))
    return Trace(capacity, tuple(operations))
