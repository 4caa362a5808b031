"""Stages of a night: how they end, what the night does then, and what it reports."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from pathlib import Path

import msgspec
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from cases.selftest.workers.misbehaving import ALWAYS
from cases.selftest.workers.processes import Witness, has_ended
from deepstack_harness import files
from deepstack_harness.audit.account import Account, UnjudgedCarrier
from deepstack_harness.cli import nightly as nightly_command
from deepstack_harness.cli.main import COMMANDS, build_parser, main
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Row, Verdict
from deepstack_harness.engines.live.environment import folder_for
from deepstack_harness.errors import ExitCode, MachineError, UsageError
from deepstack_harness.runs import night_stages, nights
from deepstack_harness.runs.night_stages import NightRequest, NightTier, has_unexpected, stages
from deepstack_harness.runs.nights import (
    EndedStage,
    NightlyRun,
    Stage,
    StageOutcome,
    exit_code,
    gpu_fault,
    write_summary,
)
from deepstack_harness.sources.environments import STAMP, python_of

ROOT = files.data("pyproject.toml").parent
HELD, BROKEN, FAILED, NOT_RUN = (
    StageOutcome.HELD,
    StageOutcome.BROKEN,
    StageOutcome.FAILED,
    StageOutcome.NOT_RUN,
)
SLEEPS = "import time; time.sleep(600)"
HANGS = f"""
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "{SLEEPS}"]).pid, flush=True)
time.sleep(600)"""


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code)


def stage(name: str, code: int = 0, *, gpu: bool = False, last: bool = False) -> Stage:
    program = f"print('{name} said so'); raise SystemExit({code})"
    return Stage(name, python(program), 60, gpu=gpu, last=last)


def night(folder: Path, *faults: str | None, free: int = 2**40) -> NightlyRun:
    answers: Iterator[str | None] = iter(faults)
    return NightlyRun(folder, lambda: next(answers), lambda _: free)


def outcomes(ended: list[EndedStage]) -> dict[str, StageOutcome]:
    return {stage.stage: stage.outcome for stage in ended}


def test_a_failure_is_recorded_and_the_night_goes_on(tmp_path: Path) -> None:
    done = list(night(tmp_path).run([stage("a"), stage("b", 1), stage("c", 2), stage("d"), stage("report")]))
    assert outcomes(done) == {"a": HELD, "b": BROKEN, "c": FAILED, "d": HELD, "report": HELD}
    assert [stage.code for stage in done] == [0, 1, 2, 0, 0]
    assert done[1].detail == "b said so"
    assert exit_code(done) is ExitCode.BROKEN
    assert (tmp_path / "b.log").read_text() == "b said so\n"


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        ([EndedStage("a", HELD, 0)], ExitCode.HOLDS),
        ([EndedStage("a", FAILED, 3), EndedStage("b", FAILED, 4)], ExitCode.MACHINE),
        ([EndedStage("a", FAILED, 2)], ExitCode.BUG),
        ([EndedStage("a", FAILED, -11)], ExitCode.BUG),
        ([EndedStage("a", HELD, 0), EndedStage("b", NOT_RUN)], ExitCode.MACHINE),
        ([EndedStage("a", StageOutcome.TIMED_OUT), EndedStage("b", BROKEN, 1)], ExitCode.BROKEN),
    ],
)
def test_the_exit_code_is_that_of_the_worst_stage(ended: list[EndedStage], code: ExitCode) -> None:
    assert exit_code(ended) is code


def test_a_gpu_that_vanishes_takes_its_stages_with_it_and_no_other(tmp_path: Path) -> None:
    planned = [
        stage("a", gpu=True), stage("b", 1, gpu=True), stage("c", gpu=True), stage("d"),
        Stage("e", python("raise SystemExit(5)"), 60, gpu=True, without_gpu=python("print('on the CPU')")),
        stage("report", last=True),
    ]  # fmt: skip
    done = list(night(tmp_path, None, "Xid 79: fell off the bus").run(planned))
    assert outcomes(done) == {
        "gpu": HELD, "a": HELD, "b": BROKEN, "c": NOT_RUN, "d": HELD, "e": HELD, "report": HELD,
    }  # fmt: skip
    assert done[2].detail == "the GPU is gone: Xid 79: fell off the bus; b said so"
    assert done[3].detail == "the GPU is gone: Xid 79: fell off the bus"
    assert (tmp_path / "e.log").read_text() == "on the CPU\n"


def test_a_missing_gpu_is_reported_first(tmp_path: Path) -> None:
    done = list(night(tmp_path, "no driver").run([stage("a", gpu=True), stage("b")]))
    assert outcomes(done) == {"gpu": FAILED, "a": NOT_RUN, "b": HELD}
    assert exit_code(done) is ExitCode.MACHINE


def test_no_gpu_is_required_if_no_stage_needs_it(tmp_path: Path) -> None:
    assert outcomes(list(night(tmp_path).run([stage("a", 1)]))) == {"a": BROKEN}


def test_a_full_disk_ends_with_a_report_of_it(tmp_path: Path) -> None:
    seen = "import pathlib, sys; sys.exit(pathlib.Path('ballast').exists())"
    last = Stage("report", python(seen), 60, last=True, where=tmp_path)
    held_back = Stage("ballast", python(seen), 60, where=tmp_path)
    assert outcomes(list(night(tmp_path).run([held_back]))) == {"ballast": BROKEN}
    done = list(night(tmp_path, free=2**28).run([stage("a"), last]))
    assert outcomes(done) == {"a": NOT_RUN, "report": HELD}
    assert done[0].detail == "the disk is full: 256 MiB are left"


def test_a_stage_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    done = list(night(tmp_path).run([Stage("a", python(HANGS), 1), stage("b")]))
    assert outcomes(done) == {"a": StageOutcome.TIMED_OUT, "b": HELD}
    assert has_ended(int((tmp_path / "a.log").read_text()))


INTERRUPTED = """
import sys
from deepstack_harness.cli.main import main
from deepstack_harness.runs import night_stages as stages
from deepstack_harness.runs.nights import Stage

