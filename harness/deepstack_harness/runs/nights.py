"""The runner of a night: stages, each a command in a process of its own, one after the other.

A stage that fails, a GPU that is gone or a full disk does not end the night: the report is made last, and
names what could not be run. `runs.night_stages` has the stages of each tier.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import msgspec

from deepstack_harness.contract.facts import Measured
from deepstack_harness.errors import ExitCode, MachineError, UsageError
from deepstack_harness.files import read_regular, write_atomically
from deepstack_harness.runs.machine import visible_gpus
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, EndKind
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.supervised import Command, run_command
from deepstack_harness.workers.worker import Worker

_USE_GPU = Remote("deepstack_harness.runs.nights:use_gpu", float)
_GPU_SECONDS = 180.0
"""Seconds for one multiplication on the GPU, with the import of torch. After them the GPU counts as gone."""
_LEAST_FREE = 2**29
"""Bytes that must be free on the disk for a stage to be started."""
_BALLAST = 2**25
"""Bytes of a file that is removed before the last stages: then a report fits on a disk that is full."""
_LONGEST_FILE = 2**31
"""Bytes of the longest file that a stage may write: a log without end must not fill the disk."""
_LONGEST_DETAIL = 2000
"""Characters of a stage's detail, the last ones: an error is at the end."""
_LONGEST_CELL = 300
"""Characters of a cell in the table of stages."""


