"""The process that hunts, and may not survive it: it writes down what it does before it does it.

Started by `deepstack_harness.fuzzing.worker_process` with an `Order` as JSON on stdin.
"""

import os
import resource
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from typing_extensions import override

from deepstack_harness.contract.trace import Step, Trace
from deepstack_harness.errors import ExitCode, HarnessError, OutOfMemory
from deepstack_harness.fuzzing.boundary import hunt_boundary
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.hunt import Enough, Progress, Watch, hunt
from deepstack_harness.fuzzing.request import Asked, target_of
from deepstack_harness.fuzzing.session import Ground

RUNNING, JOURNAL, PROGRESS = "running.txt", "findings.jsonl", "progress.json"
ENDED, OUTPUT = "ended.json", "output.txt"
PRINTED_BYTES = 256 * 2**10
"""What one trace may print; more is a finding."""
FLOODED = 9
"""Exit status of a child that found more printed than that."""


@dataclass(frozen=True)
class Order:
    """What to hunt, how long, and the folder that everything is written to."""

    asked: Asked
    folder: str
    examples: int
    seed: int
    known: tuple[Finding, ...] = ()
    seconds: float | None = None
    memory_bytes: int | None = None
    boundary: bool = False


class Journal(Watch):
    """Writes findings for good, and the trace that is being played, step by step, for the case of an end."""

    def __init__(self, order: Order) -> None:
        """Open the files; the parent is the process that started this one."""
        folder = Path(order.folder)
        self._running = os.open(folder / RUNNING, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._findings = (folder / JOURNAL).open("a", encoding="utf-8")
        self._progress = folder / PROGRESS
        self._parent = os.getppid()
        self._until = None if order.seconds is None else time.monotonic() + order.seconds
        self._printed = 0
        self._fresh = True

    @override
    def begins(self) -> None:
        os.ftruncate(self._running, 0)
        os.lseek(self._running, 0, os.SEEK_SET)
        self._fresh = True
        self._printed = printed_bytes()

    @override
    def step(self, capacity: int, step: Step) -> None:
        if printed_bytes() - self._printed > PRINTED_BYTES:
            os._exit(FLOODED)
        os.write(self._running, (f"cap {capacity}: {step}" if self._fresh else f"; {step}").encode())
        self._fresh = False

    @override
    def example(self, progress: Progress) -> None:
        self.keep(progress)
        orphaned = os.getppid() != self._parent
        if orphaned or (self._until is not None and time.monotonic() > self._until):
            raise Enough

    @override
    def found(self, finding: Finding) -> None:
        self._findings.write(finding.to_json() + "\n")
        self._findings.flush()
        os.fsync(self._findings.fileno())

    def keep(self, progress: Progress) -> None:
        """Write how far the hunt is: after an end it goes on from there."""
        partial = self._progress.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(asdict(progress)))
        partial.rename(self._progress)


def printed_bytes() -> int:
    """What this process has printed into the file that is its stdout and stderr."""
    sys.stdout.flush()
    return os.fstat(1).st_size


def replay(asked: dict[str, str | None], trace: str) -> int:
    """Play one trace in a child of `deepstack_harness.workers.isolate`; answers the bytes that it printed."""
    target = target_of(msgspec.convert(asked, Asked))
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        Ground(target).broken(Trace.parse(trace))
        return printed_bytes()


def main() -> None:
    """Hunt as ordered, and say at the end that it was one."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    if order.memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (order.memory_bytes, order.memory_bytes))
    answer = Path(order.folder) / ENDED
    try:
        progress = _hunt(order)
    except OutOfMemory:
        raise
    except HarnessError as error:
        answer.write_bytes(msgspec.json.encode({"code": int(error.exit_code), "error": str(error)}))
    except Exception:  # noqa: BLE001  # what a buffer raises is a fact, so this is a bug of ours
        answer.write_bytes(msgspec.json.encode({"code": int(ExitCode.BUG), "error": traceback.format_exc()}))
    else:
        answer.write_bytes(msgspec.json.encode({"progress": asdict(progress)}))


def _hunt(order: Order) -> Progress:
    import torch

    torch.set_num_threads(1)
    target, journal = target_of(order.asked), Journal(order)
    if order.boundary:
        return hunt_boundary(target, seed=order.seed, watch=journal).progress
    return hunt(target, examples=order.examples, seed=order.seed, known=order.known, watch=journal).progress


if __name__ == "__main__":
    main()
