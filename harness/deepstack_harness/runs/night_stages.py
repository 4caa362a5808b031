"""The stages of a night, by tier: `full` is everything, `gpu` is what needs a GPU.

The most valuable stages come first, because a short night has no time for the last ones. A stage of the tier
`gpu` has a rehearsal for machines without one: the same work on the CPU where that is meaningful, else a look
at its arguments and files.
"""

import os
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
from packaging.requirements import Requirement

from deepstack_harness.contract.verdicts import UNEXPECTED, Verdict
from deepstack_harness.engines.live.environment import newest_environment
from deepstack_harness.engines.live.models import MODELS
from deepstack_harness.engines.live.schedules import SHRINK_S
from deepstack_harness.errors import UsageError
from deepstack_harness.files import data
from deepstack_harness.options import finite, option
from deepstack_harness.runs.nights import Stage
from deepstack_harness.runs.records import run_files_in
from deepstack_harness.runs.store import read_about

_HOUR = 3600.0
"""Seconds."""
_WHOLE_MATRIX_MINUTES = 120.0
"""Minutes of a night from which on every case of the matrix is played: on two cores they take an hour."""
_MOST_WORKERS = 16
"""Workers on a machine with a GPU at most: each holds a CUDA context of about 0.5 GiB."""


class NightTier(StrEnum):
    """A list of stages by name."""

    FULL = "full"
    GPU = "gpu"


def default_workers(tier: NightTier) -> int:
    """Return the number of workers: two, or for a GPU the cores of its machine, 16 at most."""
    return min(len(os.sched_getaffinity(0)), _MOST_WORKERS) if tier is NightTier.GPU else 2


@dataclass(frozen=True)
class NightRequest:
    """Request for a night: the folder to write, that of earlier nights, devices, minutes of fuzzing.

    `minutes` are those of the whole night, None where its stages only have their own limits. With `rehearse`
    the stages of the tier `gpu` run without one. With `resume` runs of the matrix go on where they were
    ended.
    """

    folder: Path
    history: Path
    devices: Sequence[str] = option(
        "cpu (default), cuda (default of --tier gpu) or cuda:N; may be repeated",
        "--device",
        metavar="D",
        default=("cpu",),
    )
    fuzz_minutes: float = option(
        "minutes of fuzzing, and of a search over schedules for each model (default 30; at most a tenth "
        "of --minutes)",
        type=finite,
        default=30.0,
        metavar="M",
    )
    workers: int = option(
        "number of workers (default 2; with --tier gpu the cores of this machine, 16 at most)",
        "-n",
        metavar="W",
    )
    sources: Sequence[str] = ()
    minutes: float | None = option(
        "minutes of the whole night: the most valuable stages come first, and a stage that has no time "
        "is reported (default: each stage has a limit of its own)",
        type=finite,
        metavar="M",
        default=None,
    )
    tier: NightTier = option(
        "full (default): everything; gpu: what only a GPU can show, the most valuable first",
        metavar="T",
        default=NightTier.FULL,
    )
    rehearse: bool = option(
        "with --tier gpu on a machine without one: run what has a meaning on the CPU, and look at the "
        "arguments and files of the rest; nothing of it counts for a GPU",
        default=False,
    )
    resume: bool = option(
        "continue the night in --out DIR that was ended: stages that came to their end are not run "
        "again, but for the report; repeat the other options",
        default=False,
    )

    @property
    def hunting(self) -> float:
        """The minutes of fuzzing, and of a search for each model: at most a tenth of the night."""
        return self.fuzz_minutes if self.minutes is None else min(self.fuzz_minutes, self.minutes / 10)

    @property
    def matrix_tier(self) -> str:
        """The cases of the matrix: a short night has no time for all of them."""
        return "nightly" if self.minutes is None or self.minutes >= _WHOLE_MATRIX_MINUTES else "ci"

    @property
    def gpu(self) -> str | None:
        """The first device that is a GPU."""
        return next((device for device in self.devices if device.startswith("cuda")), None)


def stages(request: NightRequest, only: Sequence[str] = ()) -> list[Stage]:
    """Return the stages in order, all or those named; raises `UsageError` for an unknown name."""
    planned = list(_full(request) if request.tier is NightTier.FULL else _GpuStages(request).stages())
    names = [stage.name for stage in planned]
    for name in only:
        if name not in names:
            raise UsageError(f"unknown stage '{name}'; this night has {', '.join(names)}")
    chosen = [stage for stage in planned if not only or stage.name in only]
    return [replace(stage, missing=missing_requirements(stage.needs)) for stage in chosen]


