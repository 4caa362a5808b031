"""A night: tests, matrix, kernels, sources, engines, fuzzing, comparison and report, as stages.

Each stage is a command in a process of its own, and they run one after the other.  A stage that fails, a GPU
that is lost or a full disk does not end the night: the report is made last, and names what could not be run.
"""

import shutil
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import msgspec
from packaging.requirements import Requirement

from deepstack_harness.contract.verdicts import UNEXPECTED, Verdict
from deepstack_harness.engines.live.environment import newest_environment
from deepstack_harness.engines.live.models import MODELS
from deepstack_harness.engines.live.schedules import SHRINK_S
from deepstack_harness.errors import ExitCode, MachineError, UsageError
from deepstack_harness.files import data
from deepstack_harness.runs.records import run_files_in
from deepstack_harness.runs.store import read_about
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, Exited, Signalled, TimedOut, WorkerEnd
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.supervised import Command, run_command
from deepstack_harness.workers.warm import WarmWorker

_USE_GPU = Remote("deepstack_harness.runs.nights:use_gpu", float)
_HOUR = 3600.0
_WHOLE_MATRIX_MINUTES = 120.0
"""Minutes of a night from which on every case of the matrix is played: on two cores they take an hour."""
_GPU_SECONDS = 180.0
_LEAST_FREE = 2**29
"""Bytes that must be free on the disk for a stage to be started."""
_BALLAST = 2**25
"""Bytes of a file that is removed before the last stages: then a report fits on a disk that is full."""
_LONGEST_FILE = 2**31
"""Bytes of the longest file that a stage may write: a log without end must not fill the disk."""
_LONGEST_DETAIL = 2000
_LONGEST_CELL = 300


