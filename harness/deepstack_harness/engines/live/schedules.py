"""Schedules as data: which requests arrive when, under which budget, and which engine they need."""

import base64
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any

from deepstack_harness.engines.live.models import TinyModel
from deepstack_harness.errors import unknown_name

SHRINK_S = 240.0
"""Seconds for making a finding smaller."""


class Start(StrEnum):
    """A way to start the engine: a schedule names the one that it needs.

    PLAIN has no prefix cache.  PRESSED has one, speculates with n-grams, and has so few blocks that
    requests are preempted.
    """

    PLAIN = "plain"
    PRESSED = "pressed"


class Control(StrEnum):
    """A compiled run that differs in one thing, for a payload that is absent in some steps.

    GUARDS_KEPT compiles as plain `torch.compile` does (mode STOCK_TORCH_COMPILE), so that a step with another
    structure recompiles.  ZEROS puts tensors of zeros in place of None in every call.  Both equal eager
    where the dropped guard on the payload's presence is the only fault.
    """

    NONE = ""
    GUARDS_KEPT = "guards_kept"
    ZEROS = "zeros"


class Aim(StrEnum):
    """An event that a schedule is for; the value is the sentence that it did not happen."""

    TOGETHER = "no two requests began in one step"
    BESIDE_DECODES = "no request began beside a decode"
    CHUNKED = "no prompt was split over steps"
    SPLIT = "no image was split over steps"
    ONE_TOKEN = "no visual step counted as a decode"
    TEXT_AFTER = "no text began behind the last visual step"
    LIVE_AFTER = "no prefill ran in Python behind a visual step"
    SEVERAL = "no request had two images in one step"
    VIDEO = "no frame of a video was read"
    REPLAYED = "no visual step was replayed"
    PREEMPTED = "no request was preempted"
    CACHED = "no token came from the prefix cache"
    HALF_CACHED = "no image came from the prefix cache in part"
    DRAFTED = "no draft was verified"
    ABORTED = "no request was aborted in its prefill"


SAMPLE_RATE = 16000
"""Samples of a second of audio."""
_ROWS_A_SECOND = 12.5  # of MOSS-Audio: 100 frames of a spectrogram, halved three times


