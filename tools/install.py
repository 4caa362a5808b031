"""`python -I tools/install.py WORDS ..` installs packages for tox: with uv where there is one, or with pip.

uv needs 7 s for the packages of the tests, pip 55 s. What uv refuses pip may do: their options differ.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Nothing is installed yet, and what is imported needs nothing that is.
sys.path.insert(0, str(Path(__file__).parents[1] / "harness"))

from deepstack_harness.sources import pip_settings


def main(words: Sequence[str]) -> int:
    """Install into the environment of this interpreter; return the exit status of the last program."""
    if uv := shutil.which("uv", path=os.pathsep.join([os.environ["PATH"], f"{sys.base_prefix}/bin"])):
        options, variables = pip_settings.read().for_uv()
        command = [uv, "pip", "install", "--python", sys.executable, *options, *words]
        if subprocess.run(command, env=os.environ | variables, check=False).returncode == 0:
            return 0
        print("uv failed: pip is tried", file=sys.stderr)
    # Python writes the byte code of what is imported, a tenth of it: 43 s less of an installation.
    command = [sys.executable, "-I", "-m", "pip", "install", "--no-compile", *words]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
