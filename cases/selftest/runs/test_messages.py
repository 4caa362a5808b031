"""What `run` says before and after its cases."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cases.selftest.runs.test_command import group_on
from deepstack_harness.commands import run as command
from deepstack_harness.errors import ExitCode
from deepstack_harness.reporting.terminal.output import Output
from deepstack_harness.results import parquet
from deepstack_harness.results.read import RunPart
from deepstack_harness.runs.execution import Execution


def test_groups_without_a_gpu_are_named_before_the_cases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = SimpleNamespace(cases=[1, 2], rows=[])
    execution = SimpleNamespace(
        writer=SimpleNamespace(part=part), groups=[group_on("cpu", 1)], left_out=[group_on("cuda", 3)]
    )
    command._announce(cast(Execution, execution), tmp_path, Output(None, quiet=False), resume=True)
    assert capsys.readouterr().out.splitlines() == [
        f"1 case in 1 group into {tmp_path}, 2 cases there already",
        "left out: qwen3_vl eager/tp3 cuda, which needs 3 GPUs",
    ]


def test_a_run_without_the_library_datasets_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "has_datasets", lambda: False)
    written = SimpleNamespace(rows=[], cases=[])
    assert command._close(cast(RunPart, written), tmp_path, Output(None, quiet=False)) == ExitCode.HOLDS
    assert "the library `datasets` is not installed" in capsys.readouterr().out.splitlines()[0]
    assert list(tmp_path.iterdir()) == []
