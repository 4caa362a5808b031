"""The plugin in another project: a copy of `examples/pytest_project`, and tests of a few lines."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from deepstack_harness.cli.main import main
from deepstack_harness.errors import ExitCode
from deepstack_harness.files import data
from deepstack_harness.runs.frames import read_run

EXAMPLE = data("examples/pytest_project")
PLUGIN = "deepstack_harness.pytest_plugin"
# Other plugins that happen to be installed cost each process a second.
LEFT_OUT = [word for name in ("cacheprovider", "hypothesispytest", "anyio") for word in ("-p", f"no:{name}")]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder for PYTHONPATH that makes the plugin an installed one, also where the checkout is not."""
    folder = tmp_path_factory.mktemp("installed")
    if PLUGIN not in entry_points(group="pytest11").names:
        (folder / "stand_in-0.dist-info").mkdir()
        (folder / "stand_in-0.dist-info" / "METADATA").write_text("Name: stand-in\nVersion: 0\n")
        (folder / "stand_in-0.dist-info" / "entry_points.txt").write_text(
            f"[pytest11]\n{PLUGIN} = {PLUGIN}\n"
        )
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


class Project:
    """A folder in which pytest runs, in a process of its own that knows nothing of ours."""

    def __init__(self, folder: Path, path: str) -> None:
        if not (folder / "pyproject.toml").exists():  # else a checkout above TMPDIR is taken for its root
            (folder / "pytest.ini").write_text("[pytest]\n")
        self.folder = folder
        self._path = path

    def pytest(self, *words: str, **environment: str) -> tuple[int, str]:
        """The exit status, and what was printed."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CUDA_"))
        }
        command = [sys.executable, "-m", "pytest", *LEFT_OUT, *words]
        ran = subprocess.run(
            command, cwd=self.folder, env={**kept, "PYTHONPATH": self._path, **environment},
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        return ran.returncode, ran.stdout + ran.stderr


@pytest.fixture
def example(tmp_path: Path, installed: str) -> Project:
    """A copy of the example."""
    copied = shutil.copytree(EXAMPLE, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__"))
    return Project(copied, installed)


@pytest.fixture
def small(tmp_path: Path, installed: str) -> Project:
    """A test that has done without torch, and notes which GPUs its process may see."""
    (tmp_path / "test_small.py").write_text(SMALL)
    return Project(tmp_path, installed)


SMALL = """
import os, sys, pathlib, pytest

@pytest.mark.parametrize("number", range(4))
def test_gpu_of_a_worker(number):
    assert "torch" not in sys.modules
    worker, seen = os.environ["PYTEST_XDIST_WORKER"], os.environ["CUDA_VISIBLE_DEVICES"]
    pathlib.Path(f"{worker}.txt").write_text(seen)
