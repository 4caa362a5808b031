"""Placeholder ranges (R12): variants of ours, the class of a source, what both are asked, and what they cost.

A multimodal item takes `length` positions of a prompt from `offset` on; a boolean mask `is_embed`
(length,) says which of them receive an embedding, None means all (`PlaceholderRange`,
vllm/multimodal/inputs.py).

The contract: `get_num_embeds()` counts the positions that do, and `get_embeds_indices_in_range(start,
end)` counts those before `start` and before `end`, for 0 <= start <= end <= length.  Other arguments
are the caller's mistake: they raise, and never answer.  A class is asked about every mask of up to 6
positions with every range, and about longer ones of the kinds that processors make, drawn from a
fixed seed.

The review of vLLM #40143 found two faults, which vLLM 0.19.1 has both, over a tensor: `Empty*` reads
index -1 of an empty mask, and in `Wraps*` `end_idx = 0` becomes index -1, which is the last.

The cost is that of a mean scheduling step.  In every step vLLM's scheduler asks each feature of each
running request how many embeddings it has, until one begins behind the step, and those that the step
reaches which of them (`_try_schedule_encoder_inputs`, vllm/v1/core/sched/scheduler.py).  The workload
`geo3k` has the requests of `catalogue.workload`, one image each between two marks that receive no
embedding.  (Qwen3-VL's own images have no mask in vLLM 0.33.0, and cost nothing in either revision.)
"""

import ast
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement, product
from time import process_time
from timeit import Timer
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from typing_extensions import TypeIs, override

from deepstack_harness.audit.cut_systems import RANGES_CLASS, RANGES_SINCE, range_file
from deepstack_harness.catalogue.geometry3k import MARKS_PER_IMAGE, load_workload
from deepstack_harness.catalogue.registry import PLACEHOLDER_RANGES
from deepstack_harness.catalogue.workload import Request, ScheduledStep, serve, visual_tokens
from deepstack_harness.contract.facts import (
    Bounds,
    RangeAnswer,
    RangeObservation,
    RangeQuestions,
    SchedulingCost,
    SystemSubject,
)
from deepstack_harness.engines.cut_model import define_name, show_in_tracebacks
from deepstack_harness.engines.extract import extract
from deepstack_harness.engines.syntax import class_named
from deepstack_harness.errors import NotMeasured, UsageError
from deepstack_harness.sources.source import Source


class PlaceholderRange(Protocol):
    """The part of vLLM's class that a scheduler asks."""

    @property
    def offset(self) -> int:
        """The first position in the prompt."""
        ...

    @property
    def length(self) -> int:
        """Positions that it takes."""
        ...

    def get_num_embeds(self) -> int:
        """Count its positions that receive an embedding."""
        ...

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int, /) -> tuple[int, int]:
        """Return the first and the one behind the last embedding of positions [start_idx, end_idx)."""
        ...


KEPT = "embeds_cumsum"
"""Where vLLM's class and ours keep the cumulative sum, None without a mask."""

MakeRange = Callable[[int, int, Tensor | None], PlaceholderRange]
"""How one is made: offset, length, and `is_embed` or None."""


@dataclass(frozen=True)
class _Span:
    """Span of a placeholder; `is_embed` is boolean, of shape (length,)."""

    offset: int
    length: int
    is_embed: Tensor | None = None


class TensorRange(_Span):
    """Up to vLLM 0.19.1, its two faults mended: the cumulative sum stays a tensor, indexed at every call."""

    @cached_property
    def embeds_cumsum(self) -> Tensor | None:
        """Embeddings up to each position, that one included: int64 (length,)."""
        return None if self.is_embed is None else self.is_embed.cumsum(dim=0)

    def get_num_embeds(self) -> int:
        """See `PlaceholderRange`."""
        if self.embeds_cumsum is None:
            return self.length
        # Not asked of the tensor: that would be a call into torch more than vLLM 0.19.1 makes.
        return int(self.embeds_cumsum[-1]) if self.length else 0

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        """See `PlaceholderRange`."""
        if self.embeds_cumsum is None:
            return start_idx, end_idx
        start = int(self.embeds_cumsum[start_idx - 1]) if start_idx > 0 else 0
        end = int(self.embeds_cumsum[end_idx - 1]) if end_idx > 0 else 0
        return start, end


