"""Nothing is lost: runs that are killed, stopped, shared or out of room end as a whole one does."""

import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pandas as pd
import pytest

from deepstack_harness.cli.main import main
from deepstack_harness.errors import ExitCode
from deepstack_harness.runs.frames import read_run

pytestmark = [
    pytest.mark.slow, pytest.mark.xdist_group("kills"), pytest.mark.timeout(3000),
    pytest.mark.usefixtures("reset_signals"),
]  # fmt: skip
SELECTION = ("arm=eager", "incident=")
"""Three groups of 144 cases, and no compiler."""
KILLS = 40
ENDS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP", "worker")
SEED = int(os.environ.get("DEEPSTACK_HARNESS_KILL_SEED") or random.SystemRandom().randrange(10**6))


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "deepstack_harness", "run", *SELECTION, "-n", "2", "--out", str(folder),
            "--json", "-", *words]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert main(["run", *SELECTION, "-n", "2", "--out", str(folder), "--quiet"]) == ExitCode.HOLDS
    return folder


def judged(folder: Path, but: frozenset[str] = frozenset()) -> list[str]:
    """All rows and, of cases, what is not time, sorted; without the cases `but`."""
    run_data = read_run(folder)
    rows, cases = run_data.rows, run_data.cases.drop(columns=["seconds"])
    return sorted(
        [*_lines(rows[~rows["case"].isin(but)]), *_lines(cases[~cases["case"].isin(but)])],
    )


def _lines(table: pd.DataFrame) -> list[str]:
    return str(table.to_json(orient="records", lines=True)).splitlines()


@contextmanager
def running(folder: Path, draw: random.Random) -> Iterator["subprocess.Popen[str]"]:
    """Begin or go on with a run, and wait until it has judged up to six rows, and a few milliseconds."""
    resumed = ["--resume"] if (folder / "run.json").exists() else []
    before = _stored(folder)
    with (
        folder.with_suffix(".said").open("w") as output,
        subprocess.Popen(
            command(folder, *resumed), stdout=subprocess.PIPE, stderr=output, text=True
        ) as child,
    ):
        assert child.stdout is not None
        try:
            while _stored(folder) < before + draw.randint(1, 6) and child.stdout.readline():
                pass
            select.select([], [], [], draw.random() * 0.05)
            yield child
        finally:
            for number in (signal.SIGKILL, signal.SIGCONT):
                with suppress(ProcessLookupError):
                    child.send_signal(number)


def _stored(folder: Path) -> int:
    path = folder / "cases.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def children(pid: int) -> list[int]:
    listed: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        listed += [int(word) for word in (thread / "children").read_text().split()]
    return listed


def kill_a_worker(child: "subprocess.Popen[str]") -> bool:
    """Kill a process that plays, which is the child of a supervisor; False where none is there."""
    for supervisor in children(child.pid):
        for worker in children(supervisor):
            os.kill(worker, signal.SIGKILL)
            return True
    return False


def hit(child: "subprocess.Popen[str]", folder: Path, how: str) -> bool:
    """End a run, or its worker and then the run; return True where it was partly judged."""
    if how == "worker":
        stored = _stored(folder)
        if not kill_a_worker(child):
            return False
        while _stored(folder) == stored and child.poll() is None:
            assert child.stdout is not None
            child.stdout.readline()
        child.kill()
    elif how == "SIGSTOP":
        child.send_signal(signal.SIGSTOP)
        beside = subprocess.run(command(folder, "--resume"), capture_output=True, text=True, check=False)
        assert beside.returncode == ExitCode.USAGE, beside.stderr
        assert "another process is writing a run into" in beside.stderr
        child.kill()
    else:
        child.send_signal(signal.Signals[how])
    child.wait(timeout=60)
    if how in ("SIGTERM", "SIGINT"):
        output = folder.with_suffix(".said").read_text()
        assert child.returncode in (-signal.Signals[how], ExitCode.HOLDS), output
    return child.returncode != ExitCode.HOLDS