class StageOutcome(StrEnum):
    """Outcome of a stage; FAILED: it was to judge and could not; NOT_RUN: it was not started."""

    HELD = "held"
    BROKEN = "broken"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Stage:
    """A command, its time limit in seconds, whether it needs the GPU, and the folder that it runs in.

    `without_gpu` is the command to run instead where the GPU is lost; without it the stage is not run.
    `has_unexpected` is called where the command exits with "broken", and returns False if all that is broken
    is known.  A `last` stage runs whatever happened before.  `extras` are those of our package that it needs.
    Where the whole night has a limit, a stage gets a part of what is left by its `share`, and is not started
    with less than `least` seconds.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    gpu: bool = False
    without_gpu: tuple[str, ...] = ()
    where: Path | None = None
    has_unexpected: Callable[[], bool] | None = None
    last: bool = False
    extras: tuple[str, ...] = ()
    share: float = 1.0
    least: float = 10.0


@dataclass(frozen=True)
class EndedStage:
    """A stage that is over: `code` is its exit status (negative: a signal), `detail` why it is not HELD."""

    stage: str
    outcome: StageOutcome
    code: int | None = None
    seconds: float = 0.0
    detail: str = ""

    @property
    def in_short(self) -> str:
        """The name of the stage and its outcome."""
        return f"{self.stage} {self.outcome}"

    @property
    def held(self) -> bool:
        """True if there is nothing to tell of it."""
        return self.outcome is StageOutcome.HELD

    @property
    def why(self) -> str:
        """The last lines of the detail: as many as are short together, and at least one."""
        lines = self.detail.splitlines()
        while len(lines) > 1 and sum(map(len, lines)) > _LONGEST_CELL:
            del lines[0]
        return "\n".join(lines)


@dataclass
class NightlyRun:
    """Runner of stages in a folder; it calls `gpu_fault` and `free` repeatedly, as their answers change.

    `seconds` is the limit of the whole night by `clock`, None for a night whose stages have their own limits
    alone.
    """

    folder: Path
    gpu_fault: Callable[[], str | None]
    free: Callable[[Path], int] = field(default=lambda folder: shutil.disk_usage(folder).free)
    lost: str | None = None
    """Why no stage for the GPU is started any more."""
    seconds: float | None = None
    clock: Callable[[], float] = time.monotonic

    def run(self, stages: Sequence[Stage]) -> Iterator[EndedStage]:
        """Yield every stage as it ends; `KeyboardInterrupt` ends the stage that runs, and the night."""
        end = None if self.seconds is None else self.clock() + self.seconds
        with suppress(OSError):  # the disk is full then, and every stage says so
            (self.folder / "ballast").write_bytes(bytes(_BALLAST))
        if any(stage.gpu for stage in stages):
            yield self._check_gpu()
        for number, stage in enumerate(stages):
            if stage.last:
                (self.folder / "ballast").unlink(missing_ok=True)
            limit = stage.seconds if end is None else _limit(stages[number:], end - self.clock())
            why = None if stage.last else self._why_not_started(stage, limit)
            yield EndedStage(stage.name, StageOutcome.NOT_RUN, detail=why) if why else self._run(stage, limit)

    def _check_gpu(self) -> EndedStage:
        started = time.monotonic()
        self.lost = self.gpu_fault()
        outcome = StageOutcome.FAILED if self.lost else StageOutcome.HELD
        return EndedStage("gpu", outcome, seconds=time.monotonic() - started, detail=self.lost or "")

    def _why_not_started(self, stage: Stage, limit: float) -> str | None:
        if limit < min(stage.least, stage.seconds):
            left = f"{max(limit, 0):.0f} s of the night are left for it"
            return f"no time: it needs at least {stage.least:g} s, and {left}"
        if stage.gpu and self.lost and not stage.without_gpu:
            return f"the GPU is lost: {self.lost}"
        free = self.free(self.folder)
        return f"the disk is full: {free >> 20} MiB are left" if free < _LEAST_FREE else None

    def _run(self, stage: Stage, limit: float) -> EndedStage:
        started = time.monotonic()
        try:
            outcome, code, detail = self._call(stage, limit)
        except (OSError, MachineError) as error:  # no room for its log, no memory for its process
            why = error.strerror if isinstance(error, OSError) else error
            outcome, code, detail = StageOutcome.FAILED, None, f"could not be started: {why}"
        ended = EndedStage(stage.name, outcome, code, time.monotonic() - started, detail)
        return self._with_gpu_checked(stage, ended)

    def _call(self, stage: Stage, limit: float) -> tuple[StageOutcome, int | None, str]:
        words = stage.without_gpu if stage.gpu and self.lost else stage.command
        command = Command(words, folder=stage.where, log=self.folder / f"{stage.name}.log")
        end = run_command(command, Limits(call_s=limit, file_size=_LONGEST_FILE))
        printed = end.output[-_LONGEST_DETAIL:].strip() or "it printed nothing"
        if isinstance(end, TimedOut):
            part = ", its part of the night" if limit < stage.seconds else ""
            return StageOutcome.TIMED_OUT, None, f"no end within {limit:.0f} s{part}: {printed}"
        code = _exit_status(end)
        outcome = _outcome(stage, code)
        return outcome, code, "" if outcome is StageOutcome.HELD else printed

    def _with_gpu_checked(self, stage: Stage, ended: EndedStage) -> EndedStage:
        """Check the GPU after a stage for it that did not hold."""
        if not stage.gpu or self.lost or ended.held:
            return ended
        self.lost = self.gpu_fault()
        return replace(ended, detail=f"the GPU is lost: {self.lost}; {ended.detail}") if self.lost else ended


def _limit(stages: Sequence[Stage], left: float) -> float:
    """Return the seconds of the first of the stages that are left, of `left` seconds.

    What the last stages need is kept back for them.  Stages that could not be started anyway have no share.
    """
    stage, *_ = stages
    if stage.last:
        return min(stage.seconds, max(left, stage.least))
    usable = left - sum(each.least for each in stages if each.last)
    shares = [each.share for each in stages if not each.last and each.least <= usable]
    part = usable * stage.share / sum(shares) if shares else usable
    return min(stage.seconds, usable, max(part, stage.least))


def missing_extras(stages: Sequence[Stage]) -> dict[str, list[str]]:
    """Return the requirements of extras that stages need and that are not installed, by extra."""
    declared = tomllib.loads(data("pyproject.toml").read_text())["project"]["optional-dependencies"]
    extras = sorted({extra for stage in stages for extra in stage.extras})
    missing = {
        extra: [str(each) for each in _requirements(declared, extra) if not _is_installed(each)]
        for extra in extras
    }
    return {extra: names for extra, names in missing.items() if names}


def _requirements(declared: Mapping[str, Sequence[str]], extra: str) -> Iterator[Requirement]:
    for requirement in map(Requirement, declared[extra]):
        if requirement.name == "deepstack-harness":  # an extra that is made of others
            for inner in sorted(requirement.extras):
                yield from _requirements(declared, inner)
        else:
            yield requirement


def _is_installed(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


def exit_code(ended: Sequence[EndedStage]) -> ExitCode:
    """Return the exit code of a night: BROKEN before MACHINE, and MACHINE before BUG."""
    outcomes = {stage.outcome for stage in ended}
    failed = {stage.code for stage in ended if stage.outcome is StageOutcome.FAILED}
    if StageOutcome.BROKEN in outcomes:
        return ExitCode.BROKEN
    if outcomes & {StageOutcome.TIMED_OUT, StageOutcome.NOT_RUN} or failed & {None, ExitCode.MACHINE}:
        return ExitCode.MACHINE
    return ExitCode.BUG if StageOutcome.FAILED in outcomes else ExitCode.HOLDS


def write_summary(folder: Path, ended: Sequence[EndedStage]) -> None:
    """Write `nightly.json` and `nightly.md`; raises `OSError`."""
    (folder / "nightly.json").write_bytes(msgspec.json.format(msgspec.json.encode(ended), indent=2))
    lines = ["| stage | ended | seconds | why |", "|---|---|---|---|"]
    lines += [
        f"| {stage.stage} | {stage.outcome} | {stage.seconds:.0f} | {_markdown_cell(stage.why)} |"
        for stage in ended
    ]
    (folder / "nightly.md").write_text("\n".join(["## Night", "", *lines, ""]))


def gpu_fault() -> str | None:
    """Return why CUDA cannot be used, None where it can; a fresh worker has met no earlier CUDA error."""
    try:
        with WarmWorker(Limits(call_s=_GPU_SECONDS)) as worker:
            result = worker.call(_USE_GPU)
    except MachineError as error:
        return f"cannot be asked: {error}"
    return None if isinstance(result, Answered) else result.sentence


def use_gpu() -> float:
    """Multiply on the GPU; raises where that is impossible.  For a worker."""
    import torch

    ones = torch.ones(64, 64, device="cuda")
    torch.cuda.synchronize()
    return float((ones @ ones).sum())


def _exit_status(end: WorkerEnd) -> int:
    match end:
        case Exited(status=status):
            return status
        case Signalled(number=number):
            return -number
    raise TypeError(f"a stage without limits ended as {type(end).__name__}")


def _outcome(stage: Stage, code: int) -> StageOutcome:
    if code == ExitCode.BROKEN and stage.has_unexpected is not None:
        return StageOutcome.BROKEN if stage.has_unexpected() else StageOutcome.HELD
    return {0: StageOutcome.HELD, 1: StageOutcome.BROKEN}.get(code, StageOutcome.FAILED)


def _markdown_cell(text: str) -> str:
    """Return the text on one line, without characters that mean something in a Markdown table."""
    line = " ".join(text.split())[-_LONGEST_DETAIL:]
    return line.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


@dataclass(frozen=True)
class NightRequest:
    """Request for a night: the folder to write, that of earlier nights, devices, minutes of fuzzing.

    `minutes` are those of the whole night, None where its stages have their own limits alone.
    """

    folder: Path
    history: Path
    devices: Sequence[str]
    fuzz_minutes: float
    workers: int
    sources: Sequence[str] = ()
    minutes: float | None = None

    @property
    def hunting(self) -> float:
        """The minutes of fuzzing, and of a search for each model: at most a tenth of the night."""
        return self.fuzz_minutes if self.minutes is None else min(self.fuzz_minutes, self.minutes / 10)

    @property
    def tier(self) -> str:
        """The cases of the matrix: a short night has no time for all of them."""
        return "nightly" if self.minutes is None or self.minutes >= _WHOLE_MATRIX_MINUTES else "ci"

    @property
    def gpu(self) -> str | None:
        """The first device that is a GPU."""
        return next((device for device in self.devices if device.startswith("cuda")), None)


def stages(request: NightRequest, only: Sequence[str] = ()) -> list[Stage]:
    """Return the stages in order, all or those named; raises `UsageError` for an unknown name."""
    planned = list(_all_stages(request))
    names = [stage.name for stage in planned]
    for name in only:
        if name not in names:
            raise UsageError(f"unknown stage '{name}'; this night has {', '.join(names)}")
    return [stage for stage in planned if not only or stage.name in only]


def _all_stages(request: NightRequest) -> Iterator[Stage]:
    """Yield all stages, the most valuable first: what a short night has no time for comes last."""
    folder, gpu = request.folder, request.gpu is not None
    run = _run(request, request.devices)
    yield Stage("run", run, 10 * _HOUR, gpu, _run(request, ["cpu"]), share=4, least=30)
    if before := _last_finished_run(request):
        compare = _harness_command("compare", before, folder, "--history", request.history)
        yield Stage("compare", compare, _HOUR, extras=("reports",), share=0.5)
    if request.sources:
        rows = folder / "audit.jsonl"
        named = [word for source in request.sources for word in ("--source", source)]
        yield Stage(
            "audit",
            _harness_command("audit", *named, "--json", rows),
            _HOUR,
            has_unexpected=lambda: has_unexpected(rows),
            least=30,
        )
    newest = (sys.executable, "-m", "deepstack_harness.runs.newest")
    yield Stage("newest", (*newest, str(folder), str(request.history)), 2 * _HOUR, share=2, least=60)
    tests = _tests(request, gpu=gpu), _tests(request, gpu=False)
    yield Stage(
        "tests",
        tests[0],
        8 * _HOUR,
        gpu,
        tests[1],
        where=_cases_folder(),
        extras=("test",),
        share=4,
        least=900,
    )
    yield Stage("kernels", _harness_command("kernels", "--json", folder / "kernels.jsonl"), _HOUR, least=30)
    yield from _engine(request)
    fuzz = ("--revision", "reference", "--arm", "inductor/drop_all", "--minutes", f"{request.hunting:g}")
    yield Stage(
        "fuzz",
        _harness_command("fuzz", *fuzz, "--out", folder / "fuzz"),
        request.hunting * 60 + _HOUR,
        least=request.hunting * 60 + 20,
    )
    if has_selftests():
        bench = (sys.executable, "-m", "tools.bench", "--json", str(folder / "bench.jsonl"))
        yield Stage(
            "bench", (*bench, "--history", str(request.history)), _HOUR, where=_cases_folder(), least=120
        )
    if has_selftests() and find_spec("coverage"):
        untested = (sys.executable, "-m", "tools.untested", str(folder / "coverage"))
        yield Stage("untested", untested, 2 * _HOUR, where=_cases_folder(), extras=("test",), least=900)
    pages = ("--html", "report.html", "--markdown", "report.md", "--junit", "report.xml")
    files = [word if word.startswith("--") else folder / word for word in pages]
    report = _harness_command("report", folder, *files, "--history", request.history)
    yield Stage("report", report, _HOUR, last=True, extras=("reports",), least=60)


def _engine(request: NightRequest) -> Iterator[Stage]:
    """Yield the real engine, all its schedules and a search for more, where a release was made to run.

    No environment is made at night: it takes minutes and 3.5 GB, and CI has none.
    """
    home = newest_environment()
    if home is None:
        return
    words = ("engine", "--source", f"vllm=={home.version}", "--json")
    yield Stage("engine", _harness_command(*words, request.folder / "engine.jsonl"), 2 * _HOUR, least=300)
    # Another seed each night: a finding prints its schedule, so that the seed is not needed again.
    search = ("--search", f"{request.hunting:g}", "--seed", str(date.today().toordinal()))  # noqa: DTZ011
    longest = len(MODELS) * (request.hunting * 60 + SHRINK_S) + _HOUR
    yield Stage(
        "search", _harness_command(*words, request.folder / "search.jsonl", *search), longest, least=300
    )


def _harness_command(*words: str | Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "deepstack_harness", *map(str, words))


def _run(request: NightRequest, devices: Sequence[str]) -> tuple[str, ...]:
    named = [word for device in devices for word in ("--device", device)]
    order = ("--cheapest-first",) if request.minutes is not None else ()
    return _harness_command(
        "run", "--tier", request.tier, *named, *order, "-n", str(request.workers), "--out", request.folder
    )


def _tests(request: NightRequest, *, gpu: bool) -> tuple[str, ...]:
    """Return the command that runs every case, also slow ones, those of the network and those of a GPU."""
    words = ["-q", "-m", "", "-n", str(request.workers), "--dist", "loadgroup", "--timeout", "3600"]
    words += ["-p", "no:cacheprovider", "--junitxml", str(request.folder / "tests.xml")]
    words += ["--deepstack-profile", "nightly"]
    words += ["--deepstack-device", "cuda", "--deepstack-require-gpu"] if gpu else []
    return (sys.executable, "-m", "pytest", *words)


def _cases_folder() -> Path:
    """Return the folder of pyproject.toml, which has the settings of the cases: checkout or wheel."""
    return data("pyproject.toml").parent


def has_selftests() -> bool:
    """Return True in a checkout; a wheel carries the product's cases and not the tests of the harness."""
    return (_cases_folder() / "cases" / "selftest").is_dir()


def _last_finished_run(request: NightRequest) -> Path | None:
    """Return the last run of the history that came to its end, of the same tier: others have other cases."""
    others = sorted(request.history.iterdir()) if request.history.is_dir() else []
    for folder in reversed(others):
        files = list(run_files_in(folder)) if folder.resolve() != request.folder.resolve() else []
        abouts = [read_about(each) for each in files]
        if abouts and all(about.finished and about.tier == request.tier for about in abouts):
            return folder
    return None


def has_unexpected(rows: Path) -> bool:
    """Return True if a file of `--json` rows has an unexpected row; known broken rules are XFAIL.

    Rows of carriers that were not judged have no rule, and count by their verdict as well.
    """
    try:
        lines = [msgspec.json.decode(line, type=_JudgedLine) for line in rows.read_bytes().splitlines()]
    except (OSError, msgspec.MsgspecError):
        return True  # no row says that what broke is known
    return not lines or any(line.verdict in UNEXPECTED for line in lines)


class _JudgedLine(msgspec.Struct):
    verdict: Verdict