stages.stages = lambda *_: [Stage("hangs", ("sh", "-c", sys.argv[2]), 600)]
sys.exit(main(["nightly", "--history", sys.argv[1], "--out", f"{sys.argv[1]}/night"]))
"""


@pytest.mark.usefixtures("reset_signals")
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_night_that_ends_ends_its_stage(tmp_path: Path, witness: Witness, ending: signal.Signals) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    stage = f"exec 3> {witness.path}; touch $TMPDIR/left; (setsid sleep 600 &) ; echo $PPID >&3; sleep 600"
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path), stage]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as night:
        supervisor = int(witness.line())
        assert len(list(temporary.rglob("left"))) == 1
        night.send_signal(ending)
        _, printed = night.communicate()
    if ending is signal.SIGKILL:
        assert night.returncode == -signal.SIGKILL
    else:
        ended, note = printed.splitlines()
        assert (night.returncode, ended) == (128 + ending, f"deepstack-harness: ended by {ending.name}")
        assert note.startswith("deepstack-harness: to go on: ")
        assert note.endswith(f"--out {tmp_path}/night --resume")
        assert not (tmp_path / "night" / "ballast").exists()
    assert witness.is_closed()
    assert has_ended(supervisor)
    assert not list(temporary.iterdir())


class Clock:
    """A clock that stages move on: it is read before each stage, and once at the beginning."""

    def __init__(self, *seconds: float) -> None:
        self._times = iter(seconds)

    def __call__(self) -> float:
        return next(self._times)


def test_a_stage_without_time_is_reported_and_the_report_is_made(tmp_path: Path) -> None:
    """At 0, 0, 70 and 290 of 300 seconds; 30 are reserved for the report."""
    planned = [
        stage("a"), replace(stage("b"), seconds=600, least=250), replace(stage("c"), least=20),
        replace(stage("report", last=True), least=30),
    ]  # fmt: skip
    clocked = replace(night(tmp_path), seconds=300, clock=Clock(0, 0, 70, 290, 295))
    done = list(clocked.run(planned))
    assert outcomes(done) == {"a": HELD, "b": NOT_RUN, "c": NOT_RUN, "report": HELD}
    assert done[1].detail == "no time: it needs at least 250 s, and 200 s of the night are left for it"
    assert done[2].detail == "no time: it needs at least 20 s, and 0 s of the night are left for it"
    assert exit_code(done) is ExitCode.MACHINE


def test_a_stage_has_its_part_of_a_short_night(tmp_path: Path) -> None:
    long = Stage("long", python(SLEEPS), 600, share=1, least=0.1)
    planned = [long, replace(long, name="other", share=3), replace(stage("report", last=True), least=1)]
    done = list(replace(night(tmp_path), seconds=5, clock=Clock(0, 0, 4, 5)).run(planned))
    assert [stage.outcome for stage in done] == [StageOutcome.TIMED_OUT, NOT_RUN, HELD]
    assert done[0].detail.startswith("no end within 1 s, its part of the night: ")


def test_a_night_without_minutes_has_the_limits_of_its_stages(tmp_path: Path) -> None:
    assert outcomes(list(night(tmp_path).run([replace(stage("a"), least=1e9)]))) == {"a": HELD}


def test_a_short_night_hunts_for_a_tenth_and_plays_the_small_matrix(tmp_path: Path) -> None:
    short = replace(wanted(tmp_path, "cpu"), minutes=5.0, fuzz_minutes=30.0)
    planned = {stage.name: stage for stage in stages(short)}
    assert planned["fuzz"].command[-4:-2] == ("--minutes", "0.5")
    assert "ci" in planned["run"].command
    assert "nightly" in {stage.name: stage for stage in stages(wanted(tmp_path, "cpu"))}["run"].command


def test_a_short_night_is_not_compared_with_a_long_one(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "run.json").write_text(ABOUT.replace("FINISHED", '"t"'))
    assert "compare" in [stage.name for stage in stages(wanted(tmp_path, "cpu"))]
    assert "compare" not in [stage.name for stage in stages(replace(wanted(tmp_path, "cpu"), minutes=5.0))]


def test_a_night_is_not_compared_with_one_of_a_few_incidents(tmp_path: Path) -> None:
    """The tier gpu stores its nights in the same folder by default, and finishes last."""
    selection = '"incident=43602"'
    for name, text in (("1", ABOUT), ("2", ABOUT.replace('"selection": null', f'"selection": {selection}'))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text.replace("FINISHED", '"t"'))
    planned = {stage.name: stage for stage in stages(wanted(tmp_path, "cpu"))}
    assert planned["compare"].command[4:6] == (str(tmp_path / "1"), str(tmp_path / "new"))


def without(monkeypatch: pytest.MonkeyPatch, *names: str, present: str | None = None) -> None:
    """Let distributions be missing, or be there in a version."""

    def installed(name: str) -> str:
        if name not in names:
            return version(name)
        if present is None:
            raise PackageNotFoundError(name)
        return present

    monkeypatch.setattr(night_stages, "version", installed)


@pytest.mark.parametrize("present", ["0", None], ids=["too old", "not there"])
def test_a_night_without_its_extra_is_refused_with_the_name(
    present: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "junitparser", present=present)
    words = ["nightly", "--history", str(tmp_path / "nights"), "--stage", "report", "--stage", "newest"]
    assert main(words) == ExitCode.MACHINE
    said = capsys.readouterr().err
    assert "not installed: junitparser>=3 (extra 'reports'): python -m pip install" in said
    assert "'.[reports]'" in said
    assert not (tmp_path / "nights").exists()


def test_a_stage_that_needs_more_than_a_night_is_left_out_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = night_stages.stages
    without(monkeypatch, "selenium")

    def short(request: NightRequest, only: tuple[str, ...] = ()) -> list[Stage]:
        planned = [stage for stage in real(request) if stage.name in {"kernels", "tests", "report"}]
        return [replace(stage, command=python("print('ran')"), where=None) for stage in planned]

    monkeypatch.setattr(night_stages, "stages", short)
    assert main(["nightly", "--history", str(tmp_path)]) == ExitCode.HOLDS
    printed = capsys.readouterr().out
    why = "not installed: selenium>=4.30 (extra 'test'): python -m pip install 'deepstack-harness[test]'"
    first, tests, kernels, report, last = printed.splitlines()
    assert first == f"tests will not run: {why}"
    assert tests.startswith("tests        left out")
    assert tests.endswith(why)
    assert kernels.split()[:2] == ["kernels", "held"]
    assert report.split()[:2] == ["report", "held"]
    assert last.endswith(": 2 of 3 stages held; tests left out")
    assert not list(tmp_path.glob("*/tests.log"))


def test_a_stage_without_what_a_night_needs_was_not_run(tmp_path: Path) -> None:
    lacks = replace(stage("report", last=True), missing={"reports": ("matplotlib>=3",)})
    (done,) = night(tmp_path).run([lacks])
    assert (done.outcome, exit_code([done])) == (NOT_RUN, ExitCode.MACHINE)
    assert "matplotlib>=3 (extra 'reports')" in done.detail


@pytest.mark.parametrize("tier", NightTier)
@pytest.mark.parametrize("checkout", [True, False])
def test_the_documented_extra_is_enough_for_what_is_not_optional(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: NightTier, *, checkout: bool
) -> None:
    monkeypatch.setattr(night_stages, "has_selftests", lambda: checkout)
    monkeypatch.setattr(night_stages, "version", lambda _: "0")
    planned = stages(replace(wanted(tmp_path, "cpu"), tier=tier, rehearse=tier is NightTier.GPU))
    lacking = {stage.name: set(stage.missing) for stage in planned if stage.missing}
    beyond = {name for name, extras in lacking.items() if extras != {"reports"}}
    assert beyond == ({"tests", "untested"} if checkout and tier is NightTier.FULL else set())
    assert beyond == {stage.name for stage in planned if stage.optional}
    assert lacking["report"] == {"reports"}


BLOCKED = """
from functools import partial  # pytest keeps it in a class, which would bind a function
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    if name.partition(".")[0] in NAMES:
        raise ModuleNotFoundError(f"No module named {name!r}: it is of another extra", name=name)
    return find(name, path, target)