class ListRange(_Span):
    """From vLLM 0.20.0 on (#40143): the cumulative sum becomes a Python list, once."""

    @cached_property
    def embeds_cumsum(self) -> list[int] | None:
        """Embeddings up to each position, that one included."""
        return None if self.is_embed is None else self.is_embed.cumsum(dim=0).tolist()

    def get_num_embeds(self) -> int:
        """See `PlaceholderRange`."""
        if self.embeds_cumsum is None:
            return self.length
        return self.embeds_cumsum[-1] if self.embeds_cumsum else 0

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        """See `PlaceholderRange`."""
        if self.embeds_cumsum is None:
            return start_idx, end_idx
        start = self.embeds_cumsum[start_idx - 1] if start_idx > 0 else 0
        end = self.embeds_cumsum[end_idx - 1] if end_idx > 0 else 0
        return start, end


class ReferenceRange(ListRange):
    """Range that keeps the whole contract: arguments outside the placeholder raise `IndexError`."""

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        """See `PlaceholderRange`."""
        if not 0 <= start_idx <= end_idx <= self.length:
            raise IndexError(
                f"range [{start_idx}, {end_idx}) lies outside a placeholder of {self.length} positions: "
                "0 <= start <= end <= length"
            )
        return super().get_embeds_indices_in_range(start_idx, end_idx)


class EmptyTensorRange(TensorRange):
    """Tensor range with a fault: it counts the embeddings of an empty mask by its last entry."""

    def get_num_embeds(self) -> int:
        """Return the last entry of the sum; raise `IndexError` for an empty mask."""
        return self.length if self.embeds_cumsum is None else int(self.embeds_cumsum[-1])


class EmptyListRange(ListRange):
    """List range with a fault: it counts the embeddings of an empty mask by its last entry."""

    def get_num_embeds(self) -> int:
        """Return the last entry of the sum; raise `IndexError` for an empty mask."""
        return self.length if self.embeds_cumsum is None else self.embeds_cumsum[-1]


class WrapsTensorRange(TensorRange):
    """Tensor range with a fault: it looks for what lies before position 0 at the end."""

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        """Return the embeddings of a span; wrong where `end_idx` is 0."""
        if self.embeds_cumsum is None:
            return start_idx, end_idx
        start = int(self.embeds_cumsum[start_idx - 1]) if start_idx > 0 else 0
        return start, int(self.embeds_cumsum[end_idx - 1])


class WrapsListRange(ListRange):
    """List range with a fault: it looks for what lies before position 0 at the end."""

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        """Return the embeddings of a span; wrong where `end_idx` is 0."""
        if self.embeds_cumsum is None:
            return start_idx, end_idx
        start = self.embeds_cumsum[start_idx - 1] if start_idx > 0 else 0
        return start, self.embeds_cumsum[end_idx - 1]


class FaultyTensorRange(EmptyTensorRange, WrapsTensorRange):
    """Both faults, as vLLM 0.16.0 .. 0.19.1 have them."""


class FaultyListRange(EmptyListRange, WrapsListRange):
    """Both faults: the first form of #40143."""


def range_named(name: str) -> MakeRange:
    """Return what makes the placeholder ranges of a variant; raises `UsageError` for an unknown name."""
    return PLACEHOLDER_RANGES.load(name, _makes_ranges, "a class or function that makes ranges")


def _makes_ranges(named: object) -> TypeIs[MakeRange]:
    return callable(named)


_ASKED = ("get_num_embeds", "get_embeds_indices_in_range")


@dataclass(frozen=True)
class BoundRange:
    """The class `PlaceholderRange` of one source; `line` is where it begins in `filename`."""

    label: str
    filename: str
    line: int
    make: MakeRange


