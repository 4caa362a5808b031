"""Run the stages of a night as processes, one after the other; a stage that fails does not end the night."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import msgspec

from deepstack_harness.errors import ExitCode, MachineError
from deepstack_harness.workers.command import Command, run_command
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, Exited, Signalled, TimedOut, WorkerEnd
from deepstack_harness.workers.worker import call_once

_USE_GPU = "deepstack_harness.nightly.night:use_gpu"
_GPU_SECONDS = 180.0
_LEAST_FREE = 2**29
"""Bytes that must be free on the disk for a stage to be started."""
_BALLAST = 2**25
"""Bytes of a file that is removed before the last stages: then a report fits on a disk that is full."""
_LONGEST_FILE = 2**31
"""Bytes of the longest file that a stage may write: a log without end must not fill the disk."""
_TAIL = 2000
_SHORT = 300


class StageOutcome(StrEnum):
    """StageOutcome of a stage; FAILED: it was to judge and could not; NOT_RUN: it was not started."""

    HELD = "held"
    BROKEN = "broken"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Stage:
    """A command, its time limit in seconds, whether it needs the GPU, and the folder that it runs in.

    `without_gpu` is the command to run instead where the GPU is lost; without it the stage is not run.
    `judged` is called where the command exits with "broken", and returns False if all that is broken is
    known.  A `last` stage runs whatever happened before.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    gpu: bool = False
    without_gpu: tuple[str, ...] = ()
    where: Path | None = None
    judged: Callable[[], bool] | None = None
    last: bool = False


@dataclass(frozen=True)
class Ended:
    """A stage that is over: `code` is its exit status (negative: a signal), `detail` why it is not HELD."""

    stage: str
    outcome: StageOutcome
    code: int | None = None
    seconds: float = 0.0
    detail: str = ""

    @property
    def in_short(self) -> str:
        """The name of the stage and its outcome."""
        return f"{self.stage} {self.outcome}"

    @property
    def held(self) -> bool:
        """True if there is nothing to tell of it."""
        return self.outcome is StageOutcome.HELD

    @property
    def why(self) -> str:
        """The last lines of the detail: as many as are short together, and at least one."""
        lines = self.detail.splitlines()
        while len(lines) > 1 and sum(map(len, lines)) > _SHORT:
            del lines[0]
        return "\n".join(lines)


@dataclass
class NightlyRun:
    """Runner of stages in a folder; it calls `gpu_fault` and `free` repeatedly, as their answers change."""

    folder: Path
    gpu_fault: Callable[[], str | None]
    free: Callable[[Path], int] = field(default=lambda folder: shutil.disk_usage(folder).free)
    lost: str | None = None
    """Why no stage for the GPU is started any more."""

    def run(self, stages: Sequence[Stage]) -> Iterator[Ended]:
        """Yield every stage as it ends; `KeyboardInterrupt` ends the stage that runs, and the night."""
        self._write_ballast()
        if any(stage.gpu for stage in stages):
            yield self._check_gpu()
        for stage in stages:
            if stage.last:
                self._remove_ballast()
            why = None if stage.last else self._hindrance(stage)
            yield Ended(stage.name, StageOutcome.NOT_RUN, detail=why) if why else self._run(stage)

    def _check_gpu(self) -> Ended:
        started = time.monotonic()
        self.lost = self.gpu_fault()
        outcome = StageOutcome.FAILED if self.lost else StageOutcome.HELD
        return Ended("gpu", outcome, seconds=time.monotonic() - started, detail=self.lost or "")

    def _hindrance(self, stage: Stage) -> str | None:
        if stage.gpu and self.lost and not stage.without_gpu:
            return f"the GPU is lost: {self.lost}"
        free = self.free(self.folder)
        return f"the disk is full: {free >> 20} MiB are left" if free < _LEAST_FREE else None

    def _run(self, stage: Stage) -> Ended:
        started = time.monotonic()
        try:
            outcome, code, detail = self._call(stage)
        except (OSError, MachineError) as error:  # no room for its log, no memory for its process
            why = error.strerror if isinstance(error, OSError) else error
            outcome, code, detail = StageOutcome.FAILED, None, f"could not be started: {why}"
        ended = Ended(stage.name, outcome, code, time.monotonic() - started, detail)
        return self._after(stage, ended)

    def _call(self, stage: Stage) -> tuple[StageOutcome, int | None, str]:
        words = stage.without_gpu if stage.gpu and self.lost else stage.command
        command = Command(words, folder=stage.where, log=self.folder / f"{stage.name}.log")
        end = run_command(command, Limits(call_s=stage.seconds, file_size=_LONGEST_FILE))
        printed = end.output[-_TAIL:].strip() or "it printed nothing"
        if isinstance(end, TimedOut):
            return StageOutcome.TIMED_OUT, None, f"no end within {stage.seconds:g} s: {printed}"
        code = _code(end)
        outcome = _outcome(stage, code)
        return outcome, code, "" if outcome is StageOutcome.HELD else printed

    def _after(self, stage: Stage, ended: Ended) -> Ended:
        """Check the GPU after a stage for it that did not hold."""
        if not stage.gpu or self.lost or ended.held:
            return ended
        self.lost = self.gpu_fault()
        return replace(ended, detail=f"the GPU is lost: {self.lost}; {ended.detail}") if self.lost else ended

    def _write_ballast(self) -> None:
        with suppress(OSError):  # the disk is full then, and every stage says so
            (self.folder / "ballast").write_bytes(bytes(_BALLAST))

    def _remove_ballast(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)