PathFinder.find_spec = partial(find_spec)
"""


def brought_by(lines: Iterable[str], found: set[str], extra: str = "") -> set[str]:
    """Return the distributions that an installation of these requirements brings, by their normal names."""
    for requirement in map(Requirement, lines):
        normal = canonicalize_name(requirement.name)
        if normal not in found and (
            requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        ):
            found.add(normal)
            for wanted_extra in {"", *requirement.extras}:
                with suppress(PackageNotFoundError):
                    brought_by(requires(requirement.name) or (), found, wanted_extra)
    return found


@pytest.mark.slow  # 6 s
def test_cases_of_a_wheel_are_collected_with_only_the_documented_extra(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["reports"]]
    there = brought_by(lines, {"deepstack-harness"})
    assert {"pandas", "pytest", "torch", "execnet"} <= there
    assert "selenium" not in there
    modules = {
        module
        for module, owners in packages_distributions().items()
        if not any(canonicalize_name(owner) in there for owner in owners)
    }
    assert {"selenium", "coverage", "transformers"} <= modules
    (tmp_path / "sitecustomize.py").write_text(BLOCKED.replace("NAMES", repr(modules)))
    request = NightRequest(tmp_path, tmp_path, ["cuda"], 5, workers=2, tier=NightTier.GPU, rehearse=True)
    (kernels,) = stages(request, ["gpu-kernels"])
    files = ["cases/test_incidents.py", "cases/test_kernels.py", "cases/test_releases.py"]
    words = [word for word in kernels.command if not word.startswith("cases/")]
    plugins = ["-p", "pytest_timeout", "-p", "xdist", "-p", "deepstack_harness.pytest_plugin"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment["HYPOTHESIS_NO_PLUGINS"] = "1"
    end = subprocess.run(
        [*words, *plugins, *files],
        cwd=kernels.where,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert end.returncode == 0, end.stdout[-2000:] + end.stderr[-2000:]
    assert re.search(r"[1-9]\d*/\d+ tests collected", end.stdout)


@pytest.mark.parametrize("option", ["--minutes", "--fuzz-minutes"])
def test_minutes_are_above_zero(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nightly", option, "0"]) == ExitCode.USAGE
    assert f"{option} 0 must be above 0" in capsys.readouterr().err


def test_a_log_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.log").mkdir()
    (done,) = night(tmp_path).run([stage("a")])
    assert (done.outcome, done.detail) == (FAILED, "could not be started: Is a directory")


def test_the_summary_is_harmless_in_markdown(tmp_path: Path) -> None:
    write_summary(tmp_path, [EndedStage("a", BROKEN, 1, 2.5, "x | <script>\nlast")])
    assert (tmp_path / "nightly.md").read_text().splitlines()[
        -1
    ] == r"| a | broken | 2 | x \| &lt;script> last |"


def wanted(folder: Path, *devices: str, sources: tuple[str, ...] = ()) -> NightRequest:
    return NightRequest(folder / "new", folder, devices, 5, sources=sources, workers=2)


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two whole environments of an engine, and one that is half made."""
    monkeypatch.setattr(files, "cache", lambda: tmp_path / "cache")
    for release, whole in (("0.9.1", True), ("0.32.0", True), ("0.33.0", False)):
        folder = folder_for(Version(release))
        python_of(folder).parent.mkdir(parents=True)
        python_of(folder).touch()
        if whole:
            (folder / STAMP).write_text(f'{{"version": "{release}"}}')