class StageOutcome(StrEnum):
    """Outcome of a stage; FAILED: it was to judge and could not; NOT_RUN: it was not started.

    REHEARSED: it ended well without the GPU that it is for, which is no result for a GPU. LEFT_OUT: this
    machine does not have what it is for, such as a second GPU, and never will.
    """

    HELD = "held"
    REHEARSED = "rehearsed"
    LEFT_OUT = "left out"
    BROKEN = "broken"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Stage:
    """A command, its time limit in seconds, whether it needs the GPU, and the folder that it runs in.

    `without_gpu` is the command to run instead where the GPU is lost; without it the stage is not run.
    `has_unexpected` is called where the command exits with "broken", and returns False if all that is broken
    is known. A `last` stage runs whatever happened before. `needs` are distributions of extras without which
    it cannot run, and `missing` those that are not installed, by extra; an `optional` stage needs more than a
    night is documented to need. `least_gpus` is how many GPUs a stage for them needs. `rehearses` describes
    what a stage shows that runs without the GPU that it is for. `measured` is the file of `Measured` rows
    that it writes. `about` describes it in a list of stages. Where the whole night has a limit, a stage gets
    a part of what is left by its `share`, and is not started with less than `least` seconds.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    gpu: bool = False
    without_gpu: tuple[str, ...] = ()
    where: Path | None = None
    has_unexpected: Callable[[], bool] | None = None
    last: bool = False
    needs: tuple[str, ...] = ()
    missing: Mapping[str, Sequence[str]] = field(default_factory=dict)
    optional: bool = False
    share: float = 1.0
    least: float = 10.0
    least_gpus: int = 1
    rehearses: str = ""
    measured: Path | None = None
    about: str = ""


@dataclass(frozen=True)
class EndedStage:
    """A stage that is over: `code` is its exit status (negative: a signal), `detail` why it is not HELD.

    `measured` is what it measured until its end, however it ended.
    """

    stage: str
    outcome: StageOutcome
    code: int | None = None
    seconds: float = 0.0
    detail: str = ""
    measured: tuple[Measured, ...] = ()

    @property
    def in_short(self) -> str:
        """The name of the stage and its outcome."""
        return f"{self.stage} {self.outcome}"

    @property
    def judged(self) -> bool:
        """Return whether it came to its end: a night that goes on does not run it again."""
        return self.outcome in {StageOutcome.HELD, StageOutcome.REHEARSED, StageOutcome.BROKEN}

    @property
    def held(self) -> bool:
        """Return whether there is nothing to report."""
        return self.outcome is StageOutcome.HELD

    @property
    def wrong(self) -> bool:
        """Return whether somebody has to look; what the machine will never have is printed, and not wrong."""
        return self.outcome not in {StageOutcome.HELD, StageOutcome.LEFT_OUT}

    @property
    def why(self) -> str:
        """The last lines of the detail: as many as are short together, and at least one."""
        lines = self.detail.splitlines()
        while len(lines) > 1 and sum(map(len, lines)) > _LONGEST_CELL:
            del lines[0]
        return "\n".join(lines)


@dataclass
class NightlyRun:
    """Runner of stages in a folder; it calls `gpu_fault` and `free` repeatedly, as their results change.

    `seconds` is the limit of the whole night by `clock`, None for a night whose stages only have their own
    limits.
    """

    folder: Path
    gpu_fault: Callable[[], str | None]
    free: Callable[[Path], int] = field(default=lambda folder: shutil.disk_usage(folder).free)
    lost: str | None = None
    """Why no stage for the GPU is started any more."""
    seconds: float | None = None
    clock: Callable[[], float] = time.monotonic
    count_gpus: Callable[[], int] = field(default=lambda: len(visible_gpus()))

    def run(self, stages: Sequence[Stage]) -> Iterator[EndedStage]:
        """Yield every stage as it ends; `KeyboardInterrupt` ends the stage that runs, and the night."""
        end = None if self.seconds is None else self.clock() + self.seconds
        with suppress(OSError):  # the disk is full then, and every stage reports it
            (self.folder / "ballast").write_bytes(bytes(_BALLAST))
        try:
            if any(stage.gpu for stage in stages):
                started = time.monotonic()
                self.lost = self.gpu_fault()
                outcome = StageOutcome.FAILED if self.lost else StageOutcome.HELD
                yield EndedStage("gpu", outcome, seconds=time.monotonic() - started, detail=self.lost or "")
            for number, stage in enumerate(stages):
                if stage.last:
                    self._remove_ballast()
                limit = stage.seconds if end is None else _limit(stages[number:], end - self.clock())
                yield self._not_started(stage, limit) or self._run(stage, limit)
        finally:
            self._remove_ballast()

    def _remove_ballast(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)

    def _not_started(self, stage: Stage, limit: float) -> EndedStage | None:
        """Return the end of a stage that cannot be started, None for one that can."""
        why, outcome = "", StageOutcome.NOT_RUN
        if stage.missing:
            why = not_installed(stage.missing)
            outcome = StageOutcome.LEFT_OUT if stage.optional else outcome
        elif stage.last:
            return None
        elif limit < min(stage.least, stage.seconds):
            left = f"{max(limit, 0):.0f} s of the night are left for it"
            why = f"no time: it needs at least {stage.least:g} s, and {left}"
        elif stage.gpu and self.lost and not stage.without_gpu:
            why = f"the GPU is gone: {self.lost}"
        elif (free := self.free(self.folder)) < _LEAST_FREE:
            why = f"the disk is full: {free >> 20} MiB are left"
        elif stage.least_gpus > 1:
            outcome = StageOutcome.LEFT_OUT
            try:
                if (count := self.count_gpus()) < stage.least_gpus:
                    have = "one GPU" if count == 1 else f"{count} GPUs"
                    why = f"{have}: it needs {stage.least_gpus}"
            except MachineError as error:
                why = str(error)
        return EndedStage(stage.name, outcome, detail=why) if why else None

    def _run(self, stage: Stage, limit: float) -> EndedStage:
        started = time.monotonic()
        try:
            outcome, code, detail = self._call(stage, limit)
        except (OSError, MachineError) as error:  # no room for its log, no memory for its process
            why = error.strerror if isinstance(error, OSError) else error
            outcome, code, detail = StageOutcome.FAILED, None, f"could not be started: {why}"
        measured: list[Measured] = []
        if stage.measured:  # the rows before a line that a killed stage left torn
            with suppress(OSError, UsageError, msgspec.MsgspecError):
                lines = read_regular(stage.measured).splitlines()
                measured.extend(msgspec.json.decode(line, type=Measured) for line in lines)
        ended = EndedStage(stage.name, outcome, code, time.monotonic() - started, detail, tuple(measured))
        if not stage.gpu or self.lost or ended.held:
            return ended
        self.lost = self.gpu_fault()
        return replace(ended, detail=f"the GPU is gone: {self.lost}; {ended.detail}") if self.lost else ended

    def _call(self, stage: Stage, limit: float) -> tuple[StageOutcome, int | None, str]:
        words = stage.without_gpu if stage.gpu and self.lost else stage.command
        log = self.folder / f"{stage.name}.log"
        command = Command(words, folder=stage.where, log=log, own_temporary=True)
        end = run_command(command, Limits(call_s=limit, file_size=_LONGEST_FILE))
        printed = end.output[-_LONGEST_DETAIL:].strip() or "it printed nothing"
        if end.kind is EndKind.TIMED_OUT:
            part = ", its part of the night" if limit < stage.seconds else ""
            return StageOutcome.TIMED_OUT, None, f"no end within {limit:.0f} s{part}: {printed}"
        assert end.status is not None  # a stage has no other limit that ends it
        code = end.status
        outcome = {0: StageOutcome.HELD, 1: StageOutcome.BROKEN}.get(code, StageOutcome.FAILED)
        if code == ExitCode.BROKEN and stage.has_unexpected is not None and not stage.has_unexpected():
            outcome = StageOutcome.HELD
        if outcome is StageOutcome.HELD and stage.rehearses:
            return StageOutcome.REHEARSED, code, stage.rehearses
        return outcome, code, "" if outcome is StageOutcome.HELD else printed


def not_installed(missing: Mapping[str, Sequence[str]]) -> str:
    """Return `not installed: NAME>=1 (extra 'X')` with the command that installs it."""
    parts = (f"{', '.join(names)} (extra '{extra}')" for extra, names in missing.items())
    extras = ",".join(missing)
    return f"not installed: {'; '.join(parts)}: python -m pip install 'deepstack-harness[{extras}]'"


def _limit(stages: Sequence[Stage], left: float) -> float:
    """Return the seconds of the first of the stages that are left, of `left` seconds.

    The time that the last stages need is reserved for them. Stages that could not be started have no share.
    """
    stage, *_ = stages
    if stage.last:
        return min(stage.seconds, max(left, stage.least))
    usable = left - sum(other.least for other in stages if other.last)
    shares = [other.share for other in stages if not other.last and other.least <= usable]
    part = usable * stage.share / sum(shares) if shares else usable
    return min(stage.seconds, usable, max(part, stage.least))


def exit_code(ended: Sequence[EndedStage]) -> ExitCode:
    """Return the exit code of a night: BROKEN before MACHINE, and MACHINE before BUG.

    Stages that were rehearsed or left out change nothing.
    """
    outcomes = {stage.outcome for stage in ended}
    failed = {stage.code for stage in ended if stage.outcome is StageOutcome.FAILED}
    if StageOutcome.BROKEN in outcomes:
        return ExitCode.BROKEN
    if outcomes & {StageOutcome.TIMED_OUT, StageOutcome.NOT_RUN} or failed & {None, ExitCode.MACHINE}:
        return ExitCode.MACHINE
    return ExitCode.BUG if StageOutcome.FAILED in outcomes else ExitCode.HOLDS


def write_summary(folder: Path, ended: Sequence[EndedStage]) -> None:
    """Write `nightly.json` and `nightly.md`; raises `OSError`."""
    write_atomically(folder / "nightly.json", msgspec.json.format(msgspec.json.encode(ended), indent=2))
    lines = ["| stage | ended | seconds | why |", "|---|---|---|---|"]
    for stage in ended:
        why = " ".join(stage.why.split())[-_LONGEST_DETAIL:]
        # Without characters that mean something in a Markdown table.
        why = why.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
        lines.append(f"| {stage.stage} | {stage.outcome} | {stage.seconds:.0f} | {why} |")
    (folder / "nightly.md").write_text("\n".join(["## Night", "", *lines, ""]))


def read_summary(folder: Path) -> list[EndedStage]:
    """Return the stages in `nightly.json`; none without the file. Raises `UsageError` for another file."""
    file = folder / "nightly.json"
    try:
        return msgspec.json.decode(read_regular(file), type=list[EndedStage])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"'{file}' is not what a night writes: {error}") from None


def gpu_fault() -> str | None:
    """Return why CUDA cannot be used, None where it can; a fresh worker has met no earlier CUDA error."""
    try:
        with Worker(Limits(call_s=_GPU_SECONDS)) as worker:
            result = worker.call(_USE_GPU)
    except MachineError as error:
        return f"cannot be used: {error}"
    return None if isinstance(result, Answered) else result.sentence


def use_gpu() -> float:
    """Multiply on the GPU; raises where that is impossible. For a worker."""
    import torch

    ones = torch.ones(64, 64, device="cuda")
    torch.cuda.synchronize()
    return float((ones @ ones).sum())
