"""What a night says where something of it is missing: its own tests, its summary, the GPU."""

from pathlib import Path

import pytest

from deepstack_harness.cli import main
from deepstack_harness.commands import nightly as nightly_command
from deepstack_harness.errors import ExitCode, MachineError
from deepstack_harness.nightly import night as night_module
from deepstack_harness.nightly import stages as stages_module
from deepstack_harness.nightly.night import Ended, NightlyRun, StageOutcome, gpu_fault
from deepstack_harness.workers.outcomes import Stopped


def test_a_night_without_the_tests_of_the_harness_or_without_a_summary_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages_module, "has_selftests", lambda: False)
    monkeypatch.setattr(nightly_command, "_planned", lambda _: (tmp_path, []))
    monkeypatch.setattr(
        nightly_command, "_summarise", lambda *_: "the summary is lost: No space left on device"
    )
    monkeypatch.setattr(NightlyRun, "run", lambda *_: iter([Ended("a", StageOutcome.HELD, 0, 1.0, "")]))
    assert main(["nightly", "--history", str(tmp_path)]) == ExitCode.HOLDS
    first, *_, lost, last = capsys.readouterr().out.splitlines()
    assert first.startswith("the tests of the harness itself are in its checkout only")
    assert lost == "the summary is lost: No space left on device; only the lines above remain"
    assert last.startswith(str(tmp_path))


def test_a_gpu_that_cannot_be_asked_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise MachineError("no process can be started")

    monkeypatch.setattr(night_module, "call_once", no_process)
    assert gpu_fault() == "cannot be asked: no process can be started"


def test_an_end_that_a_stage_cannot_have_is_our_bug() -> None:
    with pytest.raises(TypeError, match="a stage without limits ended as Stopped"):
        night_module._code(Stopped())