@pytest.mark.usefixtures("environments")
def test_a_night_with_an_engine_plays_and_searches_it(tmp_path: Path) -> None:
    planned = {
        stage_of_night.name: stage_of_night
        for stage_of_night in stages(wanted(tmp_path, "cpu"), ["engine", "search"])
    }
    assert list(planned) == ["engine", "search"]
    for stage_of_night in planned.values():
        words = stage_of_night.command[3:]
        parsed = build_parser(words).parse_args(words)
        assert (parsed.command, parsed.source) == ("engine", "vllm==0.32.0")
        assert (parsed.search == 5) == (stage_of_night.name == "search")
        assert parsed.json == str(tmp_path / "new" / f"{stage_of_night.name}.jsonl")
    assert planned["search"].seconds > 5 * 60 * 4


def test_a_night_without_an_engine_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "cache", lambda: tmp_path / "cache")
    assert {"engine", "search"}.isdisjoint(stage.name for stage in stages(wanted(tmp_path, "cpu")))


def test_every_command_of_a_night_is_one_that_the_parser_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "cache", lambda: tmp_path / "cache")
    for name, finished in (("1", '"t"'), ("2", '"t"'), ("3", "null")):
        about = (tmp_path / name).joinpath
        about().mkdir()
        about("run.json").write_text(ABOUT.replace("FINISHED", finished))
    planned = {
        stage_of_night.name: stage_of_night
        for stage_of_night in stages(wanted(tmp_path, "cpu", "cuda", sources=("0.33.0",)))
    }
    named = ["run", "compare", "audit", "newest", "tests", "kernels", "fuzz", "bench", "untested", "report"]
    assert [name for name in named if name in planned or name != "untested"] == list(planned)
    for stage_of_night in planned.values():
        words = stage_of_night.command[3:]
        if stage_of_night.name != "tests" and words[0] in COMMANDS:
            assert build_parser(words).parse_args(words).command == stage_of_night.name
    assert planned["compare"].command[4:6] == (str(tmp_path / "2"), str(tmp_path / "new"))
    assert "--deepstack-require-gpu" in planned["tests"].command
    assert "cuda" not in " ".join([*planned["run"].without_gpu, *planned["tests"].without_gpu])


