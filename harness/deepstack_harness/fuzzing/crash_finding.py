"""The trace that ended a hunting process: shortened in a few more processes, and written down."""

import time
from collections.abc import Iterator
from dataclasses import asdict

from deepstack_harness.contract.trace import Op, Trace
from deepstack_harness.errors import HarnessError
from deepstack_harness.fuzzing.campaign import Campaign, Hunted
from deepstack_harness.fuzzing.finding import Finding, Kind
from deepstack_harness.fuzzing.pattern import pattern_of
from deepstack_harness.fuzzing.worker import JOURNAL, OUTPUT, PRINTED_BYTES, RUNNING
from deepstack_harness.workers.isolate import Ending, Outcome, run_isolated

_SHORTENING_S = 20.0


def note(campaign: Campaign, hunted: Hunted, kind: Kind) -> None:
    """Write down the trace that ended the process, shortened; raises `HarnessError` where it played none."""
    text = (campaign.folder / RUNNING).read_text() if (campaign.folder / RUNNING).exists() else ""
    if not text:
        said = (campaign.folder / OUTPUT).read_bytes()[-2000:].decode(errors="replace").strip()
        raise HarnessError(f"the hunting process ended before its first step: {said or 'it said nothing'}")
    trace = _shortened(campaign, kind, Trace.parse(text))
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
    Kind.HANG: "a step did not come back",
    Kind.CRASH: "the process ended in the middle of a step",
    Kind.OUTPUT: "more was printed than a person could read",
    Kind.MEMORY: "memory ran out",
}


def _shortened(campaign: Campaign, kind: Kind, trace: Trace) -> Trace:
    """The shortest of a few cuts that still ends a process in the same way; seconds, not minutes."""
    until, limits = time.monotonic() + _SHORTENING_S, campaign.limits
    for shorter in dict.fromkeys(_cuts(trace)):
        if time.monotonic() > until or len(shorter.steps) >= len(trace.steps):
            break
        outcome = run_isolated(
            "deepstack_harness.fuzzing.worker:replay",
            {"asked": asdict(campaign.asked), "trace": str(shorter)},
            timeout_s=limits.step_s + 10, memory_bytes=limits.memory_bytes,
        )  # fmt: skip
        if _shows(outcome, kind):
            return shorter
    return trace


def _cuts(trace: Trace) -> Iterator[Trace]:
    """The last step alone, also on a buffer as large as this one had grown, and with few steps before it."""
    *before, last = trace.steps
    acting = [step for step in before if step.op is not Op.GET]
    grown = max(trace.capacity, *(step.tokens for step in trace))
    yield Trace(trace.capacity, (last,))
    yield Trace(grown, (last,))
    for kept in (before[-1:], acting[-1:], acting[-2:], acting):
        yield Trace(trace.capacity, (*kept, last))


def _shows(outcome: Outcome, kind: Kind) -> bool:
    if kind is Kind.OUTPUT:
        flooded = outcome.ending is Ending.RETURNED and int(outcome.value) > PRINTED_BYTES
        return flooded or outcome.ending is Ending.TIMED_OUT
    return outcome.ending is (Ending.TIMED_OUT if kind is Kind.HANG else Ending.CRASHED)
