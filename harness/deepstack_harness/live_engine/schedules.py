"""Schedules as data: which requests arrive when, under which budget, and which engine they need."""

import base64
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any

from deepstack_harness.errors import unknown_name
from deepstack_harness.live_engine.models import TinyModel


class Start(StrEnum):
    """A way to start the engine: a schedule names the one that it needs.

    PLAIN has no prefix cache.  PRESSED has one, speculates with n-grams, and has so few blocks that
    requests are preempted.
    """

    PLAIN = "plain"
    PRESSED = "pressed"


@dataclass(frozen=True)
class EngineRequest:
    """One request: text around images or a video, made from seeds.

    `arrives` and `aborted` are numbers of engine steps; `answers` is the number of generated tokens.
    `pixels` is the side of an image or frame.
    """

    name: str
    before: str = "hi "
    after: str = " ok"
    images: tuple[int, ...] = ()
    frames: tuple[int, ...] = ()
    pixels: int = 96
    answers: int = 8
    arrives: int = 0
    aborted: int | None = None

    def __str__(self) -> str:
        """Return what is asked, in a few words."""
        seen = f" {len(self.images)} images" if self.images else " video" if self.frames else ""
        gone = "" if self.aborted is None else f", aborted {self.aborted}"
        text = len(self.before) + len(self.after)
        return f"{self.name}{seen} {text} letters, {self.answers} answers, step {self.arrives}{gone}"

    @property
    def is_visual(self) -> bool:
        """True where it has an image or a video."""
        return bool(self.images or self.frames)

    def job(self, model: TinyModel) -> dict[str, Any]:
        """Return the request as the child takes it."""
        placeholders = " ".join([model.image] * len(self.images) + [model.video or ""] * bool(self.frames))
        return {
            "name": self.name, "text": f"{self.before}{placeholders}{self.after}", "answers": self.answers,
            "images": [picture(seed, self.pixels) for seed in self.images],
            "frames": [picture(seed, self.pixels) for seed in self.frames],
            "arrives": self.arrives, "aborted": self.aborted,
        }  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """Requests that share an engine.

    `budget` is the most tokens of a step (`max_num_batched_tokens`), None for that of the start.  `setting`
    says what a user has to set to come there; "" for nothing.  `replays` are the graph modes under which
    it shows something.
    """

    name: str
    how: str
    requests: tuple[EngineRequest, ...]
    budget: int | None = None
    start: Start = Start.PLAIN
    setting: str = ""
    replays: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the budget and the requests in one line."""
        budget = "" if self.budget is None else f"budget {self.budget}: "
        return budget + "; ".join(map(str, self.requests))

    def fits(self, model: TinyModel) -> bool:
        """Tell whether the family takes all requests."""
        return model.video is not None or not any(request.frames for request in self.requests)


@dataclass(frozen=True)
class ReplayMode:
    """A graph mode whose replays are emulated.

    `mode` is vLLM's `cudagraph_mode`, `most` the largest capture size.  `outer` is True where the graph is
    taken around the whole model, so that pieces of any batch replay without the Python of the class.
    `flag` says what a user sets; "" for the default.
    """

    name: str
    mode: str
    flag: str
    outer: bool = False
    most: int = 512

    def job(self) -> dict[str, Any]:
        """Return the mode as the child takes it."""
        return {"mode": self.mode, "outer": self.outer, "most": self.most}


def flags_of(schedule: Schedule | None, replay: ReplayMode | None) -> tuple[str, ...]:
    """Return what a user sets for a schedule under a graph mode, flag by flag."""
    told = (schedule.setting if schedule else "", replay.flag if replay else "")
    return tuple(flag for one in told for flag in one.split(", ") if flag)


_MODE = "--compilation-config.cudagraph_mode"

REPLAY_MODES: Mapping[str, ReplayMode] = MappingProxyType(
    {
        mode.name: mode
        for mode in (
            ReplayMode("full_and_piecewise", "FULL_AND_PIECEWISE", ""),
            ReplayMode("full_decode_only", "FULL_DECODE_ONLY", f"{_MODE}=FULL_DECODE_ONLY"),
            ReplayMode("full", "FULL", f"{_MODE}=FULL"),
            ReplayMode("full_32", "FULL", f"{_MODE}=FULL, --max-cudagraph-capture-size=32", most=32),
            ReplayMode(
                "breakable", "PIECEWISE",
                "VLLM_USE_BREAKABLE_CUDAGRAPH=1", outer=True,
            ),
        )
    }
)  # fmt: skip
"""Graph modes by name.

