"""A night: stages as processes, one after the other; what fails is kept, and the night goes on."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import msgspec

from deepstack_harness.errors import ExitCode
from deepstack_harness.workers.isolate import Ending, run_isolated

_GPU_SECONDS = 180
_LEAST_FREE = 2**29
"""Bytes of the disk below which no stage is started."""
_BALLAST = 2**25
"""Bytes kept back, so that the report of a night that filled the disk can be written."""
_TAIL = 2000
_SHORT = 300


class Outcome(StrEnum):
    """How a stage ended; FAILED: it was to judge and could not; NOT_RUN: it was not started."""

    HELD = "held"
    BROKEN = "broken"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Stage:
    """A command, its limit in seconds, whether it needs the GPU, and where it runs.

    `without_gpu` is what to run instead where the GPU is lost; without it, nothing is.
    `judged` has the last word where the command exits with "broken": what is broken may
    be known.  A `last` stage runs whatever happened before.
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
    """A stage that is over: `code` is its exit status, `detail` why it is not HELD."""

    stage: str
    outcome: Outcome
    code: int | None = None
    seconds: float = 0.0
    detail: str = ""

    @property
    def in_short(self) -> str:
        """Its name, and how it ended."""
        return f"{self.stage} {self.outcome}"

    @property
    def held(self) -> bool:
        """Whether there is nothing to tell of it."""
        return self.outcome is Outcome.HELD

    @property
    def why(self) -> str:
        """The last lines of the detail, as many as are short together, and at least one."""
        lines = self.detail.splitlines()
        while len(lines) > 1 and sum(map(len, lines)) > _SHORT:
            del lines[0]
        return "\n".join(lines)


@dataclass
class Night:
    """Runs stages in a folder; `gpu_fault` and `free` are asked again and again, as both may change."""

    folder: Path
    gpu_fault: Callable[[], str | None]
    free: Callable[[Path], int] = field(default=lambda folder: shutil.disk_usage(folder).free)
    lost: str | None = None
    """Why no stage for the GPU is started any more."""

    def run(self, stages: Sequence[Stage]) -> Iterator[Ended]:
        """Every stage as it ends; `KeyboardInterrupt` ends the stage that runs, and the night."""
        self._keep_back()
        if any(stage.gpu for stage in stages):
            yield self._look_at_gpu()
        for stage in stages:
            if stage.last:
                self._give_up()
            why = None if stage.last else self._hindrance(stage)
            yield Ended(stage.name, Outcome.NOT_RUN, detail=why) if why else self._run(stage)

    def _look_at_gpu(self) -> Ended:
        started = time.monotonic()
        self.lost = self.gpu_fault()
        outcome = Outcome.FAILED if self.lost else Outcome.HELD
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
        except OSError as error:  # no room for its log, no memory for its process
            outcome, code, detail = Outcome.FAILED, None, f"could not be started: {error.strerror}"
        ended = Ended(stage.name, outcome, code, time.monotonic() - started, detail)
        return self._after(stage, ended)

    def _call(self, stage: Stage) -> tuple[Outcome, int | None, str]:
        log = self.folder / f"{stage.name}.log"
        command = stage.without_gpu if stage.gpu and self.lost else stage.command
        with log.open("wb") as printed:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
                cwd=stage.where, start_new_session=True,
            )  # fmt: skip
            try:
                code = child.wait(stage.seconds)
            except subprocess.TimeoutExpired:
                return Outcome.TIMED_OUT, None, f"no end within {stage.seconds:g} s: {_tail(log)}"
            finally:
                _end_group(child)
        outcome = _outcome(stage, code)
        return outcome, code, "" if outcome is Outcome.HELD else _tail(log)

    def _after(self, stage: Stage, ended: Ended) -> Ended:
        """Where a stage for the GPU did not hold, ask whether the GPU is still there."""
        if not stage.gpu or self.lost or ended.held:
            return ended
        self.lost = self.gpu_fault()
        return replace(ended, detail=f"the GPU is lost: {self.lost}; {ended.detail}") if self.lost else ended

    def _keep_back(self) -> None:
        with suppress(OSError):  # then the disk is full, and every stage says so
            (self.folder / "ballast").write_bytes(bytes(_BALLAST))

    def _give_up(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)


def exit_code(ended: Sequence[Ended]) -> ExitCode:
    """Broken before all else; then what the machine could not, then what went wrong."""
    outcomes = {one.outcome for one in ended}
    if Outcome.BROKEN in outcomes:
        return ExitCode.BROKEN
    if outcomes & {Outcome.TIMED_OUT, Outcome.NOT_RUN} or any(_is_machine(one) for one in ended):
        return ExitCode.MACHINE
    return ExitCode.BUG if Outcome.FAILED in outcomes else ExitCode.HOLDS


def write_summary(folder: Path, ended: Sequence[Ended]) -> None:
    """`nightly.json` and `nightly.md`; raises `OSError`."""
    (folder / "nightly.json").write_bytes(msgspec.json.format(msgspec.json.encode(ended), indent=2))
    lines = ["| stage | ended | seconds | why |", "|---|---|---|---|"]
    lines += [f"| {one.stage} | {one.outcome} | {one.seconds:.0f} | {_cell(one.why)} |" for one in ended]
    (folder / "nightly.md").write_text("\n".join(["## Night", "", *lines, ""]))


def gpu_fault() -> str | None:
    """Why CUDA cannot be used; None where it can.  A fresh process asks: no earlier error sticks to it."""
    try:
        outcome = run_isolated("deepstack_harness.nightly.night:use_gpu", {}, timeout_s=_GPU_SECONDS)
    except OSError as error:
        return f"cannot be asked: {error.strerror}"
    if outcome.ending is Ending.RETURNED:
        return None
    return f"{outcome.ending}: {outcome.detail or outcome.output}".strip()


def use_gpu() -> float:
    """Multiply on the GPU; raises where that cannot be."""
    import torch

    ones = torch.ones(64, 64, device="cuda")
    torch.cuda.synchronize()
    return float((ones @ ones).sum())


def _outcome(stage: Stage, code: int) -> Outcome:
    if code == ExitCode.BROKEN and stage.judged is not None:
        return Outcome.BROKEN if stage.judged() else Outcome.HELD
    return {0: Outcome.HELD, 1: Outcome.BROKEN}.get(code, Outcome.FAILED)


def _is_machine(one: Ended) -> bool:
    return one.outcome is Outcome.FAILED and one.code in {None, ExitCode.MACHINE}


def _end_group(child: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _tail(log: Path) -> str:
    """The last lines of what a stage printed."""
    with log.open("rb") as printed:
        printed.seek(max(0, log.stat().st_size - _TAIL))
        return printed.read().decode(errors="replace").strip() or "it printed nothing"


def _cell(text: str) -> str:
    """On one line, harmless in a Markdown table."""
    line = " ".join(text.split())[-_TAIL:]
    return line.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
