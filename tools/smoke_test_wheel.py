"""`python -m tools.smoke_test_wheel DIST`: install the wheel in DIST and use it in an empty folder.

The description is rendered as a package index renders it first: that takes `readme-renderer[md]`.
The wheel goes into a virtual environment of its own, with the versions of constraints.txt. Then the three
commands of a first visit run: list the incidents, reproduce one on the CPU, and ask what the machine can do.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path
from zipfile import Path as ZipPath
from zipfile import ZipFile

from readme_renderer import markdown

ROOT = Path(__file__).parents[1]
COMMANDS = (
    ("list", "incidents"),
    ("repro", "43602", "--arm", "eager/drop_all"),
    ("doctor", "--seconds", "120"),
)


def check_description(distribution: Distribution) -> None:
    """Raise `ValueError` where an index would show no description, or has a link that leads nowhere."""
    text = str(distribution.metadata.json["description"])
    rendered = markdown.render(text, variant="GFM")
    if rendered is None:
        raise ValueError("the description cannot be rendered")
    targets = re.findall(r'(?:href|src)="([^"]*)"', rendered)
    relative = [target for target in targets if not target.startswith(("https://", "#"))]
    if relative or not targets:
        raise ValueError(f"of {len(targets)} links of the description these are relative: {relative}")


def distribution_in(wheel: Path) -> Distribution:
    """Return the metadata of a wheel that is not installed."""
    archive = ZipFile(wheel)
    (info,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    return PathDistribution(ZipPath(archive, f"{info}/"))


def smoke_test(folder: Path) -> None:
    """Raise `CalledProcessError` for the first command that fails, `ValueError` unless there is one wheel."""
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ValueError(f"'{folder}' has {len(wheels)} wheels, not one: build into an empty folder")
    check_description(distribution_in(wheels[0]))
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
