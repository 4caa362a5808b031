"""Written programs are run before the user gets them: each has to show the fault that it was written for."""

import io
import runpy
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from deepstack_harness.errors import HarnessError, passes_through
from deepstack_harness.workers.child import Channel
from deepstack_harness.workers.outcomes import value_of
from deepstack_harness.workers.profiles import COMPILE, FOREIGN_LIMITS
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.worker import Worker


@dataclass(frozen=True)
class ScriptRun:
    """How a written program ended: its exit code, and the last line that it printed, or its exception."""

    code: int
    last_line: str


def run_script(channel: Channel, text: str) -> ScriptRun:
    """Run a written program in this worker, as `python FILE` would."""
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
            return ScriptRun(2, f"{type(error).__name__}: {error}".splitlines()[0])
    return ScriptRun(code, next(iter(reversed(printed.getvalue().splitlines())), ""))


_RUN_SCRIPT = Remote(f"{__name__}:run_script", ScriptRun)


def why_not_shown(text: str) -> str:
    """Run a written program in a worker of its own; return "" where it exits with 1, else how it ended."""
    with Worker(FOREIGN_LIMITS, preload=__name__, sandbox=COMPILE) as worker:
        try:
            ran = value_of(worker.call(_RUN_SCRIPT, {"text": text}), "running the written program")
        except HarnessError as error:
            return str(error)
    return "" if ran.code == 1 else f"it ends with {ran.last_line or ran.code}"
