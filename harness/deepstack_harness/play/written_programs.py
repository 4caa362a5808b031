"""Written programs are run before the user gets them: each has to show the fault that it was written for."""

import io
import runpy
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from deepstack_harness.errors import HarnessError, passes_through
from deepstack_harness.workers.child import Channel
from deepstack_harness.workers.outcomes import value_of
from deepstack_harness.workers.profiles import COMPILE, FOREIGN_LIMITS
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.worker import Worker


def run_script(channel: Channel, text: str) -> tuple[int, str]:
    """Run a written program in this worker, as `python FILE` would.

    Return its exit code, and the last line that it printed, or its exception.
    """
    channel.phase("the written program")
    printed, code = io.StringIO(), 0
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(printed), redirect_stderr(io.StringIO()):
        path = Path(folder, "written_program.py")
        path.write_text(text)
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            code = int(end.code) if isinstance(end.code, int) else 1
        except BaseException as error:
            if passes_through(error):
                raise
            return 2, f"{type(error).__name__}: {error}".splitlines()[0]
    return code, next(iter(reversed(printed.getvalue().splitlines())), "")


_RUN_SCRIPT = Remote(f"{__name__}:run_script", tuple[int, str])


def why_not_shown(text: str) -> str:
    """Run a written program in a worker of its own; return "" where it exits with 1, else how it ended."""
    with Worker(FOREIGN_LIMITS, preload=__name__, sandbox=COMPILE) as worker:
        try:
            code, last_line = value_of(
                worker.call(_RUN_SCRIPT, {"text": text}), "running the written program"
            )
        except HarnessError as error:
            return str(error)
    return "" if code == 1 else f"it ends with {last_line or code}"