ABOUT = """{"schema_version": 3, "harness": "1", "started": "t", "finished": FINISHED, "command": [],
"selection": null, "tier": "nightly", "shard": null, "planned": {"groups": 0, "cases": 0}, "plan": "",
"environment": {"python": "3", "torch": null, "triton": null, "platform": "", "cpu": "", "device": [],
"driver": null, "commit": null, "settings": {}}}"""


def test_the_first_night_has_nothing_to_compare_with(tmp_path: Path) -> None:
    assert "compare" not in [stage.name for stage in stages(wanted(tmp_path, "cpu"))]
    with pytest.raises(UsageError, match="unknown stage 'compare'; this night has run, newest, tests"):
        stages(wanted(tmp_path, "cpu"), ["compare"])


@pytest.mark.parametrize(("reason", "red"), [("", True), ("no encoder writes it", False)])
def test_a_carrier_that_was_not_judged_makes_the_night_red_unless_it_is_known(
    tmp_path: Path, reason: str, red: bool
) -> None:
    rows = tmp_path / "audit.jsonl"
    carrier = UnjudgedCarrier("Fresh", "vllm/models/fresh.py", 7, "it was not called", reason)
    rows.write_bytes(msgspec.json.encode(carrier.row("vllm 0.33.0", "vllm")) + b"\n")
    assert has_unexpected(rows) is red
    (outdated,) = Account(outdated=("Fresh",)).rows("vllm 0.33.0", "vllm")
    rows.write_bytes(msgspec.json.encode(outdated) + b"\n")
    assert has_unexpected(rows)