def _full(request: NightRequest) -> Iterator[Stage]:
    """Yield everything: matrix, sources, tests, kernels, engines, fuzzing."""
    folder, gpu = request.folder, request.gpu is not None
    run = _run(request, request.devices)
    yield Stage(
        "run",
        run,
        10 * _HOUR,
        gpu,
        _run(request, ["cpu"]),
        share=4,
        least=30,
        about=f"the matrix of incidents and contract traces, --tier {request.matrix_tier}",
    )
    if before := _last_finished_run(request):
        compare = _harness_command("compare", before, folder, "--history", request.history)
        yield Stage("compare", compare, _HOUR, share=0.5, about=f"what changed since '{before.name}'")
    if request.sources:
        rows = folder / "audit.jsonl"
        named = [word for source in request.sources for word in ("--source", source)]
        yield Stage(
            "audit",
            _harness_command("audit", *named, "--json", rows),
            _HOUR,
            has_unexpected=lambda: has_unexpected(rows),
            least=30,
            about=f"the classes of {', '.join(request.sources)}",
        )
    newest = (sys.executable, "-m", "deepstack_harness.runs.newest")
    yield Stage(
        "newest",
        (*newest, str(folder), str(request.history)),
        2 * _HOUR,
        share=2,
        least=60,
        about="the newest release of every engine, from the package index",
    )
    tests = _tests(request, gpu=gpu), _tests(request, gpu=False)
    yield Stage(
        "tests",
        tests[0],
        8 * _HOUR,
        gpu,
        tests[1],
        where=_cases_folder(),
        needs=_names_of("test") if has_selftests() else _PYTEST,
        optional=has_selftests(),
        share=4,
        least=900,
        about="all tests of this checkout" if has_selftests() else "the product's cases, under pytest",
    )
    kernels = _harness_command("kernels", "--json", folder / "kernels.jsonl")
    yield Stage("kernels", kernels, _HOUR, least=30, about="sizes of the generated kernels of a decoder")
    yield from _engine(request)
    fuzz = ("--revision", "reference", "--arm", "inductor/drop_all", "--minutes", f"{request.hunting:g}")
    yield Stage(
        "fuzz",
        _harness_command("fuzz", *fuzz, "--out", folder / "fuzz"),
        request.hunting * 60 + _HOUR,
        least=request.hunting * 60 + 20,
        about=f"a search for faults of the reference buffer, {request.hunting:g} minutes",
    )
    if has_selftests():
        bench = (sys.executable, "-m", "tools.bench", "--json", str(folder / "bench.jsonl"))
        yield Stage(
            "bench",
            (*bench, "--history", str(request.history)),
            _HOUR,
            where=_cases_folder(),
            least=120,
            about="what the harness itself costs, against earlier nights",
        )
        yield Stage(
            "untested",
            (sys.executable, "-m", "tools.untested", str(folder / "coverage")),
            2 * _HOUR,
            where=_cases_folder(),
            needs=_names_of("test"),
            optional=True,
            least=900,
            about="lines of the harness that no test runs",
        )
    yield _report(request)


def _report(request: NightRequest) -> Stage:
    pages = ("--html", "report.html", "--markdown", "report.md", "--junit", "report.xml")
    files = [word if word.startswith("--") else request.folder / word for word in pages]
    report = _harness_command("report", request.folder, *files, "--history", request.history)
    return Stage(
        "report",
        report,
        _HOUR,
        last=True,
        needs=("junitparser", "matplotlib"),
        least=60,
        about="the page and its files, whatever happened before",
    )


_GRAPHS = ("incident=43602", "incident=replayed-clear", "incident=one-token-chunk")
_GPU_CASES = (
    "cases/selftest/compile/test_captured.py",
    "cases/selftest/compile/torch_compat/test_modes.py",
    "cases/selftest/models/test_families.py",
    "cases/selftest/runs/test_nights.py",
    "cases/test_placement.py",
)
"""Files with cases for a GPU that no other stage of the tier runs."""
_KERNEL_CASES = ("cases/test_kernels.py", "cases/test_h200_against_gpu.py")
_WATCH_CASES = ("cases/selftest/compile/test_watch_captured.py", "cases/test_specimens.py")
_ABOUT_CASES = {
    "gpu-cases": "cases for a GPU that no other stage has",
    "gpu-kernels": "kernels that were predicted or interpreted, against those that run",
    "watch": "the watch over captured graphs",
    "streams": "two real streams, with random delays",
}
_REHEARSAL = 4.0
"""Times as long as on a GPU's machine, which has many cores, a stage may take in a rehearsal."""
_SHARED_GPU = "cuda:0"
"""The GPU by its number: with `cuda` one process at a time would have it."""
_ARGUMENTS_ALONE = "only its arguments and files: without a GPU it has nothing to run"


