"""The process of a group: plays the cases that come on stdin, one after the other.

Started by `deepstack_harness.runs.process` with the number of a pipe for its answers, a
limit for its memory in bytes (0: none) and its parent's process id.  What cases print goes
to stdout and stderr, never among the answers.  It ends when its parent does, whatever it is doing.
"""

import os
import resource
import sys
import time
from contextlib import suppress
from typing import BinaryIO

import torch

from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.errors import HarnessError, is_out_of_memory
from deepstack_harness.oracles.judged_case import judge_case
from deepstack_harness.play.play_case import play_case
from deepstack_harness.results.case_result import CaseResult, lost_result, result_of
from deepstack_harness.results.records import CaseEnding
from deepstack_harness.runs.messages import Finished, Ready, decode_case, encode
from deepstack_harness.workers.isolate import end_with


def main() -> None:
    """Answer until stdin ends."""
    answers_fd, memory, parent = map(int, sys.argv[1:])
    end_with(parent)
    if memory:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    torch.set_num_threads(1)
    with os.fdopen(answers_fd, "wb") as answers, _orders() as orders:
        _send(answers, Ready())
        for line in orders:
            result = _play(decode_case(line))
            _send(answers, Finished(result, fit=result.case.ending.is_whole and _device_works(result)))


def _orders() -> BinaryIO:
    """What stdin was; a case that reads stdin finds it empty."""
    orders = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return orders


def _play(planned: PlannedCase) -> CaseResult:
    started = time.perf_counter()
    try:
        judged = judge_case(planned, play_case(planned.case))
        return result_of(judged, time.perf_counter() - started)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is this case's, and the others go on
        ending = CaseEnding.OUT_OF_MEMORY if is_out_of_memory(error) else CaseEnding.RAISED
        said = str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}"
        return lost_result(planned, ending, said, "", time.perf_counter() - started)


def _device_works(result: CaseResult) -> bool:
    """Say whether a GPU still answers: after some errors every later call fails, in this process alone."""
    if not result.case.device.startswith("cuda"):
        return True
    with suppress(RuntimeError):
        torch.cuda.synchronize()
        return True
    return False


def _send(answers: BinaryIO, message: Ready | Finished) -> None:
    answers.write(encode(message))
    answers.flush()


if __name__ == "__main__":
    main()