"""
ALONE, WORKERS = ("-n", "0"), ("-n", "2")
FAULTS = (
    "broken: R1 structure: 1 answer, limit 0, on 'cap 16: get 4' under eager: step 1 'get 4' was ",
    "4' under eager/drop_all: step 3 'forward 16': the compiled output equals that without the payload, ",
    "over the budget: graphs 3, at most 1: 3 graphs, 2 recompiles, 0 breaks; recompiled because 0/0: self.",
    "assert 4096 == 7",
)


@pytest.mark.slow  # by day in test_plugin.py and test_exercised.py
@pytest.mark.parametrize(
    ("words", "faults"),
    [
        ((*ALONE, "-k", "compiled or graph"), FAULTS[1:3]),
        (ALONE, FAULTS),
        (WORKERS, FAULTS),
    ],
    ids=str,
)
def test_a_planted_fault_is_found(example: Project, words: tuple[str, ...], faults: tuple[str, ...]) -> None:
    model = example.folder / "side_buffer.py"
    model.write_text(model.read_text().replace("PLANTED = False", "PLANTED = True"))
    status, printed = example.pytest(*words)
    assert (status, re.findall(r"(\d+) failed|passed|error", printed)) == (1, [str(len(faults))]), printed
    assert [fault for fault in faults if fault not in printed] == [], printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "passed"),
    [
        (ALONE, 4),
        (WORKERS, 4),
        ((*WORKERS, "-k", "contract"), 1),
    ],
    ids=str,
)
def test_the_mended_project_passes_and_reports(example: Project, words: tuple[str, ...], passed: int) -> None:
    status, printed = example.pytest(*words, "--deepstack-report", "out")
    assert (status, re.findall(r"(\d+) passed|failed|error", printed)) == (0, [str(passed)]), printed
    found = read_run(example.folder / "out")
    assert set(found.cases["subject"]) == {"side_buffer:SideBuffer"}
    assert set(found.cases["arm"]) - {"eager/drop_all"} == {"eager"}
    assert set(found.rows["verdict"]) == {"PASS", "SKIP"}
    assert {node.partition("::")[0] for node in found.rows["node_id"]} == {"test_side_buffer.py"}
    assert set(found.rows["case"]) == set(found.cases["case"])
    assert found.meta[0]["finished"]
    assert main(["report", str(example.folder / "out"), "--quiet"]) == ExitCode.HOLDS


@pytest.mark.slow  # 2 s
def test_each_worker_has_a_gpu_of_the_callers_list_before_a_conftest_is_read(small: Project) -> None:
    (small.folder / "conftest.py").write_text(
        "from os import environ\n"
        "assert 'PYTEST_XDIST_WORKER' not in environ or ',' not in environ['CUDA_VISIBLE_DEVICES']\n"
    )
    listed = {"CUDA_VISIBLE_DEVICES": "GPU-8f3a, MIG-77c0"}
    status, printed = small.pytest("-n", "3", "--deepstack-device", "cuda", **listed)
    assert status == 0, printed
    seen = [(small.folder / f"gw{number}.txt").read_text() for number in range(3)]
    assert seen == ["GPU-8f3a", "MIG-77c0", "GPU-8f3a"]


@pytest.mark.slow  # 2 s
def test_a_run_without_a_gpu_does_not_change_the_list(small: Project) -> None:
    status, printed = small.pytest("-n", "1", CUDA_VISIBLE_DEVICES="0,1")
    assert status == 0, printed
    assert (small.folder / "gw0.txt").read_text() == "0,1"


@pytest.mark.slow  # 3 s
def test_a_case_for_a_gpu_fails_where_one_is_required(small: Project) -> None:
    (small.folder / "test_small.py").write_text("import pytest\n@pytest.mark.gpu\ndef test_a(): pass\n")
    (small.folder / "pytest.ini").write_text(
        "[pytest]\ndeepstack_require_gpu = true\ndeepstack_device = cuda\n"
    )
    status, printed = small.pytest("--strict-markers", "--strict-config", CUDA_VISIBLE_DEVICES="")
    assert status == 1, printed
    assert "no CUDA device, and --deepstack-require-gpu was given" in printed


@pytest.mark.slow  # by day the other refusals of the plugin
def test_a_wrong_option_is_refused_with_one_sentence(small: Project) -> None:
    status, printed = small.pytest("--deepstack-profile", "fast")
    said = "ERROR: unknown hypothesis profile 'fast'; known are ci, dev, nightly"
    assert (status, printed.strip()) == (4, said)
    (small.folder / "out").mkdir()
    (small.folder / "out" / "rows.jsonl").touch()
    status, printed = small.pytest("--deepstack-report", "out")
    assert status == 4, printed
    assert re.fullmatch(
        r"ERROR: --deepstack-report: '.*rows.jsonl' exists already: name a new folder", printed.strip()
    )


@pytest.mark.slow  # 7 s
def test_a_project_with_a_package_called_harness_runs_its_own(small: Project) -> None:
    """The import name `deepstack_harness` leaves `harness` to the packages that people have."""
    package = small.folder / "harness"
    package.mkdir()
    (package / "__init__.py").write_text("OWN = True\n")
    (package / "cli.py").write_text("def main() -> str:\n    return 'their own'\n")
    (small.folder / "test_small.py").write_text(
        "import harness\n"
        "from harness.cli import main\n\n\n"
        "def test_their_package(request):\n"
        "    assert (harness.OWN, main()) == (True, 'their own')\n"
        f"    assert request.config.pluginmanager.hasplugin('{PLUGIN}')\n"
        "    request.getfixturevalue('deepstack_contract')\n"
    )
    status, printed = small.pytest("-n", "0")
    assert (status, "1 passed" in printed) == (0, True), printed


WATCHED = """
import torch

def compiled():
    drop = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    return torch.compile(lambda x, y=None: x * 2 if y is None else x + y, backend="eager", options=drop)

def test_wrong(guard_watch):
    run = compiled()
    run(torch.ones(3))
    run(torch.ones(3), torch.zeros(3))

def test_right(guard_watch):
    run = compiled()
    run(torch.ones(3))
    run(torch.ones(3))

def test_nothing(guard_watch):
    pass
"""


@pytest.mark.slow  # 5 s; test_exercised.py by day
def test_a_dropped_guard_that_decides_fails_a_test(small: Project) -> None:
    (small.folder / "test_small.py").write_text(WATCHED)
    status, printed = small.pytest("-q", "-p", "no:randomly")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "<lambda>: `y` was None when compiled, and float32 tensor [3] on cpu in 1 of 2 calls" in printed
    assert "no region was compiled, so nothing was watched" in printed
    assert "3 passed, 2 errors" in printed, printed
