"""A command line runs under a supervisor: its status and output are told, and nothing outlives it."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cases.selftest.workers.processes import Witness, interrupt_after, open_streams
from deepstack_harness.workers.command import Command, run_command
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.messages import MessagePipes
from deepstack_harness.workers.outcomes import Crowded, Exited, Flooded, Signalled, TimedOut, WorkerEnd
from deepstack_harness.workers.supervised import Supervised

LIMITS = Limits(call_s=60)


def shell(script: str, limits: Limits = LIMITS, **options: object) -> WorkerEnd:
    return run_command(Command(("sh", "-c", script), **options), limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo out; echo error >&2", Exited(status=0, output="out\nerror\n")),
        ("exit 7", Exited(status=7)),
        ("kill -SEGV $$", Signalled(number=signal.SIGSEGV)),
        ("cat", Exited(status=0)),
    ],
)
def test_a_command_ends_with_its_status_and_output(script: str, expected: WorkerEnd) -> None:
    assert shell(script) == expected


def test_what_it_prints_as_errors_may_be_dropped() -> None:
    assert shell("echo out; echo error >&2", stderr=False) == Exited(status=0, output="out\n")


def test_it_has_a_folder_and_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GONE", "there")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = shell(
        "pwd; echo $GIVEN-$GONE-$OMP_NUM_THREADS", folder=tmp_path, environment={"GIVEN": "a", "GONE": None}
    )
    assert found.output == f"{tmp_path}\na--3\n"


def test_a_log_has_all_of_the_output_and_the_result_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    found = shell("seq 100000", log=log)
    assert log.read_text().split() == [str(number) for number in range(1, 100001)]
    assert found.output.endswith("99999\n100000\n")
    assert len(found.output) == 6000


def test_what_a_reader_closed_ends_a_command_as_usual() -> None:
    """Python ignores SIGPIPE, and a program that inherits this goes on for ever."""
    # Not `head`, which closes its input before it writes: then either line may be the first.
    reader = "{ read -r line; echo $line; }"
    assert shell(f"(yes; echo $? >&2) | {reader}") == Exited(status=0, output="y\n141\n")


def test_a_command_that_takes_too_long_ends_with_what_it_started(witness: Witness) -> None:
    script = f"exec 3> {witness.path}; (setsid sleep 600 &) ; echo up >&3; sleep 600"
    end = shell(script, Limits(call_s=1))
    assert isinstance(end, TimedOut)
    assert end.sentence == "no answer within 1 s"
    assert witness.line() == "up"
    assert witness.is_closed()


def test_a_daemon_does_not_outlive_a_command_that_ended_well(witness: Witness) -> None:
    assert shell(f"exec 3> {witness.path}; setsid sleep 600 & echo up >&3") == Exited(status=0)
    assert witness.is_closed()


def test_a_flood_ends_a_command() -> None:
    end = shell("yes", Limits(output=2**20))
    assert isinstance(end, Flooded)
    assert end.size < 2**22  # what the pipe held when the limit was passed


def test_memory_and_files_are_limited(tmp_path: Path) -> None:
    eat = Command((sys.executable, "-c", "bytearray(2**30)"))
    assert "MemoryError" in run_command(eat, Limits(memory=2**28)).output
    write = f"head -c 2000000 /dev/zero > {tmp_path / 'long'}"
    assert shell(f"exec {write}", Limits(file_size=2**20)) == Signalled(number=signal.SIGXFSZ)


@pytest.mark.parametrize("word", ["no-such-command", "/etc/passwd"])
def test_a_command_that_cannot_be_executed_says_why(word: str) -> None:
    with pytest.raises(OSError, match="No such file or directory|Permission denied"):
        run_command(Command((word,)), LIMITS)


def test_an_interrupt_ends_a_command_and_goes_on(witness: Witness) -> None:
    interrupter = threading.Thread(target=interrupt_after, args=(witness.line,))
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        shell(f"exec 3> {witness.path}; echo up >&3; sleep 600")
    interrupter.join()
    assert witness.is_closed()


def test_a_command_ends_with_the_process_that_started_it(witness: Witness) -> None:
    script = """
import sys
from deepstack_harness.workers.command import Command, run_command
from deepstack_harness.workers.limits import Limits
run_command(Command(("sh", "-c", sys.argv[1])), Limits(call_s=600))
"""
    hangs = f"exec 3> {witness.path}; (setsid sleep 600 &) ; echo up >&3; sleep 600"
    with subprocess.Popen([sys.executable, "-c", script, hangs]) as parent:
        witness.line()
        parent.kill()
    assert witness.is_closed()


def test_no_stream_is_left_open() -> None:
    before = open_streams()
    shell("exit 3")
    with pytest.raises(FileNotFoundError):
        run_command(Command(("no-such-command",)), LIMITS)
    assert open_streams() == before


def test_a_command_that_starts_too_many_processes_is_ended() -> None:
    end = shell(
        "for each in 1 2 3 4 5 6; do sleep 60 & done; echo started; wait", Limits(processes=3, call_s=60)
    )
    assert isinstance(end, Crowded), end
    assert end.count > end.limit == 3


def test_a_request_waits_while_its_pipe_is_full() -> None:
    pipes = MessagePipes()
    left: list[int] = []
    pipes._process = cast(Supervised, SimpleNamespace(unregister=left.append))
    os.set_blocking(pipes._requests, False)
    filled = os.write(pipes._requests, bytes(2**20))
    pipes._outbox = memoryview(b"request\n")
    pipes._write()
    assert (bytes(pipes._outbox), left) == (b"request\n", [])
    os.read(pipes.for_requests, filled)
    pipes._write()
    assert (bytes(pipes._outbox), left) == (b"", [pipes._requests])
    assert os.read(pipes.for_requests, 99) == b"request\n"
    pipes.close_theirs()
    pipes.close()
