"""A trace that ended a worker becomes a finding; a few more workers try shorter traces."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from types import MappingProxyType

from deepstack_harness.contract.trace import Op, Trace
from deepstack_harness.errors import HarnessError
from deepstack_harness.fuzzing.campaign import Campaign, Hunted
from deepstack_harness.fuzzing.finding import Finding, FindingKind
from deepstack_harness.fuzzing.pattern import pattern_of
from deepstack_harness.fuzzing.worker import JOURNAL, TRACE
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import CallResult, Flooded, RanOutOfMemory, TimedOut, WorkerEnd
from deepstack_harness.workers.worker import Worker

_SHORTENING_S = 20.0
_STEP_BYTES = 256 * 2**10
"""Bytes that one step may print; more is a finding."""
_KINDS: Mapping[type[WorkerEnd], FindingKind] = MappingProxyType(
    {TimedOut: FindingKind.HANG, Flooded: FindingKind.OUTPUT, RanOutOfMemory: FindingKind.MEMORY}
)
"""Kinds of findings by the end of the worker; every other end is a crash."""


def hunt_limits(campaign: Campaign) -> Limits:
    """Return the limits of a worker that hunts: a hunt has no time limit, and each of its steps has one."""
    limits = campaign.limits
    return Limits(
        start_s=300.0, call_s=None, step_s=limits.step_s, memory=limits.memory_bytes, output=_STEP_BYTES
    )


def note(campaign: Campaign, hunted: Hunted, end: WorkerEnd) -> None:
    """Write down the trace that ended a worker, shortened; raises `HarnessError` where it played none."""
    if not end.phase.startswith(TRACE):
        printed = end.output.strip() or "nothing"
        raise HarnessError(f"the hunt ended before its first step: {end.sentence}; it printed: {printed}")
    kind = _KINDS.get(type(end), FindingKind.CRASH)
    trace = _shortened(campaign, kind, Trace.parse(end.phase.removeprefix(TRACE)))
    asked, arm = campaign.asked, campaign.asked.arm
    finding = Finding(
        kind=kind, rule=None, trace=str(trace), pattern=pattern_of(trace), detail=_DETAILS[kind],
        target=asked.name, arm=arm, family=asked.family, examples=hunted.progress.examples,
        seconds=hunted.progress.seconds, seed=campaign.seed,
    )  # fmt: skip
    with (campaign.folder / JOURNAL).open("a", encoding="utf-8") as journal:
        journal.write(finding.to_json() + "\n")
    hunted.findings.append(finding)


_DETAILS = {
    FindingKind.HANG: "a step did not come back",
    FindingKind.CRASH: "the process ended in the middle of a step",
    FindingKind.OUTPUT: "more was printed than a person could read",
    FindingKind.MEMORY: "memory ran out",
}


def _shortened(campaign: Campaign, kind: FindingKind, trace: Trace) -> Trace:
    """Return the shortest of a few cuts that still ends a worker in the same way; takes seconds."""
    until = time.monotonic() + _SHORTENING_S
    for shorter in dict.fromkeys(_cuts(trace)):
        if time.monotonic() > until or len(shorter.steps) >= len(trace.steps):
            break
        if _shows(_replay(campaign, shorter), kind):
            return shorter
    return trace


def _replay(campaign: Campaign, trace: Trace) -> CallResult:
    work = "deepstack_harness.fuzzing.worker"
    arguments = {"asked": asdict(campaign.asked), "trace": str(trace)}
    with Worker(hunt_limits(campaign), preload=work) as worker:
        return worker.call(f"{work}:replay", arguments, seconds=campaign.limits.step_s + 10)


def _cuts(trace: Trace) -> Iterator[Trace]:
    """Yield the last step alone, also on a buffer as large as it had grown, and with few steps before it."""
    *before, last = trace.steps
    acting = [step for step in before if step.op is not Op.GET]
    grown = max(trace.capacity, *(step.tokens for step in trace))
    yield Trace(trace.capacity, (last,))
    yield Trace(grown, (last,))
    for kept in (before[-1:], acting[-1:], acting[-2:], acting):
        yield Trace(trace.capacity, (*kept, last))


def _shows(result: CallResult, kind: FindingKind) -> bool:
    return isinstance(result, WorkerEnd) and _KINDS.get(type(result), FindingKind.CRASH) is kind