@pytest.mark.parametrize(
    ("verdicts", "red"),
    [
        ("XFAIL PASS SKIP", False),
        ("XFAIL FAIL", True),
        ("IMPROVED", True),
        ("MISSING PASS", True),
        ("ERROR PASS", True),
        ("", True),
        ("torn", True),
    ],
)
def test_known_failures_of_a_source_do_not_make_the_night_red(
    tmp_path: Path, verdicts: str, red: bool
) -> None:
    rows = tmp_path / "audit.jsonl"
    judged_rows = [] if verdicts == "torn" else map(Verdict, verdicts.split())
    written = [Row(revision="vllm 0.33.0", rule=Rule.FRESHNESS, verdict=verdict) for verdict in judged_rows]
    rows.write_bytes(b"torn\n" if verdicts == "torn" else msgspec.json.Encoder().encode_lines(written))
    assert has_unexpected(rows) is red
    audit = Stage("audit", python("raise SystemExit(1)"), 60, has_unexpected=lambda: has_unexpected(rows))
    (done,) = night(tmp_path).run([audit])
    assert done.outcome is (BROKEN if red else HELD)


def test_the_command_writes_what_happened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "night"
    words = ["nightly", "--history", str(tmp_path), "--out", str(out), "--stage", "report"]
    assert main(words) == ExitCode.BUG  # there is no run in the folder
    assert "report       failed" in capsys.readouterr().out
    assert "| report | failed |" in (out / "nightly.md").read_text()
    assert main(words) == ExitCode.USAGE
    assert "is not empty: choose another --out folder" in capsys.readouterr().err


