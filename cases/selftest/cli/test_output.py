"""Rows and progress on a terminal of 80 columns, and in a pipe."""

import os
import pty
import subprocess
import sys
from types import SimpleNamespace

import pytest

from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.plans import Where, plan_incident
from deepstack_harness.cli import output
from deepstack_harness.cli import repro_table as case_clock
from deepstack_harness.cli.output import Output
from deepstack_harness.cli.repro_table import CaseClock

COMMAND = [sys.executable, "-m", "deepstack_harness", "list", "rules"]
# rich asks the variables first, and then the terminal.
PLAIN = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}


def on_a_terminal() -> list[str]:
    """Return the lines that COMMAND writes to a pseudo-terminal."""
    parent, child = pty.openpty()
    process = subprocess.Popen(COMMAND, stdout=child, stdin=child, env=PLAIN)
    os.close(child)
    written = b""
    try:
        while part := os.read(parent, 65536):
            written += part
    except OSError:
        # Linux reports EIO when the other end is closed.
        pass
    os.close(parent)
    assert process.wait() == 0
    return written.decode().replace("\x1b[0m", "").replace("\x1b[1m", "").splitlines()


def test_on_a_terminal_the_last_cell_goes_on_below_itself() -> None:
    lines = on_a_terminal()
    assert max(map(len, lines)) <= 80
    rule = next(number for number, line in enumerate(lines) if line.startswith("    R2 "))
    column = lines[rule].index("boundary")
    assert lines[rule + 1].index("min(N, P))") == column


def test_in_a_pipe_a_row_is_one_line() -> None:
    said = subprocess.run(COMMAND, env=PLAIN, capture_output=True, text=True, check=True).stdout
    rows = [line for line in said.splitlines() if line.startswith("    R")]
    assert len(rows) == 15
    assert all("(figure: " in row and row.endswith(")") for row in rows)


Capture = pytest.CaptureFixture[str]


class Clock(SimpleNamespace):
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(output, "time", clock)
    monkeypatch.setattr(case_clock, "time", clock)
    return clock


def test_a_pipe_gets_a_line_now_and_then_on_stderr(clock: Clock, capsys: Capture) -> None:
    with Output(None, quiet=False).progress("starting") as say:
        for second in (1, 9, 11, 12, 20, 22):
            clock.now = second
            say(f"{second} of 30")
    assert capsys.readouterr() == ("", "deepstack-harness: 11 of 30\ndeepstack-harness: 22 of 30\n")


@pytest.mark.parametrize("silent", [Output(None, quiet=True), Output("-", quiet=False)])
def test_a_silent_output_has_no_progress(silent: Output, clock: Clock, capsys: Capture) -> None:
    with silent.progress("starting") as say:
        clock.now = 100
        say("1 of 3")
    assert capsys.readouterr() == ("", "")


def test_rows_under_a_spinner_go_to_stdout_alone(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """rich would send them to the console of the spinner, so that `> rows.txt` stays empty."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    out = Output(None, quiet=False)
    with out.progress("starting") as say:
        say("1 of 2")
        out.line("a row")
        out.line("another")
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
