"""`python -m tools.smoke_test_wheel DIST`: install the wheel in DIST and use it in an empty folder.

The wheel goes into a virtual environment of its own, with the versions of constraints.txt. Then the three
commands of a first visit run: list the incidents, reproduce one on the CPU, and ask what the machine can do.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = (
    ("list", "incidents"),
    ("repro", "43602", "--arm", "eager/drop_all"),
    ("doctor",),
)


def smoke_test(folder: Path) -> None:
    """Raise `CalledProcessError` for the first command that fails, `ValueError` unless there is one wheel."""
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ValueError(f"'{folder}' has {len(wheels)} wheels, not one: build into an empty folder")
    with tempfile.TemporaryDirectory() as scratch:
        empty = Path(scratch) / "empty"
        empty.mkdir()
        venv.create(Path(scratch) / "venv", with_pip=True)
        python = Path(scratch) / "venv" / "bin" / "python"
        constraints, wheel = str(ROOT / "constraints.txt"), str(wheels[0].resolve())
        install = [str(python), "-m", "pip", "install", "-c", constraints, wheel]
        subprocess.run(install, cwd=empty, check=True)
        for words in COMMANDS:
            # -P: nothing of the working directory is imported.
            subprocess.run([python, "-P", "-m", "deepstack_harness", *words], cwd=empty, check=True)
        # The project is named twice on purpose: the command and the module are the same program.
        subprocess.run([python.with_name("deepstack-harness"), "--version"], cwd=empty, check=True)


if __name__ == "__main__":
    smoke_test(Path(sys.argv[1]))