def bind_range(source: Source) -> BoundRange:
    """Cut `PlaceholderRange` out of `source`.

    Raises `UsageError` when this vLLM has no such class, or one that cannot be asked
    or run without vLLM; `MachineError` when it cannot be fetched.
    """
    file = range_file(source)
    root = class_named(file, RANGES_CLASS)
    _refuse_without_methods(root, file.filename)
    # The file has torch from a lazy loader of vLLM's own.
    code = extract(file, root, stand_ins=(), provided={"torch"}).code
    show_in_tracebacks(file)
    return BoundRange(source.label, file.filename, root.lineno, define_name(code, RANGES_CLASS, torch=torch))


def _refuse_without_methods(root: ast.ClassDef, filename: str) -> None:
    methods = {
        node.name for node in root.body if isinstance(node, ast.FunctionDef) and not _is_property(node)
    }
    if lacking := [name for name in _ASKED if name not in methods]:
        raise UsageError(
            f"{filename}:{root.lineno}: {RANGES_CLASS} has no method {', '.join(lacking)}, "
            f"as vLLM has since {RANGES_SINCE}"
        )


def _is_property(node: ast.FunctionDef) -> bool:
    # Up to 0.15 get_num_embeds is a cached one, which nobody can call.
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


EXHAUSTIVE = 6
LONG_LENGTHS = (17, 64, 501)
SEED = 40143
_ALL_RANGES = 20
_DRAWN_RANGES = 24


def masks() -> Iterator[tuple[str | None, int]]:
    """(mask, length): without a mask, all short masks, then longer ones."""
    for length in range(EXHAUSTIVE + 1):
        yield None, length
        for bits in product("01", repeat=length):
            yield "".join(bits), length
    for length in LONG_LENGTHS:
        yield None, length
        for mask in _long(length):
            yield mask, length


def _long(length: int) -> Iterator[str]:
    """Yield all, none, a frame of marks, rows with a break after each, and drawn masks."""
    yield "1" * length
    yield "0" * length
    yield f"0{'1' * (length - 2)}0"
    yield ("1111110" * length)[:length]
    draw = random.Random(SEED + length)
    for share in (0.1, 0.5, 0.9):
        yield "".join("01"[draw.random() < share] for _ in range(length))


