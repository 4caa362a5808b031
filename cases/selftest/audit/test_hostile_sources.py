"""An audit of a hostile source ends in time with a verdict that is not good, and nothing is left behind."""

import tempfile
from pathlib import Path

import pytest

from cases.selftest.audit.hostile_sources import MECHANISMS, source
from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.cli.main import main
from deepstack_harness.errors import ExitCode
from deepstack_harness.workers.child import child_processes
from deepstack_harness.workers.limits import Limits

LIMITS = Limits(start_s=120.0, call_s=None, step_s=8.0, memory=2 * 2**30, output=2**22, file_size=2**28)
DAILY = frozenset({"exit", "write", "another oracle"})
"""Mechanisms that are tried with every change; the others take minutes and are tried at night."""
SLOW = (pytest.mark.slow, pytest.mark.timeout(900))
NAMES_THE_METHOD = frozenset({"exit", "fork", "sleep", "write"})


@pytest.fixture(autouse=True)
def short_limits_and_own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(SourceWorker.__init__, "__defaults__", (LIMITS,))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def left_behind() -> set[str]:
    """Name the processes of workers that are there, and what they left in the temporary folder."""
    children = {f"process {pid}" for pid in child_processes()}
    return children | {str(path) for path in Path(tempfile.gettempdir()).iterdir()}


@pytest.mark.parametrize(
    "mechanism",
    [name if name in DAILY else pytest.param(name, marks=SLOW) for name in MECHANISMS],
)
def test_it_has_its_verdict_and_leaves_nothing(
    mechanism: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "there").write_text("kept")
    hostile = source(mechanism, tmp_path / "tree", outside)
    before = left_behind()  # workers of other tests in this process, which serve many of them
    code = main(["audit", "--source", str(hostile)])
    shown = capsys.readouterr()
    assert code in (ExitCode.BROKEN, ExitCode.USAGE, ExitCode.MACHINE), shown
    assert left_behind() <= before
    assert [path.name for path in outside.iterdir()] == ["there"]
    assert (outside / "there").read_text() == "kept"
    assert "\x1b" not in shown.out + shown.err
    assert len(shown.out) < 100_000
    if mechanism in NAMES_THE_METHOD:
        assert code == ExitCode.BROKEN
        assert "get" in shown.out
