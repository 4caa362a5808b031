"""Proofs that a schedule did what it is for: requests were preempted, an image was split, a draft was made.

A schedule names its proofs.  Without one of them its rules were not put to the test: a PASS becomes ERROR.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from types import MappingProxyType
from typing import NamedTuple

from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.live_engine.facts import LiveStep, ServedSchedule
from deepstack_harness.live_engine.schedules import Aim, EngineRequest, ReplayMode, Schedule


class _Share(NamedTuple):
    """The rows of one request in a step: `images` ranges of them have a payload, `visual` rows in all."""

    name: str
    prefill: bool
    images: int
    visual: int


def missing_proofs(schedule: Schedule, replay: ReplayMode | None, served: ServedSchedule) -> list[str]:
    """Return what was not seen while a schedule was served, and had to be, each in a few words."""
    wanted = [*schedule.proofs]
    if replay is not None and schedule.proofs:
        wanted.append(Aim.REPLAYED)
    return [proof.value for proof in wanted if not _SEEN[proof](schedule, served)]


def proved(judgements: Iterable[Judgement], missing: Sequence[str]) -> list[Judgement]:
    """Return judgements where no PASS is left if a proof is missing; what is broken stays broken."""
    return [_unproved(one, missing) if one.verdict is Verdict.PASS and missing else one for one in judgements]


def _unproved(said: Judgement, missing: Sequence[str]) -> Judgement:
    return replace(
        said, verdict=Verdict.ERROR, detail=f"not measured: {' and '.join(missing)}; {said.detail}"
    )


def _shares(step: LiveStep) -> Iterator[_Share]:
    end = 0
    for name, tokens, prefill in step.requests:
        begin, end = end, end + tokens
        images = sum(begin <= first < end for first, _ in step.spans)
        visual = sum(max(0, min(end, last) - max(begin, first)) for first, last in step.spans)
        yield _Share(name, prefill, images, visual)


def _prefills(step: LiveStep) -> int:
    return sum(prefill for _, _, prefill in step.requests)


def _together(_: Schedule, served: ServedSchedule) -> bool:
    return any(_prefills(step) > 1 for step in served.steps)


def _beside_decodes(_: Schedule, served: ServedSchedule) -> bool:
    return any(0 < _prefills(step) < len(step.requests) for step in served.steps)


def _chunked(_: Schedule, served: ServedSchedule) -> bool:
    names = [name for step in served.steps for name, _, prefill in step.requests if prefill]
    return len(set(names)) < len(names)


def _split(schedule: Schedule, served: ServedSchedule) -> bool:
    """Tell whether one image was split: more visual steps of a request than it has images."""
    images = {one.name: max(len(one.images), 1) for one in schedule.requests if one.is_visual}
    visual = [share.name for step in served.steps for share in _shares(step) if share.images]
    return any(visual.count(name) > most for name, most in images.items())


def _one_token(_: Schedule, served: ServedSchedule) -> bool:
    return any(step.is_visual_decode for step in served.steps)


def _text_after(schedule: Schedule, served: ServedSchedule) -> bool:
    """Tell whether a text request began behind the last visual step, beside or behind the image's decodes."""
    texts = {one.name for one in schedule.requests if not one.is_visual}
    visual = [number for number, step in enumerate(served.steps) if step.visual]
    later = served.steps[visual[-1] + 1 :] if visual else ()
    return any(prefill and name in texts for step in later for name, _, prefill in step.requests)


def _live_after_replay(_: Schedule, served: ServedSchedule) -> bool:
    """Tell whether a prefill ran in Python behind a visual step that ran."""
    first = next((number for number, step in enumerate(served.steps) if step.visual), None)
    later = served.steps[first + 1 :] if first is not None else ()
    return any(not step.replayed and _prefills(step) for step in later)


def _several(_: Schedule, served: ServedSchedule) -> bool:
    return any(share.images > 1 for step in served.steps for share in _shares(step))


def _video(schedule: Schedule, served: ServedSchedule) -> bool:
    videos = {one.name for one in schedule.requests if one.frames}
    return any(share.images and share.name in videos for step in served.steps for share in _shares(step))


def _half_cached(schedule: Schedule, served: ServedSchedule) -> bool:
    """Tell whether a request read fewer visual rows, and some, than an equal one that came before it."""
    visual = {one: _rows_of_prefill(one.name, served) for one in schedule.requests if one.is_visual}
    pairs = [(one, other) for one in visual for other in visual if _same_prompt(one, other)]
    return any(0 < visual[other] < visual[one] for one, other in pairs if one.arrives < other.arrives)


def _same_prompt(one: EngineRequest, other: EngineRequest) -> bool:
    return (one.before, one.images, one.pixels) == (other.before, other.images, other.pixels)


def _rows_of_prefill(name: str, served: ServedSchedule) -> int:
    """Count the visual rows of a request before its first decode: one that is preempted reads them again."""
    shares = [share for step in served.steps for share in _shares(step) if share.name == name]
    return sum(share.visual for share in takewhile(lambda share: share.prefill, shares))


def _replayed(_: Schedule, served: ServedSchedule) -> bool:
    return any(step.replayed and step.visual for step in served.steps)


def _counted(count: str) -> Callable[[Schedule, ServedSchedule], bool]:
    """Return a proof by a count of the child half."""
    return lambda _, served: served.counts.get(count, 0) > 0


_SEEN: Mapping[Aim, Callable[[Schedule, ServedSchedule], bool]] = MappingProxyType(
    {
        Aim.TOGETHER: _together,
        Aim.BESIDE_DECODES: _beside_decodes,
        Aim.CHUNKED: _chunked,
        Aim.SPLIT: _split,
        Aim.ONE_TOKEN: _one_token,
        Aim.TEXT_AFTER: _text_after,
        Aim.LIVE_AFTER: _live_after_replay,
        Aim.SEVERAL: _several,
        Aim.VIDEO: _video,
        Aim.REPLAYED: _replayed,
        Aim.PREEMPTED: _counted("preemptions"),
        Aim.CACHED: _counted("cached tokens"),
        Aim.HALF_CACHED: _half_cached,
        Aim.DRAFTED: _counted("drafted tokens"),
        Aim.ABORTED: _counted("aborts in prefill"),
    }
)