Breakable graphs wrap the outer model, so the replay of a prefill skips the class's Python as FULL does; vLLM
turns them on by itself for VLLM_BATCH_INVARIANT=1 on CUDA with unquantised bfloat16 weights (0.32.0).
"""


def _text(name: str, words: int, answers: int, arrives: int = 0) -> EngineRequest:
    text = f"the {'quick brown fox ' * words}number {words}"
    return EngineRequest(name, before=text, after="", answers=answers, arrives=arrives)


_MIXED = (
    _text("t0", 1, 12),
    EngineRequest("i0", images=(0,), answers=10),
    _text("t1", 2, 12),
    EngineRequest("i1", before="see this long text before the image ", images=(1,)),
    EngineRequest("i2", images=(2,), pixels=160),
    _text("t2", 3, 6),
    EngineRequest("i3", images=(0,), answers=5),
)
"""Four requests with an image, one of them twice as an answer, and three of text."""


def _arriving(requests: Sequence[EngineRequest], every: int) -> tuple[EngineRequest, ...]:
    return tuple(replace(each, arrives=number * every) for number, each in enumerate(requests))


_DECODES = tuple(
    EngineRequest(f"d{n}", before=letter, after="", answers=50) for n, letter in enumerate("abc")
)

_ALL = (
    Schedule("all_at_once", "seven requests in the same step", _MIXED),
    Schedule("staggered", "a request every second step", _arriving(_MIXED, 2)),
    Schedule(
        "chunked_16", "prefill in chunks of 16 tokens", _arriving(_MIXED, 1), 16,
        setting="--max-num-batched-tokens=16",
    ),
    Schedule(
        "chunked_5", "prefill in chunks of 5 tokens: an image is split over steps", _arriving(_MIXED, 1), 5,
        setting="--max-num-batched-tokens=5",
    ),
    Schedule(
        "one_token_chunks", "one visual token a step beside three decodes",
        (*_DECODES, EngineRequest("i0", images=(0,), after=" what is it", answers=12, arrives=2)), 4,
        setting="--max-num-batched-tokens of running decodes + 1", replays=tuple(REPLAY_MODES),
    ),
    Schedule(
        "text_after_image", "a text request after an image request has ended its prefill",
        (EngineRequest("i0", images=(0,), answers=6), _text("t0", 1, 6, arrives=3)),
        replays=("full", "breakable"),
    ),
    Schedule(
        "long_texts_after_image", "an image in a captured size, then texts above it",
        (
            EngineRequest("i0", images=(0,), answers=4),
            *(
                EngineRequest(f"t{n}", before=letter * 50, after="", answers=3, arrives=6 * (n + 1))
                for n, letter in enumerate("xyz")
            ),
        ),
        replays=("full_32",),
    ),
    Schedule(
        "aborted", "an image request is aborted in the middle of its prefill",
        (
            EngineRequest(
                "i3", before="a long text in front of the image, so that chunks end in it ", images=(3,),
                pixels=160, answers=4, aborted=2,
            ),
            _text("t3", 3, 12),
            EngineRequest("i4", images=(4,), arrives=3),
            _text("t4", 2, 10, arrives=6),
        ),
        20, setting="--max-num-batched-tokens=20",
    ),
    Schedule(
        "several_images", "two images in one request, beside text",
        (EngineRequest("i0", images=(0, 5), answers=6), _text("t0", 2, 8), EngineRequest("i1", images=(6,))),
    ),
    Schedule(
        "video", "a video of four frames beside an image and a text",
        (
            EngineRequest("v0", frames=(7, 8, 9, 10), pixels=64, answers=6),
            EngineRequest("i0", images=(0,), answers=6, arrives=1),
            _text("t0", 1, 8),
        ),
    ),
    Schedule(
        "cached_and_preempted", "prefix caching, n-gram speculation, and too few blocks for all",
        (*_arriving(_MIXED, 1), EngineRequest("i9", images=(0,), answers=10, arrives=16)), 40, Start.PRESSED,
        setting="--max-num-batched-tokens=40, --enable-prefix-caching, n-gram speculation, few KV blocks",
    ),
)  # fmt: skip

SCHEDULES: Mapping[str, Schedule] = MappingProxyType({schedule.name: schedule for schedule in _ALL})
"""All schedules by name, in the order in which they are played."""


def schedules_of(model: TinyModel, names: Sequence[str] = ()) -> list[Schedule]:
    """Return the schedules that a family takes, all or those named; raise `UsageError` for another name."""
    for name in names:
        if name not in SCHEDULES:
            raise unknown_name("schedule", name, SCHEDULES)
    wanted = [SCHEDULES[name] for name in names] or list(SCHEDULES.values())
    return [schedule for schedule in wanted if schedule.fits(model)]


@cache
def picture(seed: int, side: int) -> dict[str, Any]:
    """Return an image of random pixels: width, height, and its bytes in base64."""
    pixels = random.Random(seed).randbytes(side * side * 3)
    return {"width": side, "height": side, "rgb": base64.b64encode(pixels).decode()}