def test_a_run_that_is_killed_again_and_again_ends_as_a_whole_one(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\nDEEPSTACK_HARNESS_KILL_SEED={SEED}")
    draw, kills, workers_killed, number = random.Random(SEED), 0, 0, 0
    while kills < KILLS:
        folder, lost_at_most = tmp_path / f"run{number}", 0
        for _ in range(20):
            how = ENDS[(kills + number) % len(ENDS)]
            with running(folder, draw) as child:
                counted = hit(child, folder, how)
            kills += counted
            lost_at_most += how == "worker"
            if not counted or kills == KILLS:
                break
        code = main(["run", *SELECTION, "-n", "2", "--out", str(folder), "--resume", "--quiet"])
        crashed = frozenset(read_run(folder).cases.query("ending != 'played'")["case"])
        assert len(crashed) <= lost_at_most
        assert code == (ExitCode.BROKEN if crashed else ExitCode.HOLDS)
        assert judged(folder, crashed) == judged(whole, crashed)
        workers_killed += len(crashed)
        number += 1
    assert workers_killed  # a kill that no case noticed would prove nothing


def test_two_runs_into_one_folder_leave_one(whole: Path, tmp_path: Path) -> None:
    both = [
        subprocess.Popen(command(tmp_path / "run"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    messages = [child.communicate()[1].decode() for child in both]
    assert sorted(child.returncode for child in both) == [ExitCode.HOLDS, ExitCode.USAGE], messages
    assert judged(tmp_path / "run") == judged(whole)


def test_a_disk_that_fills_is_reported_and_the_run_goes_on_when_there_is_room(
    whole: Path, tmp_path: Path
) -> None:
    """A limit on file size in place of the disk: the write fails half-way, as on a full one."""

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    folder = tmp_path / "run"
    ended = subprocess.run(
        command(folder, "--quiet"), preexec_fn=fill, capture_output=True, text=True, check=False
    )
    assert ended.returncode == ExitCode.MACHINE, ended.stderr
    assert str(folder) in ended.stderr
    assert _stored(folder) > 0
    json.loads((folder / "run.json").read_text())
    assert main(["run", *SELECTION, "-n", "2", "--out", str(folder), "--resume", "--quiet"]) == ExitCode.HOLDS
    assert judged(folder) == judged(whole)


ON_A_SMALL_DISK = """
mount -t tmpfs -o size=96k none "$1" || exit 77
"$PYTHON" -m deepstack_harness run $SELECTION -n 2 --out "$1/run" --quiet 2>"$2.said"
code=$?
mount -o remount,size=64m "$1"
"$PYTHON" -m deepstack_harness run $SELECTION -n 2 --out "$1/run" --resume --quiet 2>>"$2.said" || exit 78
cp -r "$1/run" "$2"
exit $code
"""


def test_a_full_file_system_is_reported_and_the_run_goes_on_when_there_is_room(
    whole: Path, tmp_path: Path
) -> None:
    """A tmpfs of 96 KiB, which nobody else sees, and which is made larger for the second try."""
    (tmp_path / "disk").mkdir()
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", ON_A_SMALL_DISK, "sh"]
    ended = subprocess.run(
        [*words, str(tmp_path / "disk"), str(tmp_path / "run")],
        env={**os.environ, "PYTHON": sys.executable, "SELECTION": " ".join(SELECTION)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode == 77 or "unshare" in ended.stderr:
        pytest.skip(f"no file system can be mounted here: {ended.stderr.strip()}")
    output = (tmp_path / "run.said").read_text()
    assert ended.returncode == ExitCode.MACHINE, output
    assert "No space left on device" in output
    assert judged(tmp_path / "run") == judged(whole)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file in place of the folder: root may write into a read-only one."""
    (tmp_path / "file").write_text("here")
    ended = subprocess.run(command(tmp_path / "file" / "run"), capture_output=True, text=True, check=False)
    assert ended.returncode == ExitCode.MACHINE, ended.stderr
    assert str(tmp_path / "file") in ended.stderr
    assert (tmp_path / "file").read_text() == "here"


NODE_LOST = """
import subprocess, sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
other = cluster.add_node(num_cpus=1)
command = [sys.executable, "-m", "deepstack_harness", *sys.argv[1:]]
child = subprocess.Popen(command, env={**__import__("os").environ, "RAY_ADDRESS": cluster.address},
                         stdout=subprocess.PIPE, text=True)
groups = set()
for line in child.stdout:
    groups.add(line)
    if len(groups) == 40:
        cluster.remove_node(other, allow_graceful=False)
sys.exit(child.wait())
"""
"""Two nodes of Ray on this machine, each with one core; one dies when both have begun."""


def test_a_run_on_two_nodes_of_ray_survives_the_death_of_one(whole: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    folder = tmp_path / "run"
    words = ["run", *SELECTION, "--executor", "ray", "--out", str(folder), "--json", "-", "--quiet"]
    ended = subprocess.run(
        [sys.executable, "-c", NODE_LOST, *words], capture_output=True, text=True, check=False, timeout=900
    )
    assert ended.returncode == ExitCode.HOLDS, ended.stderr
    assert judged(folder) == judged(whole)
