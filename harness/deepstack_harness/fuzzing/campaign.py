"""Fuzz campaigns: a hunt, the folder that it is kept in, and how it goes on after it was ended.

`findings.jsonl` has each finding from the moment it is told; `run.json` has the request and the progress.
A run that was killed goes on when the same command is given again with the same folder.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec
from typing_extensions import override

from deepstack_harness.arms.interpreter_environment import environment_in
from deepstack_harness.atomic import write_atomically
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.trace import Trace
from deepstack_harness.engines.cuts import cut_methods_of
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import UsageError
from deepstack_harness.fuzzing.boundary import search_boundary
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.hunt import MOST_DEATHS, Hunt
from deepstack_harness.fuzzing.lifecycles import lifecycles
from deepstack_harness.fuzzing.player import MEMORY_BYTES, WorkerPlayer
from deepstack_harness.fuzzing.request import FuzzRequest, target_of
from deepstack_harness.fuzzing.watch import Progress, Watch
from deepstack_harness.torch_compat.target_support import check_interpreter
from deepstack_harness.workers.profiles import COMPILE, CONTRACT, SandboxProfile

RUN = "run.json"
JOURNAL = "findings.jsonl"
_TELL_S = 0.1
_KEEP_S = 1.0

Tell = Callable[[Progress, list[Finding]], None]
"""Called now and then with the progress of a campaign and its findings so far."""


@dataclass(frozen=True)
class HuntLimits:
    """Seconds for one step, bytes of memory, and seconds for the whole hunt."""

    step_s: float = 20.0
    memory_bytes: int = MEMORY_BYTES
    seconds: float | None = None


@dataclass(frozen=True)
class Campaign:
    """A hunt of `examples` traces with a seed, kept in `folder`."""

    asked: FuzzRequest
    folder: Path
    examples: int
    seed: int = 0
    boundary: bool = False
    limits: HuntLimits = field(default_factory=HuntLimits)

    def describe(self) -> dict[str, object]:
        """Return the request; a run goes on only if this is the same."""
        return {"schema_version": 1, "asked": asdict(self.asked), "examples": self.examples,
                "seed": self.seed, "boundary": self.boundary}  # fmt: skip


@dataclass
class Hunted:
    """Result of a campaign so far: findings, counts, and whether all was played."""

    findings: list[Finding] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)
    complete: bool = False
    resumed: int = 0
    """Findings of an earlier run that this one goes on with."""
    torch: str = ""
    """The version of torch that played."""


def start(campaign: Campaign) -> Hunted:
    """Make the folder, or read the files that an unfinished run of the same campaign left in it.

    Raises `UsageError` for a folder that has something else in it.
    """
    _make(campaign.folder)
    earlier = _read_run(campaign.folder)
    if earlier is None or earlier.get("finished"):
        _forget(campaign.folder)
        return Hunted()
    if earlier["campaign"] != campaign.describe():
        raise UsageError(
            f"'{campaign.folder}' has an unfinished run with other options: "
            "repeat those options, or choose another --out"
        )
    findings = read_journal(campaign.folder)
    progress = msgspec.convert(earlier["progress"], Progress)
    return Hunted(findings, progress, resumed=len(findings))


def read_journal(folder: Path) -> list[Finding]:
    """Return the findings in the order in which they came."""
    path, found = folder / JOURNAL, []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(msgspec.DecodeError):  # the last line of a machine that lost power
            found.append(Finding.from_json(line))
    return found


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot keep findings in '{folder}': {error.strerror}") from None


def _read_run(folder: Path) -> dict[str, object] | None:
    path = folder / RUN
    try:
        found: dict[str, object] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        raise UsageError(
            f"'{path}' was not written by a fuzz run: remove it, or choose another --out"
        ) from None
    return found


def _forget(folder: Path) -> None:
    for name in (RUN, JOURNAL):
        (folder / name).unlink(missing_ok=True)


def carry_on(campaign: Campaign, hunted: Hunted, tell: Tell) -> Hunted:
    """Play what is left of the examples, and return `hunted`; raises as `request.target_of` does."""
    limits = campaign.limits
    with ExitStack() as stack:
        player = WorkerPlayer(
            step_s=limits.step_s, memory_bytes=limits.memory_bytes, sandbox=_sandbox(campaign.asked),
            environment=_environment(campaign.asked, stack),
        )  # fmt: skip
        stack.callback(player.close)
        target = target_of(campaign.asked, player)
        hunted.torch = player.torch
        hunt = Hunt(
            target, player, seed=campaign.seed, known=hunted.findings, progress=hunted.progress,
            watch=_Keeper(campaign, hunted, tell),
        )  # fmt: skip
        if campaign.boundary:
            search_boundary(hunt)
        else:
            hunt.search(lifecycles(target), campaign.examples)
    hunted.complete = hunted.progress.examples >= campaign.examples
    keep(campaign, hunted, finished=hunted.complete or hunted.progress.deaths >= MOST_DEATHS)
    return hunted


def _environment(asked: FuzzRequest, stack: ExitStack) -> dict[str, str] | None:
    """Return the environment of a worker that interprets; its caches are removed when `stack` closes."""
    if not ArmSpec.parse(asked.arm).interpreted:
        return None
    check_interpreter()
    folder = tempfile.TemporaryDirectory(prefix="deepstack-h200-", ignore_cleanup_errors=True)
    return environment_in(stack.enter_context(folder))


def _sandbox(asked: FuzzRequest) -> SandboxProfile | None:
    """Return the sandbox of a source or of a user's class; None for a buffer of ours."""
    if asked.source:
        compiles = ArmSpec.parse(asked.arm).compiled
        source = open_source(asked.source)
        cut_methods_of(source, asked.family)  # caches a release, for a worker that has no network
        return COMPILE if compiles else CONTRACT
    return COMPILE if asked.buffer else None


class _Keeper(Watch):
    """Watch that writes findings to the journal, keeps the progress, and ends the hunt when time is over."""

    def __init__(self, campaign: Campaign, hunted: Hunted, tell: Tell) -> None:
        self._campaign, self._hunted, self._tell = campaign, hunted, tell
        seconds = campaign.limits.seconds
        self._until = None if seconds is None else time.monotonic() + seconds
        self._told = self._kept = 0.0

    @override
    def example(self, progress: Progress, trace: Trace) -> None:
        now = time.monotonic()
        if now > self._told + _TELL_S:
            self._told = now
            self._tell(progress, self._hunted.findings)
        if now > self._kept + _KEEP_S:
            self._kept = now
            keep(self._campaign, self._hunted)

    @override
    def found(self, finding: Finding) -> None:
        # On the disk before anybody hears of it: a finding that was told survives whatever follows.
        with (self._campaign.folder / JOURNAL).open("a", encoding="utf-8") as journal:
            journal.write(finding.to_json() + "\n")
            journal.flush()
            os.fsync(journal.fileno())
        self._hunted.findings.append(finding)
        self._tell(self._hunted.progress, self._hunted.findings)

    @override
    def enough(self) -> bool:
        return self._until is not None and time.monotonic() > self._until


def keep(campaign: Campaign, hunted: Hunted, *, finished: bool = False) -> None:
    """Write how far the campaign is; one that is finished is begun anew the next time."""
    state = {
        "campaign": campaign.describe(), "progress": asdict(hunted.progress), "finished": finished,
    }  # fmt: skip
    write_atomically(campaign.folder / RUN, json.dumps(state).encode())