@dataclass(frozen=True)
class _GpuStages:
    """The stages of the tier `gpu` for a request: each as it is on a GPU, or as it is rehearsed."""

    request: NightRequest

    def stages(self) -> Iterator[Stage]:
        """Yield the stages, the most valuable first."""
        folder = self.request.folder
        doctor = _harness_command("doctor", "--seconds", "40", "--json", folder / "doctor.jsonl")
        yield self._stage(
            Stage("doctor", doctor, 90, least=30, share=1.5, about="what this machine can run"),
            doctor,
            "this machine, without a GPU",
        )
        graphs = self._matrix(_GRAPHS, "nightly", _SHARED_GPU, folder)
        yield self._stage(
            Stage(
                "graphs",
                graphs,
                150,
                share=3,
                least=30,
                about="three incidents under recorded graphs, in each capture mode",
            ),
            self._matrix(_GRAPHS, "ci", "cpu", folder),
            "recorded graphs on the CPU, and Inductor's code for it",
        )
        workers = self.request.workers
        yield from self._cases("gpu-cases", _GPU_CASES, workers, seconds=150, share=2)
        yield from self._cases("gpu-kernels", _KERNEL_CASES, min(workers, 4), seconds=120, share=3)
        yield from self._cases("watch", _WATCH_CASES, 1, seconds=60, share=1)
        yield from self._cases("streams", ("cases/test_real_streams.py",), 1, seconds=90, share=1.5)
        yield self._payload()
        selection, out = ["arm=*/tp2"], folder / "ranks"
        ranks = self._matrix(selection, "nightly", "cuda", out)
        yield self._stage(
            Stage(
                "ranks",
                ranks,
                90,
                least=20,
                least_gpus=2,
                about="two ranks of tensor parallelism that meet by NCCL",
            ),
            self._matrix(selection, "ci", "cpu", out),
            "two ranks on the CPU, which meet by gloo",
        )
        yield replace(_report(self.request), seconds=120, least=45)

    def _payload(self) -> Stage:
        file = self.request.folder / "payload.jsonl"
        timed = _harness_command("kernels", "--payload-cost", "--json", file, "--target")
        on_gpu = Stage(
            "payload", (*timed, "cuda"), 180, share=3, least=30, measured=file,
            about="what a payload costs a step, at the sizes of three models",
        )  # fmt: skip
        return self._stage(on_gpu, (*timed, "cpu"), "the CPU's clock, on a tiny decoder")

    def _stage(self, on_gpu: Stage, rehearsal: tuple[str, ...], shows: str) -> Stage:
        """Return the stage for a GPU, or in its place its rehearsal, with what that `shows`."""
        if not self.request.rehearse:
            return replace(on_gpu, gpu=True)
        seconds = _REHEARSAL * on_gpu.seconds
        return replace(
            on_gpu, command=rehearsal, seconds=seconds, least_gpus=1, rehearses=f"rehearsed: {shows}"
        )

    def _matrix(self, selection: Sequence[str], tier: str, device: str, out: Path) -> tuple[str, ...]:
        return _harness_command(
            "run", *selection, "--tier", tier, "--device", device, "--cheapest-first",
            "--case-seconds", "100", "-n", str(self.request.workers), *_into(self.request, out),
        )  # fmt: skip

    def _cases(
        self, name: str, files: Sequence[str], workers: int, *, seconds: float, share: float
    ) -> Iterator[Stage]:
        """Yield a stage of pytest cases for a GPU; every ended case is a line of its log at once.

        A wheel has few of the files; without any there is no stage.
        """
        here = [file for file in files if (_cases_folder() / file).exists()]
        if not here:
            return
        words = (sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", *here)
        many = ("-n", str(workers), "--dist", "loadgroup") if workers > 1 else ()
        folder, measured = self.request.folder, self.request.folder / f"{name}.jsonl"
        results = ["--junitxml", folder / f"{name}.xml", "--measured", measured]
        results += ["--baselines-out", folder / "baselines"] if _KERNEL_CASES[0] in here else []
        device = ("--deepstack-device", "cuda", "--deepstack-require-gpu")
        command = (*words, "-v", "-rP", *many, "--timeout", "120", *map(str, results), *device)
        on_gpu = Stage(
            name, command, seconds, share=share, least=20, where=_cases_folder(), needs=_PYTEST,
            measured=measured, about=_ABOUT_CASES[name],
        )  # fmt: skip
        yield self._stage(on_gpu, (*words, "--collect-only", "-q"), _ARGUMENTS_ALONE)


def _engine(request: NightRequest) -> Iterator[Stage]:
    """Yield the real engine, all its schedules and a search for more, where a release was made to run.

    No environment is made at night: it takes minutes and 3.5 GB, and CI has none.
    """
    home = newest_environment()
    if home is None:
        return
    words = ("engine", "--source", f"vllm=={home.version}", "--json")
    engine = _harness_command(*words, request.folder / "engine.jsonl")
    yield Stage(
        "engine", engine, 2 * _HOUR, least=300, about=f"vllm {home.version} end to end, on all schedules"
    )
    # Another seed each night: a finding prints its schedule, so that the seed is not needed again.
    search = ("--search", f"{request.hunting:g}", "--seed", str(date.today().toordinal()))  # noqa: DTZ011
    longest = len(MODELS) * (request.hunting * 60 + SHRINK_S) + _HOUR
    yield Stage(
        "search",
        _harness_command(*words, request.folder / "search.jsonl", *search),
        longest,
        least=300,
        about=f"a search for schedules that break vllm {home.version}",
    )


def _harness_command(*words: str | Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "deepstack_harness", *map(str, words))


def _run(request: NightRequest, devices: Sequence[str]) -> tuple[str, ...]:
    named = [word for device in devices for word in ("--device", device)]
    order = ("--cheapest-first",) if request.minutes is not None else ()
    return _harness_command(
        "run",
        "--tier",
        request.matrix_tier,
        *named,
        *order,
        "-n",
        str(request.workers),
        *_into(request, request.folder),
    )


def _into(request: NightRequest, out: Path) -> tuple[str, ...]:
    """Return the options that write a run into a folder, or continue the one that is there."""
    begun = request.resume and any(run_files_in(out))
    return ("--out", str(out), *(("--resume",) if begun else ()))


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
    """Return whether this is a checkout; a wheel has the product's cases and not the tests of the harness."""
    return (_cases_folder() / "cases" / "selftest").is_dir()


def _last_finished_run(request: NightRequest) -> Path | None:
    """Return the last run of the history that came to its end, over all cases of the same tier.

    A night of the tier `gpu` plays only three incidents: compared with it every other case would be new.
    """
    others = sorted(request.history.iterdir()) if request.history.is_dir() else []
    for folder in reversed(others):
        files = list(run_files_in(folder)) if folder.resolve() != request.folder.resolve() else []
        abouts = [read_about(path) for path in files]
        if abouts and all(
            about.finished and about.selection is None and about.tier == request.matrix_tier
            for about in abouts
        ):
            return folder
    return None


def has_unexpected(rows: Path) -> bool:
    """Return whether a file of `--json` rows has an unexpected row; known broken rules are XFAIL.

    Rows of carriers that were not judged have no rule, and count by their verdict as well.
    """
    try:
        lines = [msgspec.json.decode(line, type=_JudgedLine) for line in rows.read_bytes().splitlines()]
    except (OSError, msgspec.MsgspecError):
        return True  # no row shows that what broke is known
    return not lines or any(line.verdict in UNEXPECTED for line in lines)


class _JudgedLine(msgspec.Struct):
    verdict: Verdict


_PYTEST = ("pytest-timeout", "pytest-xdist")
"""Plugins of pytest whose options the settings of the cases, or a stage, name."""


def missing_requirements(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return which of these distributions are not installed as `pyproject.toml` wants them, by extra."""
    missing: dict[str, tuple[str, ...]] = {}
    found: set[str] = set()
    for extra in _optional_dependencies():
        wanted = [line for line in _requirements(extra) if line.name in names and line.name not in found]
        found.update(line.name for line in wanted)
        if absent := tuple(str(line) for line in wanted if not _is_installed(line)):
            missing[extra] = absent
    return missing


def _names_of(extra: str) -> tuple[str, ...]:
    return tuple(line.name for line in _requirements(extra))


@cache
def _optional_dependencies() -> Mapping[str, Sequence[str]]:
    project = tomllib.loads(data("pyproject.toml").read_text("utf-8"))["project"]
    declared: Mapping[str, Sequence[str]] = project["optional-dependencies"]
    return declared


def _requirements(extra: str) -> Iterator[Requirement]:
    for requirement in map(Requirement, _optional_dependencies()[extra]):
        if requirement.name == "deepstack-harness":  # an extra that is made of others
            for inner in sorted(requirement.extras):
                yield from _requirements(inner)
        else:
            yield requirement


def _is_installed(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False
