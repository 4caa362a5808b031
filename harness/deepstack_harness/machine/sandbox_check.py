"""Check the sandbox for code under test by an attempt to leave it."""

import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from deepstack_harness.workers.outcomes import Answered
from deepstack_harness.workers.profiles import CONTRACT, is_switched_off
from deepstack_harness.workers.worker import Worker

_ATTEMPTS = f"{__name__}:leave"
WITHOUT = "code of a source can write files and use the network"


def sandbox_found() -> tuple[bool, str]:
    """Return True where a sandbox is whole, and the parts that are in force or missing."""
    if is_switched_off():
        return False, f"turned off: {WITHOUT}"
    with tempfile.TemporaryDirectory() as outside, Worker(sandbox=CONTRACT) as worker:
        left = worker.call(_ATTEMPTS, {"outside": outside})
        found = worker.in_force
    if not isinstance(left, Answered):
        return False, left.sentence
    parts = ", ".join(found.in_force) or "none"
    if found.missing or left.value:
        lacking = "; ".join([*found.missing, *(f"it could {one}" for one in left.value)])
        return False, f"{parts}; missing: {lacking}"
    return True, parts


def leave(outside: str) -> list[str]:
    """Return the attempts to reach outside that succeeded; for a worker."""
    done = []
    with suppress(OSError):
        Path(outside, "file").touch()
        done.append("write outside its folder")
    with suppress(OSError), socket.create_server(("127.0.0.1", 0)):
        done.append("use the network")
    with suppress(OSError):
        os.kill(os.getppid(), 0)
        done.append("send signals")
    return done
