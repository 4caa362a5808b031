"""Whether processes that a test started are really gone."""

import os
import signal
import time
from pathlib import Path

_PATIENCE_S = 30


def has_ended(pid: int) -> bool:
    """Whether a process ends, or is a zombie that nobody has collected yet; one that goes on is killed."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
    os.kill(pid, signal.SIGKILL)
    return False
