"""A child that misbehaves ends, says how, and leaves nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

from cases.selftest.workers.processes import has_ended
from deepstack_harness.workers.isolate import Ending, Outcome, run_isolated


def call(name: str, timeout_s: float = 30, memory_bytes: int | None = None, **arguments: object) -> Outcome:
    target = f"cases.selftest.workers.misbehaving:{name}"
    return run_isolated(target, arguments, timeout_s=timeout_s, memory_bytes=memory_bytes)


def test_a_value_comes_back() -> None:
    outcome = call("double", number=21)
    assert (outcome.ending, outcome.value) == (Ending.RETURNED, 42)


def test_an_exception_comes_back_as_its_text() -> None:
    outcome = call("refuse", why="because")
    assert (outcome.ending, outcome.detail) == (Ending.RAISED, "ValueError: because")


def test_what_was_printed_is_kept() -> None:
    assert "printed before" in call("crash").output


def test_a_crash_names_the_signal() -> None:
    outcome = call("crash")
    assert (outcome.ending, outcome.detail) == (Ending.CRASHED, "ended by SIGSEGV")


def test_a_hang_is_ended_with_everything_it_started(tmp_path: Path) -> None:
    note = tmp_path / "grandchild"
    outcome = call("hang", timeout_s=3, note=str(note))
    assert outcome.ending is Ending.TIMED_OUT
    assert has_ended(int(note.read_text()))


def test_memory_is_limited() -> None:
    outcome = call("eat", megabytes=2000, memory_bytes=300 * 2**20)
    assert outcome.ending is Ending.OUT_OF_MEMORY


def test_the_same_memory_is_granted_without_a_limit() -> None:
    assert call("eat", megabytes=400).value == 400


def test_nothing_of_the_parent_is_inherited_by_forking() -> None:
    script = "import deepstack_harness.workers.isolate as i; "
    script += "import cases.selftest.workers.misbehaving as m; m.MARK = 7; "
    script += "print(i.run_isolated('cases.selftest.workers.misbehaving:mark', {}, timeout_s=30).value)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "0"


def test_a_child_ends_with_its_parent_even_if_that_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    os.mkfifo(note)
    hang = f"'cases.selftest.workers.misbehaving:tell_and_hang', {{'note': {str(note)!r}}}, timeout_s=600"
    script = f"from deepstack_harness.workers.isolate import run_isolated; run_isolated({hang})"
    with subprocess.Popen([sys.executable, "-c", script]) as parent:
        child = int(note.read_text())  # waits until the child writes
        parent.kill()
    assert has_ended(child)
