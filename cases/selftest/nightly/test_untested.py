"""The list of untested lines: made from real counts, in the parent and in a child process."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from deepstack_harness.errors import UsageError
from deepstack_harness.nightly.untested import commands, main, settings, untested

NEEDS_COVERAGE = pytest.mark.skipif(find_spec("coverage") is None, reason="coverage is not installed")


def test_lines_are_told_by_file_the_worst_first() -> None:
    report = {
        "files": {
            "/p/a.py": {"missing_lines": [3], "summary": {"percent_covered": 90.0}},
            "/p/whole.py": {"missing_lines": [], "summary": {"percent_covered": 100.0}},
            "/p/b/c.py": {"missing_lines": [9, 7, 8, 12], "summary": {"percent_covered": 49.6}},
        }
    }
    assert untested(report, Path("/p")) == ["b/c.py: 50 % ran, not 7-9, 12", "a.py: 90 % ran, not 3"]


def test_the_tests_that_compile_are_left_out(tmp_path: Path) -> None:
    run, *_ = commands(tmp_path, tmp_path, ["cases"])
    assert run[:4] == [sys.executable, "-m", "coverage", "run"]
    assert f"--ignore={tmp_path}/cases/selftest/kernels" in run
    assert "    subprocess\n" in settings(tmp_path)


def test_without_a_folder_it_says_how_it_is_called() -> None:
    with pytest.raises(UsageError, match="name the folder to write"):
        main([])


@pytest.mark.slow  # 12 s
@NEEDS_COVERAGE
def test_a_child_process_is_measured_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    probe = tmp_path / "test_probe.py"
    probe.write_text(
        "import subprocess, sys\n"
        "def test_a():\n"
        "    code = 'from deepstack_harness.workload.padding import pad_to_capture; pad_to_capture(5)'\n"
        "    subprocess.run([sys.executable, '-c', code], check=True)\n"
        "    assert 'deepstack_harness.workload.padding' not in sys.modules\n"
    )
    assert main([str(tmp_path / "out"), str(probe)]) == 0
    assert "% of the lines ran" in capfd.readouterr().out
    seen = json.loads((tmp_path / "out" / "coverage.json").read_text())["files"]
    (padding,) = (one for name, one in seen.items() if name.endswith("workload/padding.py"))
    assert padding["executed_lines"], "the child counted nothing"
    lines = (tmp_path / "out" / "untested.txt").read_text().splitlines()
    assert any(line.startswith("nightly/night.py: ") for line in lines)
