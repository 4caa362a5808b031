"""Reduce the steps of served schedules to distinct orders of calls, as traces that `audit` plays.

An order is a window of a few steps that has a visual one.  Two windows are the same order where each step is
visual or not, replayed or not, and as much longer or shorter than the one before it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from deepstack_harness.atomic import write_atomically
from deepstack_harness.catalogue.recorded import EngineRecording, RecordedOrder
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.errors import UsageError
from deepstack_harness.live_engine.facts import LiveStep, StartFacts
from deepstack_harness.live_engine.schedules import ReplayMode, Schedule, flags_of

_LENGTH = 4
"""Steps of a window: a visual one, and three behind it, which is how long a stale row has to show."""

Signature = tuple[tuple[bool, bool, bool, int], ...]


@dataclass
class OrderRecorder:
    """The distinct orders so far, each with the alternatives of flags that lead to it."""

    facts: StartFacts | None = None
    traces: dict[tuple[bool, Signature], tuple[Trace, str]] = field(default_factory=dict)
    flags: dict[tuple[bool, Signature], set[frozenset[str]]] = field(default_factory=dict)

    def add(
        self, facts: StartFacts, schedule: Schedule, replay: ReplayMode | None, steps: Sequence[LiveStep]
    ) -> None:
        """Take the steps of one schedule as it was served."""
        self.facts = self.facts or facts
        needed = frozenset(flags_of(schedule, replay))
        for window in _windows(steps):
            trace = _trace(window, facts.capacity)
            if trace is None:
                continue
            key = (any(step.replayed for step in window), _signature(window))
            self.traces.setdefault(key, (trace, schedule.how))
            self.flags.setdefault(key, set()).add(needed)

    def recording(self) -> EngineRecording:
        """Return the recording; raises `UsageError` where nothing was served."""
        if self.facts is None or not self.traces:
            raise UsageError("nothing was recorded: no schedule with an image was served")
        orders = [
            RecordedOrder(str(trace), how, _minimal(self.flags[key]), replayed=key[0])
            for key, (trace, how) in self.traces.items()
        ]
        return EngineRecording("vllm", self.facts.vllm, self.facts.runner, self.facts.deciding, tuple(orders))

    def write(self, path: Path) -> int:
        """Write the recording, and return its number of orders; raises `UsageError` where that cannot be."""
        found = self.recording()
        text = msgspec.json.format(msgspec.json.encode(found, order="deterministic"), indent=1)
        try:
            write_atomically(path, text + b"\n")
        except OSError as error:
            raise UsageError(f"cannot write to '{path}': {error.strerror}") from None
        return len(found.orders)


def _windows(steps: Sequence[LiveStep]) -> Iterator[Sequence[LiveStep]]:
    """Yield the windows that begin with a visual step, or with the step before one."""
    for number in range(len(steps)):
        window = steps[number : number + _LENGTH]
        if window[0].visual or (len(window) > 1 and window[1].visual):
            yield window


def _signature(window: Sequence[LiveStep]) -> Signature:
    found, before = [], window[0].asked
    for step in window:
        longer = (step.asked > before) - (step.asked < before)
        found.append((step.visual > 0, step.visual == step.tokens, step.replayed, longer))
        before = step.asked
    return tuple(found)


def _trace(window: Sequence[LiveStep], capacity: int) -> Trace | None:
    """Return a window as a trace; None where one size is live here and a replay there.

    A class whose graphs are emulated captures a size in its first run and replays it from then on, so a live
    step needs a size that no other step of the window has.
    """
    replayed = {step.asked for step in window if step.replayed}
    live = [step.asked for step in window if not step.replayed]
    if replayed and (replayed & set(live) or len(set(live)) < len(live) or capacity in live):
        return None
    steps = [Step(Op.PROFILE, size) for size in (capacity, *sorted(replayed - {capacity}, reverse=True))]
    for step in window:
        steps += _embedding(step, alone=bool(replayed))
        steps.append(Step(Op.FORWARD, step.asked))
    return Trace(capacity, tuple(steps))


def _embedding(step: LiveStep, *, alone: bool) -> list[Step]:
    """Return what embeds the rows of a step; `forward` itself embeds text where nothing is replayed."""
    if step.visual:
        whole = step.spans == ((0, step.asked),)
        return [Step(Op.SET, step.tokens or 0, spans=None if whole else step.spans)]
    return [Step(Op.SET, 0)] if alone else []


def _minimal(found: set[frozenset[str]]) -> tuple[tuple[str, ...], ...]:
    """Return the alternatives that need the fewest flags: one that contains another says nothing more."""
    smallest = [one for one in found if not any(other < one for other in found)]
    return tuple(sorted(tuple(sorted(one)) for one in smallest))
