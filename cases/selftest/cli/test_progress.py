"""Progress: a count and the time left, on a terminal and in a pipe, never among the rows."""

import sys
from types import SimpleNamespace

import pytest

from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.plans import Where, plan_incident
from deepstack_harness.cli import output
from deepstack_harness.cli import repro_table as case_clock
from deepstack_harness.cli.output import Output
from deepstack_harness.cli.repro_table import CaseClock

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
