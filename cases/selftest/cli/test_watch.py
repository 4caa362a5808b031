"""`watch -- COMMAND ..`: a program and its children, the exit status, and what was not watched."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import deepstack_harness
from deepstack_harness.cli import watch
from deepstack_harness.cli.main import main
from deepstack_harness.cli.output import Output
from deepstack_harness.cli.watch import WatchedRun, _code, _report, _watched_run
from deepstack_harness.compile import watch_process
from deepstack_harness.compile.torch_compat.modes import fake_world
from deepstack_harness.compile.watch_process import FOLDER, Unreached, read_processes, start_in_children
from deepstack_harness.errors import ExitCode

PROGRAM = """
import sys, torch

class Net(torch.nn.Module):
    def forward(self, x, extra=None):
        return x * 2 if extra is None else x + extra

drop = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
run = torch.compile(Net(), backend="eager", options=drop)
run(torch.ones(3))
for step in range(4):
    run(torch.ones(3), torch.full((3,), 5.0) if step % 2 and "wrong" in sys.argv else None)
"""
CHILD = """
import multiprocessing, runpy, sys

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=runpy.run_path, args=("program.py",))
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_report(lines: list[str], program: str) -> None:
    """Check argument, step, line and guard in the report of `PROGRAM wrong`."""
    first, _, counts, region = lines
    assert "outputs differ by 4 (largest value 6)" in first
    assert first.startswith(
        "Net.forward: `extra` was None when compiled, and float32 tensor [3] on cpu in 2 of 5 calls; "
        f"the guard 'extra is None' ({program}:6) was dropped"
    )
    assert counts.startswith("1 process, 1 region, 5 calls, ")
    assert counts.endswith("; failed and decide: 1")
    assert region.startswith(f"  Net.forward ({program}:5): 5 calls, ")


