"""Hunt in a worker: a trace that hangs, crashes, uses up memory or floods the output is a finding too."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

import msgspec

from deepstack_harness.catalogue.data_files import hypothesis_storage
from deepstack_harness.fuzzing.campaign import Campaign, Hunted, keep, read_journal
from deepstack_harness.fuzzing.crash_finding import hunt_limits, note
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.hunt import Progress
from deepstack_harness.fuzzing.worker import FINDING, PROGRESS, HuntRequest
from deepstack_harness.workers.outcomes import Answered, RaisedInWorker, WorkerEnd
from deepstack_harness.workers.worker import Worker

_WORK = "deepstack_harness.fuzzing.worker"
_PREPARING_S = 300.0
"""Seconds for preparing the target: a source may have to be fetched."""
_MOST_ENDS = 6
"""Ends of a worker after which a hunt is given up."""
_TELL_S = 0.1

Tell = Callable[[Progress, list[Finding]], None]
"""Called now and then with the progress of a campaign and its findings so far."""


def carry_on(campaign: Campaign, hunted: Hunted, tell: Tell) -> Hunted:
    """Play what is left of the examples; raises an error of the worker that is no fault it found."""
    ends, deadline = 0, _deadline(campaign.limits.seconds)
    while hunted.progress.examples < campaign.examples and ends < _MOST_ENDS and not _over(deadline):
        before = hunted.progress
        hunted.rounds += 1
        keep(campaign, hunted)
        end = _hunt(campaign, hunted, before, deadline, tell)
        keep(campaign, hunted)
        if end is None:
            break
        ends += 1
        note(campaign, hunted, end)
        tell(hunted.progress, hunted.findings)
    hunted.complete = hunted.progress.examples >= campaign.examples or campaign.boundary
    keep(campaign, hunted, finished=hunted.complete or ends >= _MOST_ENDS)
    return hunted


def _hunt(
    campaign: Campaign, hunted: Hunted, before: Progress, deadline: float | None, tell: Tell
) -> WorkerEnd | None:
    """Hunt in one worker; return its end where it did not hunt to the last example."""
    with Worker(hunt_limits(campaign), preload=_WORK, environment=hypothesis_storage()) as worker:
        result = worker.call(f"{_WORK}:prepare", {"asked": asdict(campaign.asked)}, seconds=_PREPARING_S)
        if isinstance(result, Answered):
            listener = _Listener(campaign, hunted, before, tell)
            request = msgspec.to_builtins(_request(campaign, hunted, before, deadline))
            result = worker.call(f"{_WORK}:hunt_as_requested", {"request": request}, on_fact=listener.hear)
    hunted.findings = read_journal(campaign.folder)
    match result:
        case Answered(value=value):
            hunted.progress = _sum(before, msgspec.convert(value, Progress))
            return None
        case RaisedInWorker():
            raise result.as_error
        case WorkerEnd():
            # The example that ended the worker is not played again.
            hunted.progress = replace(hunted.progress, examples=hunted.progress.examples + 1)
            return result


def _request(campaign: Campaign, hunted: Hunted, before: Progress, deadline: float | None) -> HuntRequest:
    return HuntRequest(
        campaign.asked, str(campaign.folder), campaign.examples - before.examples,
        campaign.seed + 1_000_003 * (hunted.rounds - 1), tuple(hunted.findings),
        None if deadline is None else max(0.1, deadline - time.monotonic()), campaign.boundary,
    )  # fmt: skip


class _Listener:
    """Listener to the facts of a hunt: it keeps `hunted` up to date, and tells of it."""

    def __init__(self, campaign: Campaign, hunted: Hunted, before: Progress, tell: Tell) -> None:
        self._campaign, self._hunted, self._before, self._tell = campaign, hunted, before, tell
        self._told = 0.0

    def hear(self, fact: Mapping[str, Any]) -> None:
        """Take a fact; a finding is told at once, progress now and then."""
        if PROGRESS in fact:
            self._hunted.progress = _sum(self._before, msgspec.convert(fact[PROGRESS], Progress))
        if FINDING in fact:
            self._hunted.findings = read_journal(self._campaign.folder)
        if FINDING in fact or time.monotonic() > self._told + _TELL_S:
            self._told = time.monotonic()
            self._tell(self._hunted.progress, self._hunted.findings)


def _sum(one: Progress, other: Progress) -> Progress:
    """Add the counts; graphs, budget and states are those of the worker that hunts now."""
    now = {"states", "graphs", "budget"}
    names = [part.name for part in fields(Progress) if part.name not in now]
    return replace(other, **{name: getattr(one, name) + getattr(other, name) for name in names})


def _deadline(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline
