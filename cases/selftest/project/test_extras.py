"""A plain installation: its commands do without the libraries of extras, and others name their extra."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cases.by_day import by_day
from deepstack_harness import errors
from deepstack_harness.errors import ExitCode

ROOT = Path(__file__).parents[3]
BLOCKED = sorted(set(errors._EXTRAS) - {"triton"})  # torch itself imports triton where it lies
BLOCK = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        # Dynamo asks where libraries lie, without importing them, which is no error.
        asks = sys._getframe(2).f_code.co_filename == "<frozen importlib.util>"
        if name in {BLOCKED} and not asks:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)

sys.meta_path.insert(0, Blocked())
"""
MINE = """
from deepstack_harness.models.reference import ReferenceBuffer

class Mine(ReferenceBuffer):
    pass
"""
IN_TEST = """
from mine import Mine

def test_contract(deepstack_contract):
    deepstack_contract(Mine)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a user whose Python has no library of an extra."""
    for name, text in (("sitecustomize.py", BLOCK), ("mine.py", MINE), ("test_mine.py", IN_TEST)):
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder: Path, *words: str) -> tuple[int, str]:
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


COMMAND = ("-m", "deepstack_harness")


@pytest.mark.slow  # by day a command that names its extra
@pytest.mark.parametrize(
    "words",
    [
        (*COMMAND, "repro", "43602", "--arm", "eager"),
        (*COMMAND, "repro", "40143"),
        (*COMMAND, "repro", "43602", "--script", "script.py"),
        (*COMMAND, "check", "mine:Mine"),
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--deepstack-report", "out"),
    ],
    ids=lambda words: " ".join(words[-3:]),
)
def test_it_works_without_extras(folder: Path, words: tuple[str, ...]) -> None:
    status, printed = run(folder, *words)
    assert status == ExitCode.HOLDS, printed


@pytest.mark.parametrize(
    ("words", "says"),
    by_day(
        [
            (("run", "--executor", "ray", "--out", "run"), "ray is not installed: .*harness\\[ray\\]"),
            (
                ("repro", "43602", "--workload", "mine.py"),
                "pyarrow is not installed: .*harness\\[workload\\]",
            ),
        ]
    ),
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_command_without_its_extra_names_the_extra(folder: Path, words: tuple[str, ...], says: str) -> None:
    status, printed = run(folder, *COMMAND, *words)
    assert status == ExitCode.MACHINE, printed
    assert re.search(says, printed), printed
    assert "Traceback" not in printed


@pytest.mark.skipif(not (ROOT / "tox.ini").exists(), reason="needs a checkout")
def test_every_extra_that_is_named_exists() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(errors._EXTRAS.values()) <= set(declared)
