"""Rows and progress on a terminal of 80 columns, and in a pipe."""

import functools
import os
import pty
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from cases.by_day import by_day
from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.plans import Where, plan_incident
from deepstack_harness.cli import output, repro_table
from deepstack_harness.cli.output import Output
from deepstack_harness.cli.repro_table import CaseClock
from deepstack_harness.document.blocks import Line

PROGRAM = [sys.executable, "-m", "deepstack_harness"]
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def variables(columns: int) -> dict[str, str]:
    """Return the environment of a terminal; rich reads the variables first, and then the terminal."""
    return {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "NO_COLOR": "1"}


@functools.cache
def on_a_terminal(columns: int, *words: str) -> list[str]:
    """Return the lines that a command writes to a pseudo-terminal, without its styles."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, *words], stdout=child, stdin=child, stderr=subprocess.DEVNULL, env=variables(columns)
    )
    os.close(child)
    written = b""
    try:
        while part := os.read(parent, 65536):
            written += part
    except OSError:
        # Linux reports EIO when the other end is closed.
        pass
    os.close(parent)
    assert process.wait() in {0, 1, 2}
    return STYLE.sub("", written.decode()).splitlines()


QUICK = (
    (80, "list"),
    (100, "list"),
    (200, "list"),
    (80, "show 43602"),
    (80, "show answers ignore the image"),
    (80, "affected vllm==0.22.1 --model Qwen3-VL"),
)
LONG = (
    "repro 43602 --arm eager/drop_all",
    "audit --source vllm==0.22.1",
    "audit --inputs --source vllm==0.22.1",
    "kernels --tokens 17 --capacity 64",
    "selftest none_when_empty",
    "doctor",
)


def too_wide(columns: int, command: str) -> list[str]:
    """Return the lines of a command that are wider than the terminal; a command in them may be."""
    lines = on_a_terminal(columns, *command.split())
    assert lines
    return [line for line in lines if len(line) > columns and "deepstack-harness " not in line]


@pytest.mark.parametrize(("columns", "command"), by_day(QUICK, lambda row: row[1]))
def test_no_line_is_wider_than_the_terminal(columns: int, command: str) -> None:
    assert too_wide(columns, command) == []


@pytest.mark.slow  # seconds to a minute each; one of them requests the index
@pytest.mark.network
@pytest.mark.parametrize("columns", [80, 100, 200])
@pytest.mark.parametrize("command", LONG)
def test_no_line_of_a_long_command_is_wider(columns: int, command: str) -> None:
    assert too_wide(columns, command) == []


def test_on_a_terminal_the_last_cell_goes_on_below_itself() -> None:
    lines = on_a_terminal(80, "list")
    rule = next(number for number, line in enumerate(lines) if line.startswith("    R2 "))
    column = lines[rule].index("boundary")
    assert lines[rule + 1].index("min(N, P))") == column


class Clock(SimpleNamespace):
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(output, "time", clock)
    monkeypatch.setattr(repro_table, "time", clock)
    return clock


def test_a_pipe_gets_a_line_now_and_then_on_stderr(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Output(None, quiet=False).progress("starting") as say:
        for second in (1, 9, 11, 12, 20, 22):
            clock.now = second
            say(f"{second} of 30")
    assert capsys.readouterr() == ("", "deepstack-harness: 11 of 30\ndeepstack-harness: 22 of 30\n")


@pytest.mark.parametrize("silent", [Output(None, quiet=True), Output("-", quiet=False)])
def test_a_silent_output_has_no_progress(
    silent: Output, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with silent.progress("starting") as say:
        clock.now = 100
        say("1 of 3")
    assert capsys.readouterr() == ("", "")


def test_rows_under_a_spinner_go_only_to_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """rich would send them to the console of the spinner, so that `> rows.txt` stays empty."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    out = Output(None, quiet=False)
    with out.progress("starting") as say:
        say("1 of 2")
        out.print(Line("a row"))
        out.print(Line("another"))
    seen = capsys.readouterr()
    assert "a row" in seen.out
    assert "another" in seen.out
    assert "row" not in seen.err


def test_the_time_left_follows_what_was_measured(clock: Clock) -> None:
    cases = [planned.case for planned in plan_incident(find("43602"), Where("qwen3_vl"))]
    timer = CaseClock(cases)
    expected = timer.seconds_left()
    assert timer.begin().startswith(f"1 of {len(cases)}, about ")
    clock.now = 10 * expected
    timer.end()
    assert timer.seconds_left() > 2 * expected
    for number in range(1, len(cases)):
        assert timer.begin().startswith(f"{number + 1} of ")
        timer.end()
    assert timer.seconds_left() == 0