@dataclass(frozen=True)
class EngineRequest:
    """One request: text around images or a video, made from seeds.

    `arrives` and `aborted` are numbers of engine steps; `answers` counts the tokens to generate.
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
        """Return it in a few words."""
        seen = f" {len(self.images)} images" if self.images else " video" if self.frames else ""
        gone = "" if self.aborted is None else f", aborted {self.aborted}"
        text = len(self.before) + len(self.after)
        return f"{self.name}{seen} {text} letters, {self.answers} answers, step {self.arrives}{gone}"

    @property
    def is_visual(self) -> bool:
        """True where it has an image or a video."""
        return bool(self.images or self.frames)

    def job(self, model: TinyModel) -> dict[str, Any]:
        """Return the request as the child takes it; an audio family hears a waveform for each image.

        A waveform, noise and a tone at 16 kHz, gives as many rows as a square image of its side, which has
        one for each 32 times 32 pixels. The child makes the samples, which are drawn from `seed`.
        """
        samples = int((self.pixels // 32) ** 2 / _ROWS_A_SECOND * SAMPLE_RATE)
        placeholders = " ".join([model.image] * len(self.images) + [model.video or ""] * bool(self.frames))
        heard = model.medium == "audio"
        return {
            "name": self.name, "text": f"{self.before}{placeholders}{self.after}", "answers": self.answers,
            "images": [] if heard else [picture(seed, self.pixels) for seed in self.images],
            "waves": [
                {"seed": seed, "samples": samples, "rate": SAMPLE_RATE} for seed in self.images if heard
            ],
            "frames": [picture(seed, self.pixels) for seed in self.frames],
            "arrives": self.arrives, "aborted": self.aborted,
        }  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """Requests that share an engine.

    `budget` is the most tokens of a step (`max_num_batched_tokens`), None for that of the start.  `settings`
    are the flags that a user has to set to come there.  `replays` are the graph modes under which it shows
    something, `proofs` what has to happen, or nothing was measured.
    """

    name: str
    how: str
    requests: tuple[EngineRequest, ...]
    budget: int | None = None
    start: Start = Start.PLAIN
    settings: tuple[str, ...] = ()
    replays: tuple[str, ...] = ()
    proofs: tuple[Aim, ...] = ()

    def __str__(self) -> str:
        """Return the budget and the requests in one line."""
        budget = "" if self.budget is None else f"budget {self.budget}: "
        return budget + "; ".join(map(str, self.requests))

    def fits(self, model: TinyModel) -> bool:
        """Return whether the family takes all requests."""
        most = model.limits.get(model.medium, 0)
        return all(
            len(request.images) <= most and (model.video is not None or not request.frames)
            for request in self.requests
        )


@dataclass(frozen=True)
class ReplayMode:
    """A graph mode whose replays are emulated.

    `mode` is vLLM's `cudagraph_mode`, `most` the largest capture size.  `outer` is True where the graph is
    taken around the whole model, so that pieces of any batch replay without the Python of the class.
    `flags` are what a user sets; none for the default.
    """

    name: str
    mode: str
    flags: tuple[str, ...] = ()
    outer: bool = False
    most: int = 512


def flags_of(schedule: Schedule | None, replay: ReplayMode | None) -> tuple[str, ...]:
    """Return what a user sets for a schedule under a graph mode, flag by flag."""
    return (*(schedule.settings if schedule else ()), *(replay.flags if replay else ()))


_MODE = "--compilation-config.cudagraph_mode"

REPLAY_MODES: Mapping[str, ReplayMode] = MappingProxyType(
    {
        mode.name: mode
        for mode in (
            ReplayMode("full_and_piecewise", "FULL_AND_PIECEWISE"),
            ReplayMode("full_decode_only", "FULL_DECODE_ONLY", (f"{_MODE}=FULL_DECODE_ONLY",)),
            ReplayMode("full", "FULL", (f"{_MODE}=FULL",)),
            ReplayMode("full_32", "FULL", (f"{_MODE}=FULL", "--max-cudagraph-capture-size=32"), most=32),
            ReplayMode("breakable", "PIECEWISE", ("VLLM_USE_BREAKABLE_CUDAGRAPH=1",), outer=True),
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
"""Four requests with an image, two of them with the same one, and three of text."""


def _arriving(requests: Sequence[EngineRequest], every: int) -> tuple[EngineRequest, ...]:
    return tuple(replace(request, arrives=number * every) for number, request in enumerate(requests))


_DECODES = tuple(
    EngineRequest(f"d{n}", before=letter, after="", answers=50) for n, letter in enumerate("abc")
)

# A block (32 tokens) of the first prompt comes from the cache for the second one; it ends in the image.  Each
# of the others grows over the end of a block while it decodes, and there are too few blocks for all of them.
_LONG = EngineRequest("c0", before="more text, then an image: ", images=(3,), answers=3)
_CROWDED = (
    _LONG,
    replace(_LONG, name="c1", arrives=6),
    *(EngineRequest(f"i{n}", images=(n,), answers=40, arrives=10) for n in (0, 1)),
    EngineRequest("i2", images=(2,), pixels=160, answers=40, arrives=10),
    _text("t0", 1, 40, arrives=10),
    EngineRequest("i3", images=(0,), answers=40, arrives=11),
)

_PRESSED = ("--enable-prefix-caching", "n-gram speculation", "few KV blocks")

_ALL = (
    Schedule("all_at_once", "seven requests in the same step", _MIXED, proofs=(Aim.TOGETHER,)),
    Schedule(
        "staggered", "a request every second step", _arriving(_MIXED, 2), proofs=(Aim.BESIDE_DECODES,)
    ),
    Schedule(
        "chunked_16", "prefill in chunks of 16 tokens", _arriving(_MIXED, 1), 16,
        settings=("--max-num-batched-tokens=16",), proofs=(Aim.CHUNKED,),
    ),
    Schedule(
        "chunked_5", "prefill in chunks of 5 tokens: an image is split over steps", _arriving(_MIXED, 1), 5,
        settings=("--max-num-batched-tokens=5",), proofs=(Aim.CHUNKED, Aim.SPLIT),
    ),
    Schedule(
        "one_token_chunks", "one visual token a step beside three decodes",
        (*_DECODES, EngineRequest("i0", images=(0,), after=" what is it", answers=12, arrives=2)), 4,
        settings=("--max-num-batched-tokens of running decodes + 1",), replays=tuple(REPLAY_MODES),
        proofs=(Aim.ONE_TOKEN,),
    ),
    Schedule(
        "text_after_image", "a text request after an image request has ended its prefill",
        (EngineRequest("i0", images=(0,), answers=6), _text("t0", 1, 6, arrives=3)),
        replays=("full", "breakable"), proofs=(Aim.TEXT_AFTER,),
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
        replays=("full_32",), proofs=(Aim.TEXT_AFTER, Aim.LIVE_AFTER),
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
        20, settings=("--max-num-batched-tokens=20",), proofs=(Aim.CHUNKED, Aim.ABORTED),
    ),
    Schedule(
        "several_images", "two images in one request, beside text",
        (EngineRequest("i0", images=(0, 5), answers=6), _text("t0", 2, 8), EngineRequest("i1", images=(6,))),
        proofs=(Aim.SEVERAL,),
    ),
    Schedule(
        "video", "a video of four frames beside an image and a text",
        (
            EngineRequest("v0", frames=(7, 8, 9, 10), pixels=64, answers=6),
            EngineRequest("i0", images=(0,), answers=6, arrives=1),
            _text("t0", 1, 8),
        ),
        proofs=(Aim.VIDEO,),
    ),
    Schedule(
        "cached_and_preempted", "prefix caching, n-gram speculation, and too few blocks for all",
        _CROWDED, 40, Start.PRESSED,
        settings=("--max-num-batched-tokens=40", *_PRESSED),
        proofs=(Aim.CACHED, Aim.HALF_CACHED, Aim.DRAFTED, Aim.PREEMPTED),
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