def ranges(length: int) -> list[tuple[int, int]]:
    """(start, end) with 0 <= start <= end <= length: all of them up to 20 positions, then a choice."""
    if length <= _ALL_RANGES:
        return list(combinations_with_replacement(range(length + 1), 2))
    edges = [0, 1, length // 2, length - 1, length]
    draw = random.Random(SEED * length)
    drawn = [sorted(int(draw.random() * (length + 1)) for _ in range(2)) for _ in range(_DRAWN_RANGES)]
    return [*combinations_with_replacement(edges, 2), *((start, end) for start, end in drawn)]


def outside(length: int) -> list[tuple[int, int]]:
    """(start, end) that no caller may ask: negative, behind the end, and the wrong way round."""
    return [(-1, length), (0, -1), (0, length + 1), (length + 1, length + 1), (length, 0)]


BUDGET = 2048
SLOTS = 32
GEO3K_REQUESTS = 96


@dataclass(frozen=True)
class Feature:
    """One placeholder in a prompt: where it begins, and `0` or `1` for each position."""

    offset: int
    mask: str


@dataclass(frozen=True)
class Served:
    """A workload: the features of each request, in order, and what the scheduler does with them."""

    name: str
    features: Mapping[str, tuple[Feature, ...]]
    steps: Sequence[ScheduledStep]


def geo3k(requests: Sequence[Request] | None = None) -> Served:
    """Return the workload that comes with the harness; raise what `load_workload` raises."""
    chosen = load_workload()[:GEO3K_REQUESTS] if requests is None else requests
    features = {request.id: tuple(_framed(request.images)) for request in chosen if request.images}
    tail = next(iter(features.values()), ())  # `serve` asks the first request with images again at the end
    return Served("geo3k", {**features, "tail": tail}, serve(chosen, BUDGET, SLOTS))


def _framed(images: Sequence[tuple[int, int]]) -> Iterator[Feature]:
    offset, mark = 0, "0" * (MARKS_PER_IMAGE // 2)
    for height, width in images:
        mask = f"{mark}{'1' * visual_tokens(height, width)}{mark}"
        yield Feature(offset, mask)
        offset += len(mask)


OFFSET = 5  # that a placeholder does not begin the prompt must not matter
_OUTSIDE = (("0110", 4), (None, 4))


def observe_ranges(subject: SystemSubject, make: MakeRange) -> RangeObservation:
    """Return the answers of what `make` makes; an exception is an answer too."""
    return RangeObservation(
        subject,
        kept_as(make),
        tuple(ask(make, mask, length, ranges(length)) for mask, length in masks()),
        tuple(ask(make, mask, length, outside(length)) for mask, length in _OUTSIDE),
        str(torch.__version__),
    )


def ask(make: MakeRange, mask: str | None, length: int, asked: Iterable[Bounds]) -> RangeQuestions:
    """Ask one placeholder; `mask` as in `RangeQuestions`."""
    made: list[PlaceholderRange] = []
    failed = _answer(lambda: made.append(make(OFFSET, length, as_tensor(mask))))
    if not made:
        return RangeQuestions(
            mask, length, str(failed), tuple(RangeAnswer(*each, str(failed)) for each in asked)
        )
    answers = tuple(RangeAnswer(start, end, _bounds(made[0], start, end)) for start, end in asked)
    embeds = _answer(made[0].get_num_embeds)
    return RangeQuestions(mask, length, embeds if type(embeds) is int else str(embeds), answers)


def as_tensor(mask: str | None) -> Tensor | None:
    """Return `0110` as a boolean tensor (4,)."""
    return None if mask is None else torch.tensor([bit == "1" for bit in mask], dtype=torch.bool)


def kept_as(make: MakeRange) -> str:
    """Return the type in which a class keeps its cumulative sum: `tensor`, `list`, or `unknown`."""
    kept = _answer(lambda: getattr(make(0, 2, as_tensor("01")), KEPT, None))
    return {Tensor: "tensor", list: "list"}.get(type(kept), "unknown")


def _bounds(placeholder: PlaceholderRange, start: int, end: int) -> Bounds | str:
    answer = _answer(lambda: placeholder.get_embeds_indices_in_range(start, end))
    # A tensor that equals the right number is no index: lists are sliced with it, and it costs as much.
    match answer:
        case (int(first), int(last)) if type(answer) is tuple:
            return first, last
    return str(answer)


def _answer(call: Callable[[], object]) -> object:
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # what a class raises is its answer
        return f"{type(error).__name__}: {error}"


Placed = Mapping[str, Sequence[PlaceholderRange]]


def step_costs(makes: Mapping[str, MakeRange], served: Served, repetitions: int) -> list[SchedulingCost]:
    """Measure a mean step of `served` with each variant, in turns: a busy machine hits all alike.

    Raises `NotMeasured` when two variants do not answer the same, or nothing was asked.
    """
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


def _walk_of(served: Served, placed: Placed) -> Callable[[], tuple[int, int]]:
    def walk() -> tuple[int, int]:
        embeddings = questions = 0
        for step in served.steps:
            in_step, asked = schedule_step(step, placed)
            embeddings, questions = embeddings + in_step, questions + asked
        return embeddings, questions

    return walk


def _step_cost(name: str, served: Served, questions: int, microseconds: float, calls: int) -> SchedulingCost:
    count = len(served.steps)
    features = max(len(features) for features in served.features.values())
    requests = max(len(step.chunks) for step in served.steps)
    return SchedulingCost(
        name, served.name, requests, features, count, questions, microseconds / count, calls / count
    )


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


OTHER_KIND: Mapping[str, str] = MappingProxyType({"tensor": "list", "list": "tensor"})
"""Type that a cumulative sum is kept in -> our variant that keeps it in the other type."""

REPETITIONS = 9


def step_costs_of(makes: Mapping[str, MakeRange]) -> dict[str, SchedulingCost]:
    """Measure a mean scheduling step with each class, side by side; return the costs by name."""
    return {cost.variant: cost for cost in step_costs(makes, geo3k(), REPETITIONS)}
