"""The projects in `examples/`, copied out of the checkout and run as in their README."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import deepstack_harness
from deepstack_harness.files import data

EXAMPLES = data("examples")
HARNESS = str(Path(deepstack_harness.__file__).parents[1])
LEFT_OUT = [word for name in ("cacheprovider", "anyio") for word in ("-p", f"no:{name}")]

pytestmark = pytest.mark.xdist_group("examples")  # one worker: they compile


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(EXAMPLES, tmp_path_factory.mktemp("examples") / "copied")


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env={**environment, "PYTHONPATH": HARNESS},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


@pytest.mark.slow  # 12 s; test_third_party.py runs such a project by day
def test_the_projects_of_tests_pass(examples: Path) -> None:
    (examples / "pytest.ini").write_text("[pytest]\n")
    done = ran(examples, "pytest", "-q", *LEFT_OUT, "steps", "adapter", "kernels")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


@pytest.mark.slow  # 11 s
def test_the_server_is_watched(examples: Path) -> None:
    watched = ran(examples / "watch", "deepstack_harness", "watch", "--", sys.executable, "server.py")
    assert watched.returncode == 1, watched.stdout + watched.stderr
    text, image = re.findall(r"^(?:text: |image:) (\S+)$", watched.stdout, re.MULTILINE)
    assert text == image
    assert "`image` was None when compiled" in watched.stdout
    right = ran(
        examples / "watch", "deepstack_harness", "watch", "--",
        sys.executable, "server.py", "--warm-up-with-image",
    )  # fmt: skip
    assert right.returncode == 0, right.stdout + right.stderr
    assert "failed and decide: none" in right.stdout


def test_each_project_is_in_the_table() -> None:
    linked = set(re.findall(r"^\| \[(\w+)\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE))
    assert linked == {folder.name for folder in EXAMPLES.iterdir() if folder.is_dir()}
