"""A spawned child with time and memory limits, for what may crash, hang or eat the machine.

`run_isolated("module:attr", {...})` calls the function with those keyword
arguments in a fresh interpreter.  Arguments and results are JSON; nothing is
forked and nothing is pickled.  The child leads a session of its own, so that a
time-out ends everything it started; it ends when its parent does.
"""

import ctypes
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from deepstack_harness.errors import is_out_of_memory

_TAIL = 4000
_PR_SET_PDEATHSIG = 1


class Ending(StrEnum):
    """How a child ended."""

    RETURNED = "returned"
    RAISED = "raised"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class Outcome:
    """What came of a child: `value` if it returned, else `detail`; `output` is the end of what it printed."""

    ending: Ending
    value: Any = None
    detail: str = ""
    output: str = ""


def run_isolated(
    target: str, arguments: Mapping[str, Any], *, timeout_s: float, memory_bytes: int | None = None
) -> Outcome:
    """Call `module:attr` in a child; never raises for what the child does.

    `memory_bytes` limits the child's private memory (RLIMIT_DATA).
    """
    with tempfile.TemporaryDirectory(prefix="deepstack-") as folder:
        answer = Path(folder) / "answer.json"
        order = json.dumps(
            {
                "target": target,
                "arguments": dict(arguments),
                "answer": str(answer),
                "memory": memory_bytes,
                "parent": os.getpid(),
            }
        )
        child = subprocess.Popen(
            [sys.executable, "-m", "deepstack_harness.workers.isolate"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            printed, _ = child.communicate(order, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return Outcome(Ending.TIMED_OUT, detail=f"no answer within {timeout_s:g} s", output=_end(child))
        finally:
            _end_group(child)
        return _read(answer, child.returncode, printed[-_TAIL:])


def end_with(parent: int) -> None:
    """Be killed when the parent ends, however it does: what hangs would never see that a pipe was closed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        sys.exit()


def _end(child: "subprocess.Popen[str]") -> str:
    _end_group(child)
    return child.communicate()[0][-_TAIL:]


def _end_group(child: "subprocess.Popen[str]") -> None:
    # The child's own children too: a compiler it started must not outlive it.
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _read(answer: Path, status: int, printed: str) -> Outcome:
    if not answer.exists():
        ended = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exited with {status}"
        return Outcome(Ending.CRASHED, detail=ended, output=printed)
    found = json.loads(answer.read_text())
    return Outcome(Ending(found["ending"]), found["value"], found["detail"], printed)


def _serve() -> None:
    order = json.load(sys.stdin)
    end_with(order["parent"])
    if order["memory"]:
        resource.setrlimit(resource.RLIMIT_DATA, (order["memory"], order["memory"]))
    ending, value, detail = _call(order["target"], order["arguments"])
    answer = Path(order["answer"])
    text = json.dumps({"ending": ending, "value": value, "detail": detail})
    # Renamed into place: a child killed while it writes has not answered.
    partial = answer.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(answer)


def _call(target: str, arguments: Mapping[str, Any]) -> tuple[Ending, Any, str]:
    module, attribute = target.split(":")
    try:
        return Ending.RETURNED, getattr(importlib.import_module(module), attribute)(**arguments), ""
    except Exception as error:  # noqa: BLE001  # what the child's function raises is its answer
        ending = Ending.OUT_OF_MEMORY if is_out_of_memory(error) else Ending.RAISED
        return ending, None, f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    _serve()
