"""A command ends with the signal that ended it, and with its own code whatever became of its streams."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cases.by_day import by_day
from cases.selftest.workers.processes import Witness
from deepstack_harness.cli import main as cli
from deepstack_harness.cli.output import Output, OutputLost
from deepstack_harness.document.blocks import Line
from deepstack_harness.errors import INSTALL, ExitCode

pytestmark = pytest.mark.usefixtures("reset_signals")
MODULE = [sys.executable, "-m", "deepstack_harness"]
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")

# The program with a command that works in a worker until it is ended; `{then}` is at the end of the program.
WORKING = """
import sys
from deepstack_harness.cli import main as cli
from deepstack_harness.cli import repro as command
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.worker import Worker

def run(args):
    with Worker(Limits(call_s=600)) as worker:
        worker.call("cases.selftest.workers.misbehaving:start_daemon", {"witness": witness, "then": "hang"})

command.run = run
witness = sys.argv[1]
sys.argv[1:] = ["repro", "43602", *sys.argv[2:]]
sys.exit(cli.main())
"""


@pytest.mark.parametrize("number", by_day([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))
@pytest.mark.parametrize("more", [[], ["--bisect"]])
def test_a_signal_ends_the_process_with_that_signal_and_its_workers_with_it(
    number: signal.Signals, more: list[str], witness: Witness
) -> None:
    command = [sys.executable, "-c", WORKING, witness.path, *more]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        witness.line()
        running.send_signal(number)
        _, printed = running.communicate()
    assert running.returncode == -number
    assert printed.count("\n") == 1
    assert witness.is_closed()


def test_a_shell_loop_around_it_stops(witness: Witness) -> None:
    shell = 'for turn in 1 2 3; do "$@"; echo "turn $turn"; done'
    command = ["bash", "-c", shell, "bash", sys.executable, "-c", WORKING, witness.path]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as running:
        witness.line()
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        out, _ = running.communicate()
    assert (out, running.returncode) == ("", -signal.SIGINT)


def test_called_from_python_it_returns_128_and_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("deepstack_harness.cli.list.run", interrupted)
    assert cli.main(["list"]) == 130
    monkeypatch.setattr("deepstack_harness.cli.list.run", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert cli.main(["list"]) == 143


@pytest.mark.parametrize(
    ("words", "streams", "code"),
    [
        ("list rules", ">/dev/full", ExitCode.MACHINE),
        ("list rules --json -", ">/dev/full", ExitCode.MACHINE),
        ("list rules", ">&-", ExitCode.HOLDS),
        ("list rules", ">&- 2>&-", ExitCode.HOLDS),
        ("list rules --json -", ">&-", ExitCode.HOLDS),
        ("repro 99999", "2>/dev/full", ExitCode.USAGE),
        ("repro 99999", "2>&-", ExitCode.USAGE),
    ],
)
@FULL
def test_full_and_closed_streams_end_with_the_documented_code(
    words: str, streams: str, code: ExitCode
) -> None:
    shell = f'exec "$0" -m deepstack_harness {words} {streams}'
    ran = subprocess.run(["bash", "-c", shell, sys.executable], capture_output=True, text=True, check=False)
    assert ran.returncode == code
    assert "Traceback" not in ran.stderr
    assert "Exception ignored" not in ran.stderr
    if "/dev/full" in streams and code == ExitCode.MACHINE:
        assert "No space left on device" in ran.stderr


@FULL
def test_rows_in_a_file_are_complete_though_stdout_is_full(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    with Path("/dev/full").open("w") as full:
        command = [*MODULE, "list", "rules", "--json", str(rows)]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr.count("\n")) == (ExitCode.MACHINE, 1)
    assert [json.loads(line)["name"] for line in rows.read_text().splitlines()][-1] == "R14"


def test_a_reader_that_leaves_ends_a_command_without_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Left(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Left())
    with pytest.raises(OutputLost) as lost:
        Output(None, quiet=False).print(Line("text"))
    assert lost.value.reason is None


@pytest.mark.parametrize("encoding", by_day(["ascii", "utf-8", "latin-1"], count=2))
def test_an_encoding_without_a_character_shows_it_as_an_escape(encoding: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [*MODULE, "repro", "\N{GREEK SMALL LETTER ALPHA}\N{SNOWMAN}"]
    ran = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert ran.returncode == ExitCode.USAGE
    shown = "\N{GREEK SMALL LETTER ALPHA}\N{SNOWMAN}" if encoding == "utf-8" else "\\u03b1\\u2603"
    assert shown in ran.stderr.decode(encoding)


MISSING = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"
BROKEN = {
    "no library": "raise OSError('libcudart.so.12: cannot open shared object file')",
    "an undefined symbol": "raise ImportError('libtorch_cpu.so: undefined symbol: xyz')",
    "half a package": "import enum\nenum.no_such_thing",
    "a module below": "from torch import below",
}


def without_torch(folder: Path, text: str) -> dict[str, str]:
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text(text)
    (folder / "torch/below.py").write_text("1 / 0")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}


@pytest.mark.parametrize("kind", by_day(["missing", *BROKEN]))
@pytest.mark.parametrize("words", [["repro", "41485"], ["doctor"]])
def test_without_a_working_torch_it_shows_how_to_install_one(
    kind: str, words: list[str], tmp_path: Path
) -> None:
    environment = without_torch(tmp_path, BROKEN.get(kind, MISSING))
    environment["PIP_INDEX_URL"] = "http://127.0.0.1:9/simple"  # nobody listens there
    ran = subprocess.run([*MODULE, *words], capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == ExitCode.MACHINE, ran.stderr
    output = ran.stdout if words == ["doctor"] else ran.stderr
    assert INSTALL in output
    assert "Traceback" not in ran.stderr
    if words == ["doctor"]:
        assert "cannot run 'repro 43602': torch" in ran.stdout.splitlines()[-1]


def test_other_import_errors_stay_bugs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ImportError("cannot import name 'x' from 'deepstack_harness'")

    monkeypatch.setattr("deepstack_harness.cli.list.run", broken)
    assert cli.main(["list"]) == ExitCode.BUG
    assert "a bug of the harness" in capsys.readouterr().err


def test_as_the_program_it_ends_itself_with_the_signal_that_ended_its_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(cli, "_ENDED_BY", [])
    monkeypatch.setattr("atexit.register", lambda _: None)
    monkeypatch.setattr(cli, "prepare_streams", lambda: None)
    monkeypatch.setattr(sys, "argv", ["deepstack-harness", "list"])
    monkeypatch.setattr("deepstack_harness.cli.list.run", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert cli.main() == 143
    monkeypatch.setattr(signal, "signal", lambda *args: calls.append(args))
    monkeypatch.setattr(os, "kill", lambda *args: calls.append(args))
    cli._end()
    assert calls == [(signal.SIGTERM, signal.SIG_DFL), (os.getpid(), signal.SIGTERM)]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("I/O on closed file")])
def test_a_stream_that_cannot_be_flushed_at_the_end_is_dropped(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise error

    full, dropped = Full(), list[object]()
    monkeypatch.setattr(sys, "stdout", full)
    monkeypatch.setattr(cli, "abandon", dropped.append)
    cli._settle_streams()
    assert dropped == [full]
