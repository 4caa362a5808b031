"""The work of a worker that hunts, and may not survive it: each step is announced before it is played."""

import os
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from typing_extensions import override

from deepstack_harness.contract.trace import Step, Trace
from deepstack_harness.fuzzing.boundary import hunt_boundary
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.hunt import Enough, Progress, Watch, hunt
from deepstack_harness.fuzzing.request import Asked, target_of
from deepstack_harness.fuzzing.session import Ground
from deepstack_harness.workers.child import Channel

JOURNAL = "findings.jsonl"
PROGRESS, FINDING = "progress", "finding"
"""Keys of the facts: a `Progress` after each example, and a `Finding` that the journal has."""
TRACE = "trace "
"""Beginning of the phases: the rest is the trace up to the step that is played."""


@dataclass(frozen=True)
class HuntRequest:
    """Request for a hunt: the target, how long to hunt, and the folder of the journal."""

    asked: Asked
    folder: str
    examples: int
    seed: int
    known: tuple[Finding, ...] = ()
    seconds: float | None = None
    boundary: bool = False


class Journal(Watch):
    """Watch that writes findings to a file, and sends progress and the trace that is played to the parent."""

    def __init__(self, request: HuntRequest, channel: Channel) -> None:
        """Open the file."""
        self._findings = (Path(request.folder) / JOURNAL).open("a", encoding="utf-8")
        self._channel = channel
        self._until = None if request.seconds is None else time.monotonic() + request.seconds
        self._steps: list[str] = []

    @override
    def begins(self) -> None:
        self._steps = []
        self._channel.phase("")

    @override
    def step(self, capacity: int, step: Step) -> None:
        self._steps.append(str(step))
        self._channel.phase(f"{TRACE}cap {capacity}: {'; '.join(self._steps)}")

    @override
    def example(self, progress: Progress) -> None:
        self._channel.fact({PROGRESS: asdict(progress)})
        if self._until is not None and time.monotonic() > self._until:
            raise Enough

    @override
    def found(self, finding: Finding) -> None:
        # On the disk before the parent hears of it: a finding that was told survives whatever follows.
        self._findings.write(finding.to_json() + "\n")
        self._findings.flush()
        os.fsync(self._findings.fileno())
        self._channel.fact({FINDING: finding.name})


def prepare(asked: Mapping[str, str | None]) -> None:
    """Fetch, find and build what `asked` (an `Asked`) names: the limit of a step is for none of this."""
    torch.set_num_threads(1)
    with closing(Ground(target_of(msgspec.convert(asked, Asked)))):
        pass


def hunt_as_requested(request: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    """Hunt as a `HuntRequest` says and return the `Progress`; both as JSON."""
    parsed = msgspec.convert(request, HuntRequest)
    target, journal = target_of(parsed.asked), Journal(parsed, channel)
    if parsed.boundary:
        return asdict(hunt_boundary(target, seed=parsed.seed, watch=journal).progress)
    result = hunt(target, examples=parsed.examples, seed=parsed.seed, known=parsed.known, watch=journal)
    return asdict(result.progress)


def replay(asked: Mapping[str, str | None], trace: str) -> None:
    """Play one trace on what `asked` (an `Asked`) names."""
    with closing(Ground(target_of(msgspec.convert(asked, Asked)))) as ground:
        ground.broken(Trace.parse(trace))
