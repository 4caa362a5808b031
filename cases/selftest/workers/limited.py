"""Functions that reach a limit of their worker."""

import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from deepstack_harness.play.attempt import attempt


def sleep_long() -> None:
    time.sleep(600)


def allocate() -> list[bytearray]:
    return [bytearray(2**26) for _ in range(64)]


def print_much() -> None:
    while True:
        print("x" * 65536)


def start_processes() -> None:
    started = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(6)]
    started[0].wait()


def write_much() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(2**22))


def open_many() -> None:
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(Path("/dev/null").open())


def attempted(name: str) -> str:
    """Return the message of the error that a method raised."""
    tried = attempt("get", globals()[name])
    assert tried.raised is not None
    return tried.raised.message