COUNTS = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.write_text(p.read_text() + 'x')"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let a night have the stages a, b and report, which count their runs in files of the folder."""
    folder = tmp_path / "ran"
    folder.mkdir()
    for name in ("a", "b", "report", "b.code"):
        (folder / name).write_text("")

    def counted(_: NightRequest, only: list[str] | None = None) -> list[Stage]:
        code = f"raise SystemExit(int(pathlib.Path('{folder}/b.code').read_text() or 0))"
        planned = [
            Stage(name, (*python(f"{COUNTS}; {code if name == 'b' else ''}"), str(folder / name)), 60)
            for name in ("a", "b", "report")
        ]
        planned[-1] = replace(planned[-1], last=True)
        return [stage for stage in planned if not only or stage.name in only]

    monkeypatch.setattr(night_stages, "stages", counted)
    yield folder
    monkeypatch.undo()


def test_a_night_goes_on_with_the_stages_that_have_not_come_to_their_end(
    tmp_path: Path, ran: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["nightly", "--history", str(tmp_path), "--out", str(tmp_path / "night")]
    (ran / "b.code").write_text("3")
    assert main(words) == ExitCode.MACHINE
    (ran / "b.code").write_text("0")
    assert main(words) == ExitCode.USAGE
    capsys.readouterr()
    assert main([*words, "--resume"]) == ExitCode.HOLDS
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "a held before: not run again"
    assert printed[-1].endswith("night: 3 of 3 stages held")
    assert {name: (ran / name).read_text() for name in ("a", "b", "report")} == {
        "a": "x", "b": "xx", "report": "xx",
    }  # fmt: skip
    summary = msgspec.json.decode((tmp_path / "night" / "nightly.json").read_bytes(), type=list[EndedStage])
    assert [(stage.stage, stage.outcome) for stage in summary] == [("a", HELD), ("b", HELD), ("report", HELD)]


def test_a_stage_of_a_night_that_is_run_again_leaves_the_others_as_they_are(
    tmp_path: Path, ran: Path
) -> None:
    words = ["nightly", "--history", str(tmp_path), "--out", str(tmp_path / "night")]
    (ran / "b.code").write_text("1")
    assert main(words) == ExitCode.BROKEN
    assert main([*words, "--resume", "--stage", "report"]) == ExitCode.BROKEN
    assert [(ran / name).read_text() for name in ("a", "b", "report")] == ["x", "x", "xx"]
    summary = msgspec.json.decode((tmp_path / "night" / "nightly.json").read_bytes(), type=list[EndedStage])
    assert [stage.outcome for stage in summary] == [HELD, BROKEN, HELD]


def test_a_matrix_goes_on_where_it_was_ended_and_begins_where_it_was_not(tmp_path: Path) -> None:
    request = replace(wanted(tmp_path, "cpu"), resume=True)
    (run,) = stages(request, ["run"])
    assert run.command[-2:] == ("--out", str(tmp_path / "new"))
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "run.json").write_text(ABOUT.replace("FINISHED", "null"))
    (run,) = stages(request, ["run"])
    assert run.command[-3:] == ("--out", str(tmp_path / "new"), "--resume")
    assert build_parser(run.command[3:]).parse_args(run.command[3:]).resume
    (run,) = stages(replace(request, resume=False), ["run"])
    assert "--resume" not in run.command


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--resume"], "--resume continues the night in a folder: name it with --out DIR"),
        (
            ["--resume", "--out", "nowhere"],
            "nowhere' holds no night to continue: leave --resume out to begin",
        ),
        (["--resume", "--out", "foreign"], "nightly.json' is not what a night writes: "),
    ],
)
def test_a_night_that_cannot_be_continued_is_refused(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "nightly.json").write_text("{}")
    assert main(["nightly", *words]) == ExitCode.USAGE
    assert sentence in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["foreign", "nightly.json"]


def test_the_stages_of_a_night_are_listed_and_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "selenium")
    assert main(["nightly", "--list", "--history", str(tmp_path), "--minutes", "5"]) == ExitCode.HOLDS
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert listed == [stage.name for stage in stages(replace(wanted(tmp_path, "cpu"), minutes=5.0))]
    assert "--tier ci" in lines[0]
    assert any("selenium" in line for line in lines)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("tier", NightTier)
