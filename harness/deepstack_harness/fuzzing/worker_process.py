"""A hunt in a process of its own: what hangs, crashes, eats memory or floods its output is a finding too."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

import msgspec

from deepstack_harness.catalogue.data_files import hypothesis_storage
from deepstack_harness.errors import ExitCode, HarnessError, MachineError, UsageError
from deepstack_harness.fuzzing.campaign import Campaign, Hunted, Limits, keep, read_journal, read_progress
from deepstack_harness.fuzzing.crash_finding import note
from deepstack_harness.fuzzing.finding import Finding, Kind
from deepstack_harness.fuzzing.hunt import Progress
from deepstack_harness.fuzzing.worker import ENDED, FLOODED, OUTPUT, PROGRESS, RUNNING, Order

_LONGEST_OUTPUT = 64 * 2**20
_STARTING_S = 300.0
"""Patience until the first step: a source may have to be fetched."""
_ENDS = 6
"""So many ends of a process are looked into; more, and the hunt is over."""

Tell = Callable[[Progress, list[Finding]], None]
"""Told now and then how far the campaign is, and what it has found."""


def carry_on(campaign: Campaign, hunted: Hunted, tell: Tell) -> Hunted:
    """Play what is left of the examples; raises what the process said where that was no fault it found."""
    ends, deadline = 0, _deadline(campaign.limits.seconds)
    while hunted.progress.examples < campaign.examples and ends < _ENDS and not _over(deadline):
        before = hunted.progress
        hunted.rounds += 1
        keep(campaign, hunted)
        ended = _play(campaign, hunted, before, deadline, tell)
        keep(campaign, hunted)
        if ended is None:
            break
        ends += 1
        note(campaign, hunted, ended)
        tell(hunted.progress, hunted.findings)
    hunted.complete = hunted.progress.examples >= campaign.examples or campaign.boundary
    keep(campaign, hunted, finished=hunted.complete or ends >= _ENDS)
    return hunted


def _play(
    campaign: Campaign, hunted: Hunted, before: Progress, deadline: float | None, tell: Tell
) -> Kind | None:
    """One process; how it ended where it did not end by itself."""
    folder = campaign.folder
    for name in (RUNNING, PROGRESS, ENDED):
        (folder / name).unlink(missing_ok=True)
    order = Order(
        campaign.asked, str(folder), campaign.examples - before.examples,
        campaign.seed + 1_000_003 * (hunted.rounds - 1), tuple(hunted.findings),
        None if deadline is None else max(0.1, deadline - time.monotonic()),
        campaign.limits.memory_bytes, campaign.boundary,
    )  # fmt: skip
    kind: Kind | None = None
    with _child(order) as child:
        for kind in _watched(child, folder, campaign.limits):  # noqa: B007  # the last one tells
            hunted.findings = read_journal(folder)
            hunted.progress = _sum(before, read_progress(folder))
            tell(hunted.progress, hunted.findings)
    return _ending(folder, hunted, before, kind)


def _ending(folder: Path, hunted: Hunted, before: Progress, kind: Kind | None) -> Kind | None:
    hunted.findings = read_journal(folder)
    if not (folder / ENDED).exists():
        done = read_progress(folder)
        hunted.progress = _sum(before, replace(done, examples=done.examples + 1))
        return kind or Kind.CRASH
    said = json.loads((folder / ENDED).read_text())
    if "error" in said:
        errors = {ExitCode.USAGE: UsageError, ExitCode.MACHINE: MachineError}
        raise errors.get(ExitCode(said["code"]), HarnessError)(said["error"])
    hunted.progress = _sum(before, msgspec.convert(said["progress"], Progress))
    return None


class _child:  # noqa: N801  # used as a function
    """A hunting process; whatever it started ends with it."""

    def __init__(self, order: Order) -> None:
        self._output = (Path(order.folder) / OUTPUT).open("wb+")
        self._child = subprocess.Popen(
            [sys.executable, "-m", "deepstack_harness.fuzzing.worker"], stdin=subprocess.PIPE,
            stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True,
            env={**hypothesis_storage(), **os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self._child.stdin is not None  # a pipe
        with suppress(BrokenPipeError):
            self._child.stdin.write(msgspec.json.encode(order))
            self._child.stdin.close()

    def __enter__(self) -> "subprocess.Popen[bytes]":
        return self._child

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._output.close()


def _watched(child: "subprocess.Popen[bytes]", folder: Path, limits: Limits) -> Iterator[Kind | None]:
    """Now and then None; at last how it ended, None where that has to be read from what it wrote."""
    started, kind = time.time(), None
    while kind is None and child.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=0.1)
        kind = _gone_wrong(folder, limits, started) if child.returncode is None else None
        yield kind
    yield Kind.OUTPUT if child.returncode == FLOODED else kind


def _gone_wrong(folder: Path, limits: Limits, started: float) -> Kind | None:
    running, output = folder / RUNNING, folder / OUTPUT
    if output.stat().st_size > _LONGEST_OUTPUT:
        return Kind.OUTPUT
    begun = running.exists() and running.stat().st_size > 0
    since = running.stat().st_mtime if running.exists() else started
    return Kind.HANG if time.time() - since > (limits.step_s if begun else _STARTING_S) else None


def _sum(one: Progress, other: Progress) -> Progress:
    """Counts of both; graphs, budget and states are those of the process that hunts now."""
    now = {"states", "graphs", "budget"}
    names = [part.name for part in fields(Progress) if part.name not in now]
    return replace(other, **{name: getattr(one, name) + getattr(other, name) for name in names})


def _deadline(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline
