"""Workloads as a scheduler sees them: which placeholders each request has, and the steps; no torch.

Two are made here.  `geo3k`: the requests of `deepstack_harness.workload`, one image each,
framed by two marks that receive no embedding, as models with begin and end tokens
in the placeholder have it.  (Qwen3-VL's own images have no mask in vLLM 0.33.0: its
placeholder is nothing but image tokens, and costs nothing in either revision.)
`video`: few requests of several videos, with a time stamp before each frame.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from deepstack_harness.workload.geometry3k import MARKS_PER_IMAGE, load_workload
from deepstack_harness.workload.requests import Request
from deepstack_harness.workload.schedule import ScheduledStep, schedule, serve
from deepstack_harness.workload.smart_resize import visual_tokens

BUDGET = 2048
SLOTS = 32
GEO3K_REQUESTS = 96
FRAME = (256, 320)
"""Height and width of a video's frames in pixels: 80 tokens each."""
STAMP_TOKENS = 6


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


def video(requests: int = 12, videos: int = 3, frames: int = 16) -> Served:
    """Return `requests` of `videos` with `frames` each, and an answer of 64 tokens."""
    stamps = STAMP_TOKENS * frames * videos
    asked = [
        Request(f"video{number}", (FRAME,) * frames * videos, stamps + 12, decode_tokens=64)
        for number in range(requests)
    ]
    clip = ("0" * STAMP_TOKENS + "1" * visual_tokens(*FRAME)) * frames
    features = tuple(Feature(number * len(clip), clip) for number in range(videos))
    return Served("video", {request.id: features for request in asked}, schedule(asked, BUDGET, SLOTS))


def decoding(requests: int, features: int, steps: int = 20) -> Served:
    """Return one token a step for each of `requests`, behind as many `features` of 77 positions each."""
    mask = f"0{'1' * 75}0"
    placed = tuple(Feature(number * len(mask), mask) for number in range(features))
    asked = [Request(f"decode{number}", (), len(mask) * features, steps) for number in range(requests)]
    prefill = schedule(asked, len(mask) * features * requests, requests)
    decodes = [step for step in prefill if all(chunk.tokens == 1 for chunk in step.chunks)]
    return Served(f"decoding {requests} x {features}", {request.id: placed for request in asked}, decodes)


def _framed(images: Sequence[tuple[int, int]]) -> Iterator[Feature]:
    offset, mark = 0, "0" * (MARKS_PER_IMAGE // 2)
    for height, width in images:
        mask = f"{mark}{'1' * visual_tokens(height, width)}{mark}"
        yield Feature(offset, mask)
        offset += len(mask)
