"""A run prints how fast it goes, and when it is interrupted, how it is continued."""

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from deepstack_harness.cli import run as command
from deepstack_harness.cli.main import main
from deepstack_harness.cli.output import Output
from deepstack_harness.errors import ExitCode
from deepstack_harness.runs.execution import Execution

SELECTION = ["family=qwen3_vl", "backend=none", "incident=43602"]
NOTE = "deepstack-harness: to play the cases that are left: "


def test_an_interrupted_run_prints_the_command_that_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Execution, "play", interrupted)
        assert main(["run", *SELECTION]) == 130
    *_, said = capsys.readouterr().err.splitlines()
    assert said.startswith(NOTE), said
    typed = shlex.split(said.removeprefix(NOTE))
    words = typed[typed.index("run") :]
    assert words[-1] == "--resume"
    assert main(words) == ExitCode.HOLDS
    assert len(list((tmp_path / "reports").iterdir())) == 1


def interrupted(_: Execution) -> NoReturn:
    raise KeyboardInterrupt


def test_progress_has_the_rate_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=lambda: clock.now))
    lines: list[str] = []
    group: Any = SimpleNamespace(name="qwen3_vl", cases=range(4))
    table = command.LiveTable([group], lines.append)
    for second in (30, 60):
        clock.now = second
        ended: Any = SimpleNamespace(case=SimpleNamespace(group="qwen3_vl", seconds=30.0), rows=())
        Output(None, quiet=True).show(table.add(ended))
    assert lines == [
        "1 of 4 cases, 2 a minute, about 0:01:30 left; the last one was qwen3_vl",
        "2 of 4 cases, 2 a minute, about 0:01:00 left; the last one was qwen3_vl",
    ]