def exit_code(ended: Sequence[Ended]) -> ExitCode:
    """Return the exit code of a night: BROKEN before MACHINE, and MACHINE before BUG."""
    outcomes = {one.outcome for one in ended}
    if StageOutcome.BROKEN in outcomes:
        return ExitCode.BROKEN
    if outcomes & {StageOutcome.TIMED_OUT, StageOutcome.NOT_RUN} or any(_is_machine(one) for one in ended):
        return ExitCode.MACHINE
    return ExitCode.BUG if StageOutcome.FAILED in outcomes else ExitCode.HOLDS


def write_summary(folder: Path, ended: Sequence[Ended]) -> None:
    """Write `nightly.json` and `nightly.md`; raises `OSError`."""
    (folder / "nightly.json").write_bytes(msgspec.json.format(msgspec.json.encode(ended), indent=2))
    lines = ["| stage | ended | seconds | why |", "|---|---|---|---|"]
    lines += [f"| {one.stage} | {one.outcome} | {one.seconds:.0f} | {_cell(one.why)} |" for one in ended]
    (folder / "nightly.md").write_text("\n".join(["## Night", "", *lines, ""]))


def gpu_fault() -> str | None:
    """Return why CUDA cannot be used, None where it can; a fresh worker has met no earlier CUDA error."""
    try:
        result = call_once(_USE_GPU, limits=Limits(call_s=_GPU_SECONDS))
    except MachineError as error:
        return f"cannot be asked: {error}"
    return None if isinstance(result, Answered) else result.sentence


def use_gpu() -> float:
    """Multiply on the GPU; raises where that is impossible.  For a worker."""
    import torch

    ones = torch.ones(64, 64, device="cuda")
    torch.cuda.synchronize()
    return float((ones @ ones).sum())


def _code(end: WorkerEnd) -> int:
    match end:
        case Exited(status=status):
            return status
        case Signalled(number=number):
            return -number
    raise TypeError(f"a stage without limits ended as {type(end).__name__}")


def _outcome(stage: Stage, code: int) -> StageOutcome:
    if code == ExitCode.BROKEN and stage.judged is not None:
        return StageOutcome.BROKEN if stage.judged() else StageOutcome.HELD
    return {0: StageOutcome.HELD, 1: StageOutcome.BROKEN}.get(code, StageOutcome.FAILED)


def _is_machine(one: Ended) -> bool:
    return one.outcome is StageOutcome.FAILED and one.code in {None, ExitCode.MACHINE}


def _cell(text: str) -> str:
    """Return the text on one line, without characters that mean something in a Markdown table."""
    line = " ".join(text.split())[-_TAIL:]
    return line.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