def test_every_stage_is_in_the_documentation(tmp_path: Path, tier: NightTier) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "run.json").write_text(ABOUT.replace("FINISHED", '"t"'))
    page = {NightTier.FULL: "reference/commands/nightly.md", NightTier.GPU: "how-to/use-a-gpu.md"}[tier]
    table = (ROOT / "docs" / page).read_text().partition("| stage |")[2].partition("\n\n")[0]
    documented = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    request = replace(wanted(tmp_path, "cpu", sources=("x",)), tier=tier)
    planned = [stage.name for stage in stages(request)]
    assert all(stage.about for stage in stages(request))
    assert [name for name in documented if name in planned] == planned
    assert set(documented) - set(planned) <= {"gpu", "engine", "search"}


@pytest.mark.parametrize("code", ["0", "time.sleep(600)"], ids=["ends", "hangs"])
def test_a_stage_leaves_nothing_in_the_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    writes = "import os, pathlib, time; name = os.environ['TMPDIR']; pathlib.Path(name, 'left').touch()"
    program = f"{writes}; print(name, flush=True); {code}"
    (done,) = night(tmp_path).run([Stage("a", python(program), 5 if code == "0" else 1)])
    assert done.outcome is (HELD if code == "0" else StageOutcome.TIMED_OUT)
    assert (tmp_path / "a.log").read_text().startswith(str(tmp_path / "temporary"))
    assert not list((tmp_path / "temporary").iterdir())
    assert not (tmp_path / "ballast").exists()


def test_a_log_without_end_ends_its_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nights, "_LONGEST_FILE", 2**20)
    done = list(night(tmp_path).run([Stage("a", ("yes",), 60), stage("b")]))
    assert outcomes(done) == {"a": FAILED, "b": HELD}
    assert done[0].code == -signal.SIGXFSZ
    assert (tmp_path / "a.log").stat().st_size == 2**20


@pytest.mark.parametrize("name", ALWAYS)
def test_a_gpu_whose_driver_misbehaves_is_lost(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nights, "_USE_GPU", f"cases.selftest.workers.misbehaving:{name}")
    monkeypatch.setattr(nights, "_GPU_SECONDS", 0.5 if name == "hang_always" else 60.0)
    assert (gpu_fault() or "").startswith(ALWAYS[name])


def test_a_stage_that_a_signal_ends_has_failed(tmp_path: Path) -> None:
    (done,) = night(tmp_path).run([Stage("a", ("sh", "-c", "echo going; kill -SEGV $$"), 60)])
    assert (done.outcome, done.code, done.detail) == (FAILED, -signal.SIGSEGV, "going")


@pytest.mark.gpu
def test_the_gpu_is_there() -> None:
    assert gpu_fault() is None


def test_a_night_without_the_tests_of_the_harness_or_without_a_summary_reports_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(night_stages, "has_selftests", lambda: False)
    monkeypatch.setattr(night_stages, "stages", lambda *_: [])
    monkeypatch.setattr(
        nightly_command, "_write_summary", lambda *_: "the summary is lost: No space left on device"
    )
    monkeypatch.setattr(NightlyRun, "run", lambda *_: iter([EndedStage("a", StageOutcome.HELD, 0, 1.0, "")]))
    assert main(["nightly", "--history", str(tmp_path / "nights")]) == ExitCode.HOLDS
    first, *_, lost, last = capsys.readouterr().out.splitlines()
    assert first.startswith("the tests of the harness itself are in its checkout only")
    assert lost == "the summary is lost: No space left on device; only the lines above remain"
    assert last.startswith(str(tmp_path))


def test_a_gpu_that_cannot_be_queried_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise MachineError("no process can be started")

    monkeypatch.setattr(nights, "Worker", no_process)
    assert gpu_fault() == "cannot be used: no process can be started"