@pytest.mark.slow  # 7 s; by day its report, and a restored guard in test_watch_uncompiled.py
def test_a_wrong_program_is_reported_with_argument_step_and_line(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And the guard that changes its outputs is named, where it is run again with the guard put back."""
    words = ["watch", "--restore", "--json", "facts.jsonl", "--", sys.executable, "program.py", "wrong"]
    assert main(words) == ExitCode.BROKEN
    *lines, restored = capfd.readouterr().out.splitlines()
    check_report(lines, "program.py")
    right = "torch compiles again where it fails, and the output is right in all calls"
    assert restored == f"L['extra'] put back: {right}"
    row, again = [json.loads(line) for line in Path("facts.jsonl").read_text().splitlines()]
    assert again == {"restored": "L['extra']", "status": 0, "still_failing": []}
    (guard,) = row["failed"]
    assert (row["name"], row["calls"], row["ended"], row["kept"]) == ("Net.forward", 5, True, {})
    assert (guard["name"], guard["class"], guard["first_call"], guard["calls"]) == ("extra", "decides", 3, 2)


@pytest.mark.slow  # 5 s each; children are watched in test_which_failures_fail by day
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_child_is_watched(folder: Path, method: str, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["watch", "--", sys.executable, "child.py", method, "wrong"]
    assert main(words) == ExitCode.BROKEN
    assert "Net.forward: `extra` was None when compiled" in capfd.readouterr().out


@pytest.mark.slow  # 5 s
def test_rows_have_stdout_for_themselves(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "prints.py").write_text("print('ready', flush=True)\n" + PROGRAM)
    assert main(["watch", "--json", "-", "--", sys.executable, "prints.py", "wrong"]) == ExitCode.BROKEN
    out, err = capfd.readouterr()
    assert [json.loads(line)["name"] for line in out.splitlines()] == ["Net.forward"]
    assert "ready" in err


@pytest.mark.slow  # 5 s; a status of 137 by day
def test_the_status_of_the_program_comes_first(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "ends.py").write_text("import runpy, sys\nrunpy.run_path('program.py')\nsys.exit(7)\n")
    assert main(["watch", "--", sys.executable, "ends.py", "wrong"]) == 7
    assert "Net.forward: `extra`" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("code", "status", "sentence"),
    [
        ("print(1)", ExitCode.MACHINE, "nothing watched: 0 processes loaded torch.compile"),
        ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL, "(the program ended with 137)"),
        pytest.param(
            "import torch._dynamo",
            ExitCode.MACHINE,
            "nothing watched: 1 process loaded torch.compile, and no region was compiled",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_where_nothing_was_watched_it_is_not_green(
    code: str, status: int, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", "--", sys.executable, "-c", code]) == status
    assert sentence in capfd.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which processes have loaded torch")
def test_a_child_that_was_not_reached_is_reported(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "parent.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-E', 'waits.py'], check=True)\n"
    )
    (folder / "waits.py").write_text("import torch, time\ntime.sleep(1.5)\n")
    assert main(["watch", "--", sys.executable, "parent.py"]) == ExitCode.MACHINE
    told = capfd.readouterr().err
    assert "loaded torch and was not reached" in told
    assert "-E waits.py" in told


@pytest.mark.slow  # 5 s; its counts by day
def test_a_process_that_is_killed_has_reported_what_it_saw(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "dies.py").write_text(
        "import os, runpy, signal\nrunpy.run_path('program.py')\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert main(["watch", "--", sys.executable, "dies.py", "wrong"]) == 128 + signal.SIGKILL
    out = capfd.readouterr().out
    assert "Net.forward: `extra` was None when compiled" in out
    assert "did not come to its end: its counts and findings are here, the last inputs are missing" in out


@pytest.mark.slow  # 7 s
def test_a_child_that_is_killed_takes_nothing_along(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An engine ends its workers with a signal; what they saw counts, and their end does not."""
    (folder / "child.py").write_text(
        "import os, runpy, signal\nif not os.fork():\n    runpy.run_path('program.py')\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\nos.wait()\n"
    )
    assert main(["watch", "--", sys.executable, "child.py"]) == ExitCode.HOLDS
    assert "did not come to its end" in capfd.readouterr().out
    assert main(["watch", "--", sys.executable, "child.py", "wrong"]) == ExitCode.BROKEN


@pytest.mark.usefixtures("reset_signals")
@pytest.mark.parametrize(
    # SIGTERM is sent on in the same way, and a program that a signal kills is watched below.
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)],
)  # fmt: skip
def test_a_signal_is_sent_on_and_the_report_comes_before_the_end(
    folder: Path, number: signal.Signals
) -> None:
    (folder / "serves.py").write_text(
        "import runpy, signal\nrunpy.run_path('program.py')\nprint('ready', flush=True)\nsignal.pause()\n"
    )
    command = [sys.executable, "-m", "deepstack_harness", "watch", "--", sys.executable, "serves.py", "wrong"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(number)
        printed = running.stdout.read()
    # Python ends by KeyboardInterrupt with the signal itself.
    assert running.returncode == 128 + number
    assert "Net.forward: `extra` was None when compiled" in printed
    assert printed.splitlines()[-1] == (
        f"the program was ended by {number.name} (exit code {128 + number}); without it the exit code would "
        "be 1: 1 guard that decides failed"
    )


@pytest.mark.slow  # 7 s; forks of `runs` by day
def test_a_forked_child_that_goes_on_with_a_graph_counts_for_itself(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The graph was compiled in the parent; each process reports its own rank, calls and findings."""
    (folder / "ranks.py").write_text(
        PROGRAM + "import os\nfor rank in range(2):\n    if not os.fork():\n"
        "        os.environ['RANK'] = str(rank)\n"
        "        run(torch.ones(3), torch.full((3,), 7.0) if rank else None)\n        sys.exit(0)\n"
        "os.wait(), os.wait()\n"
    )
    words = ["watch", "--json", "facts.jsonl", "--", sys.executable, "ranks.py"]
    assert main(words) == ExitCode.BROKEN
    rows = [json.loads(line) for line in Path("facts.jsonl").read_text().splitlines()]
    assert sorted((row["rank"], row["calls"], len(row["failed"]), row["ended"]) for row in rows) == [
        ("", 5, 0, True), ("0", 1, 0, True), ("1", 1, 1, True),
    ]  # fmt: skip
    assert len({row["pid"] for row in rows}) == 3
    assert ", rank 1)" in capfd.readouterr().out


KILLED = (
    PROGRAM + "import os\nfor step in range(20):\n"
    "    run(torch.ones(3), torch.full((3,), 5.0) if step % 2 else None)\n"
    "os.kill(os.getpid(), 9)\n"
)
WITHOUT_EFFECT = PROGRAM.replace("torch.full((3,), 5.0)", "torch.ones(3)")
NOT_MEASURED = PROGRAM.replace("else x + extra", "else (self.kept.add_(1), x + extra)[1]").replace(
    "class Net(torch.nn.Module):", "class Net(torch.nn.Module):\n    kept = torch.zeros(1)"
)


GRAPHED = """
import sys
import torch
from deepstack_harness.compile.watch_captured import around

graphs = {}

def step(x, payload=None):
    if "graph" in graphs:
        graphs["graph"].replay()
        return
    graphs["graph"] = graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    graph.capture_end()

run = step if "bare" in sys.argv else around(step)
x = torch.ones(3)
run(x)
run(x)
run(x, torch.ones(3) if "wrong" in sys.argv else None)
"""
FORKS = """
import atexit, os, runpy, sys, torch

class Graph:  # in place of one on a GPU
    def capture_begin(self): pass
    def capture_end(self): pass
    def replay(self): pass

torch.cuda.CUDAGraph = Graph
from deepstack_harness.compile.torch_compat import dynamo

dynamo.load()

for rank, (program, *words) in enumerate(PROGRAMS):
    if not os.fork():
        os.environ["RANK"] = str(rank)
        sys.argv = [program, *words]
        runpy.run_path(program)
        atexit._run_exitfuncs()
        os._exit(0)  # the end of an interpreter copies the memory of all that is imported: 2 s
    if os.wait()[1] != (9 if "os.kill" in open(program).read() else 0):
        sys.exit(f"{program} failed")
"""
"""Runs each program in a child of its own: what compiles is imported once, which costs 4 s."""
PROGRAMS = {
    "right": (PROGRAM,),
    "effect": (PROGRAM, "wrong"),
    "no effect": (WITHOUT_EFFECT, "wrong"),
    "not measured": (NOT_MEASURED, "wrong"),
    "replay": (GRAPHED, "wrong"),
    "right replay": (GRAPHED, "right"),
    "bare replay": (GRAPHED, "bare"),
    "killed": (KILLED,),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, WatchedRun]:
    """What `watch` reads of each program, as if it were the only one."""
    folder = tmp_path_factory.mktemp("forks")
    commands = []
    for number, (text, *words) in enumerate(PROGRAMS.values()):
        program = folder / f"program{number}.py"
        program.write_text(text)
        commands.append((str(program), *words))
    forks = folder / "forks.py"
    forks.write_text(FORKS.replace("PROGRAMS", repr(commands)))
    whole = _watched_run([sys.executable, str(forks)])
    assert (whole.status, whole.unreached) == (0, {})
    of_rank = {process.rank: process for process in whole.processes}
    return {name: WatchedRun(0, [of_rank[str(rank)]], {}) for rank, name in enumerate(PROGRAMS)}


@pytest.mark.parametrize(
    ("program", "fail_on", "status"),
    [
        ("right", "effect", ExitCode.HOLDS),
        ("effect", "effect", ExitCode.BROKEN),
        ("no effect", "failed", ExitCode.HOLDS),
        ("not measured", "failed", ExitCode.BROKEN),
        ("not measured", "effect", ExitCode.MACHINE),
    ],
)
def test_which_failures_fail(
    runs: dict[str, WatchedRun],
    program: str,
    fail_on: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "_watched_run", lambda *_, **__: runs[program])
    assert main(["watch", "--fail-on", fail_on, "--", "program.py"]) == status


@pytest.mark.parametrize(
    ("program", "code", "sentence"),
    [
        ("right", ExitCode.HOLDS, "failed and decide: none\n"),
        (
            "replay",
            ExitCode.BROKEN,
            (
                "step: `payload` was None when captured, and float32 tensor [3] on cpu in 1 of 2 replays; "
                "a replay reads what was captured"
            ),
        ),
        ("right replay", ExitCode.HOLDS, "2 calls, 0 dropped guards; failed and decide: none"),
        (
            "bare replay",
            ExitCode.MACHINE,
            "inputs not visible in 2 of 2 replays: no callable around them is marked",
        ),
    ],
)
def test_a_program_is_reported_and_a_replay_is_held_against_its_capture(
    runs: dict[str, WatchedRun],
    program: str,
    code: ExitCode,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _code(runs[program], "failed") == code
    Output(None, quiet=False).show(_report(runs[program]))
    assert sentence in "".join(capsys.readouterr())


def test_the_counts_of_a_process_that_is_killed_are_whole(
    runs: dict[str, WatchedRun], capsys: pytest.CaptureFixture[str]
) -> None:
    (process,) = runs["killed"].processes
    assert not process.ended
    Output(None, quiet=False).show(_report(runs["killed"]))
    assert "float32 tensor [3] on cpu in 10 of 25 calls" in " ".join(capsys.readouterr().out.split())


def test_the_report_names_argument_step_line_and_guard(
    runs: dict[str, WatchedRun], capsys: pytest.CaptureFixture[str]
) -> None:
    Output(None, quiet=False).show(_report(runs["effect"]))
    check_report(re.sub(r"\(\S*/", "(", capsys.readouterr().out).splitlines(), "program1.py")


def test_a_program_of_a_wrong_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch"]) == ExitCode.USAGE
    assert main(["watch", "--", "no-such-program"]) == ExitCode.USAGE
    refused = capsys.readouterr().err.splitlines()
    assert refused[0].endswith("name the program to watch: deepstack-harness watch -- python serve.py")
    assert refused[1].endswith("cannot run 'no-such-program': No such file or directory")


def test_the_sitecustomize_of_the_user_still_runs(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('own')\n")
    environment = start_in_children(tmp_path / "watch", {**os.environ, "PYTHONPATH": str(own)})
    ran = subprocess.run(
        [sys.executable, "-c", "import sys; print('deepstack_harness' in sys.modules)"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.split()[0] == "own"
    assert ran.stderr == ""


def test_a_child_that_gets_the_path_of_its_parent_is_reached(tmp_path: Path) -> None:
    """Inductor starts its compilers and probes so."""
    code = (
        "import os, subprocess, sys; path = os.pathsep.join(sys.path); "
        "subprocess.run([sys.executable, '-c', '1'], env={**os.environ, 'PYTHONPATH': path}, check=True)"
    )
    environment = start_in_children(tmp_path, dict(os.environ))
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert len(read_processes(tmp_path)) == 2


def test_the_rank_is_that_of_the_process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of an engine have no RANK; torchrun sets it before there is a group."""
    monkeypatch.setenv("RANK", "1")
    assert watch_process.rank() == "1"
    with fake_world(3, 8):
        assert watch_process.rank() == "3"


FORKED = "import os, sys; child = os.fork(); print(child or '', flush=True); sys.stdin.read()"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which processes have executed a program")
def test_only_a_process_that_has_executed_nothing_yet_is_a_copy(tmp_path: Path) -> None:
    """Also where both have one command line, as a program has that starts itself again."""
    with subprocess.Popen(
        [sys.executable, "-c", FORKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        child = next(int(line) for line in running.stdout if line.strip())
        unreached = Unreached(tmp_path)
        assert not unreached._is_copy(child)  # its parent has no torch: it would have loaded its own
        (tmp_path / f"process-{running.pid}.jsonl").touch()
        assert unreached._is_copy(child)
        (tmp_path / f"process-{os.getpid()}.jsonl").touch()
        assert not unreached._is_copy(running.pid)  # a program of its own
        running.communicate("")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which processes have loaded torch")
def test_a_child_that_executes_a_program_while_its_memory_is_read_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then its maps are its parent's; a loop of `subprocess.run(["echo"])` meets that by chance."""
    program = FORKED.replace("sys.stdin.read()", "child or (sys.stdin.readline(), os.execlp('cat', 'cat'))")
    with subprocess.Popen(
        [sys.executable, "-c", program + "; os.wait()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        standard_input = running.stdin
        assert running.stdout is not None
        assert standard_input is not None
        child = next(int(line) for line in running.stdout if line.strip())

        def read_memory(pid: int) -> bool:
            if pid == child:
                standard_input.write("\n")
                standard_input.flush()
                while watch_process._command_line(child) != "cat":
                    pass
            return True

        monkeypatch.setattr(watch_process, "_has_torch", read_memory)
        unreached = Unreached(tmp_path)
        unreached._look_at(child)
        assert unreached.found == {}
        unreached._look_at(running.pid)
        assert [*unreached.found] == [running.pid]
        running.communicate("\n")


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    lines = ['{"event": "python", "pid": 5, "command": "python", "rank": "1"}', '{"event": "reg']
    (tmp_path / "process-5.jsonl").write_text("\n".join(lines))
    (process,) = read_processes(tmp_path)
    assert (process.pid, process.rank, process.ended, process.regions) == (5, "1", False, {})


def test_without_the_variable_nothing_is_installed() -> None:
    code = (
        "import sys; from deepstack_harness.compile.watch_process import install; "
        "before = len(sys.meta_path); install(); "
        "assert len(sys.meta_path) == before; assert 'torch' not in sys.modules"
    )
    root = str(Path(deepstack_harness.__file__).parents[1])
    environment = {name: value for name, value in os.environ.items() if name != FOLDER} | {"PYTHONPATH": root}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
