"""Processor seconds of tests: children that ended, children that still run, and the tables of a record."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.test_costs import OTHERS, main

BURN = "import time\nwhile time.process_time() < {seconds}: pass\n"
TESTS = f"""
import subprocess, sys, pytest

def burn(seconds, then=""):
    return [sys.executable, "-c", {BURN!r}.format(seconds=seconds) + then]

@pytest.fixture(scope="module")
def running():
    child = subprocess.Popen(burn(0.6, "print(flush=True); input()"), stdin=-1, stdout=-1)
    yield child
    child.communicate(b"\\n")

def test_that_runs_itself():
    exec({BURN!r}.format(seconds=time_so_far() + 0.4))

def time_so_far():
    import time
    return time.process_time()

def test_of_children():
    nested = ["sh", "-c", '"$@"; "$@"', "sh", *burn(0.5)]
    subprocess.run(nested, check=True)

def test_of_a_child_that_still_runs(running):
    running.stdout.readline()

def test_that_does_nothing(running):
    pass
"""


def recorded(folder: Path) -> dict[str, tuple[float, int]]:
    """Run the tests above; return seconds and starts by the name of a test."""
    (folder / "test_burns.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")  # the folder may lie in a checkout
    words = ["-m", "pytest", "-q", "-p", "xdist", "-n", "1", "-p", "tools.test_costs", "--costs=record"]
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run([sys.executable, *words, str(folder)], cwd=folder, env=environment, check=True)
    rows = map(json.loads, (folder / "record").read_text().splitlines())
    return {row["test"].rpartition("::")[2]: (row["seconds"], row["starts"]) for row in rows}


@pytest.mark.slow  # a tool of ours, and a busy processor
def test_a_test_costs_what_its_descendants_do(tmp_path: Path) -> None:
    costs = recorded(tmp_path)
    seconds = {name: spent for name, (spent, _) in costs.items()}
    assert set(OTHERS) < set(costs)
    # The kernel counts in ticks of 10 ms.
    assert 0.35 < seconds["test_that_runs_itself"] < 1.0
    assert 0.95 < seconds["test_of_children"] < 2.0
    assert 0.55 < seconds["test_of_a_child_that_still_runs"] < 1.2
    assert seconds["test_that_does_nothing"] < 0.3
    assert [costs[name][1] for name in list(costs)[1:5]] == [0, 1, 1, 0]


def test_files_are_summed_up_and_held_against_an_earlier_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, rows in {
        "new": {"a.py::test_x": 1.0, "a.py::test_y": 2.0, "b.py::test_x": 0.5, OTHERS[0]: 4.0},
        "old": {"a.py::test_x": 9.0, "c.py::test_x": 8.0},
    }.items():
        lines = [json.dumps({"test": test, "seconds": spent, "starts": 2}) for test, spent in rows.items()]
        (tmp_path / name).write_text("\n".join(lines))
    assert main([str(tmp_path / "new"), "-n", "2"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["seconds", "starts", "tests"],
        ["4.0", "2", "0", OTHERS[0]],
        ["3.0", "4", "2", "a.py"],
        ["7.5", "8", "3", "total"],
    ]
    main([str(tmp_path / "new"), "--against", str(tmp_path / "old"), "--tests", "-n", "2"])
    assert [line.split() for line in capsys.readouterr().out.splitlines()[2:]] == [
        ["9.0", "2", "1", "1.0", "2", "1", "a.py::test_x"],
        ["8.0", "2", "1", "0.0", "0", "0", "c.py::test_x"],
        ["17.0", "4", "2", "7.5", "8", "3", "total"],
    ]
