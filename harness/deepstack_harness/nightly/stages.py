"""Plan the stages of a night: tests, matrix, kernels, sources, engines, fuzzing, comparison, report."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.util import find_spec
from pathlib import Path

from deepstack_harness.catalogue.data_files import data
from deepstack_harness.contract.verdicts import UNEXPECTED
from deepstack_harness.errors import UsageError
from deepstack_harness.live_engine.environment import newest_environment
from deepstack_harness.live_engine.models.known import MODELS
from deepstack_harness.live_engine.search import SHRINK_S
from deepstack_harness.nightly.night import Stage
from deepstack_harness.results.files import found_in
from deepstack_harness.results.read import read_about, read_rows

_HOUR = 3600.0


@dataclass(frozen=True)
class NightRequest:
    """Request for a night: the folder to write, that of earlier nights, devices, minutes of fuzzing."""

    folder: Path
    history: Path
    devices: Sequence[str]
    minutes: float
    workers: int
    sources: Sequence[str] = ()

    @property
    def gpu(self) -> str | None:
        """The first device that is a GPU."""
        return next((device for device in self.devices if device.startswith("cuda")), None)


def stages(wanted: NightRequest, only: Sequence[str] = ()) -> list[Stage]:
    """Return the stages in order, all or those named; raises `UsageError` for an unknown name."""
    found = list(_every(wanted))
    names = [stage.name for stage in found]
    for name in only:
        if name not in names:
            raise UsageError(f"unknown stage '{name}'; this night has {', '.join(names)}")
    return [stage for stage in found if not only or stage.name in only]


def _every(wanted: NightRequest) -> Iterator[Stage]:
    folder, gpu = wanted.folder, wanted.gpu is not None
    yield Stage("tests", _tests(wanted, gpu=gpu), 8 * _HOUR, gpu, _tests(wanted, gpu=False), where=_cases())
    yield Stage("run", _run(wanted, wanted.devices), 10 * _HOUR, gpu, _run(wanted, ["cpu"]))
    yield Stage("kernels", _harness("kernels", "--json", folder / "kernels.jsonl"), _HOUR)
    if wanted.sources:
        rows = folder / "audit.jsonl"
        told = [word for source in wanted.sources for word in ("--source", source)]
        yield Stage("audit", _harness("audit", *told, "--json", rows), _HOUR, judged=lambda: unexpected(rows))
    newest = (sys.executable, "-m", "deepstack_harness.nightly.newest")
    yield Stage("newest", (*newest, str(folder), str(wanted.history)), 2 * _HOUR)
    yield from _engine(wanted)
    fuzz = ("--revision", "reference", "--arm", "inductor/drop_all", "--minutes", f"{wanted.minutes:g}")
    yield Stage("fuzz", _harness("fuzz", *fuzz, "--out", folder / "fuzz"), wanted.minutes * 60 + _HOUR)
    bench = (sys.executable, "-m", "deepstack_harness.bench", "--json", str(folder / "bench.jsonl"))
    yield Stage("bench", (*bench, "--history", str(wanted.history)), _HOUR)
    if has_selftests() and find_spec("coverage"):
        untested = (sys.executable, "-m", "deepstack_harness.nightly.untested", str(folder / "coverage"))
        yield Stage("untested", untested, 2 * _HOUR, where=_cases())
    if before := _before(wanted):
        compare = _harness("compare", before, folder, "--history", wanted.history)
        yield Stage("compare", compare, _HOUR)
    pages = ("--html", "report.html", "--markdown", "report.md", "--junit", "report.xml")
    files = [word if word.startswith("--") else folder / word for word in pages]
    report = _harness("report", folder, *files, "--history", wanted.history)
    yield Stage("report", report, _HOUR, last=True)


def _engine(wanted: NightRequest) -> Iterator[Stage]:
    """Yield the real engine, all its schedules and a search for more, where a release was made to run.

    No environment is made at night: it takes minutes and 3.5 GB, and CI has none.
    """
    home = newest_environment()
    if home is None:
        return
    told = ("engine", "--source", f"vllm=={home.version}", "--json")
    yield Stage("engine", _harness(*told, wanted.folder / "engine.jsonl"), 2 * _HOUR)
    # Another seed each night: a finding prints its schedule, so that the seed is not needed again.
    search = ("--search", f"{wanted.minutes:g}", "--seed", str(date.today().toordinal()))  # noqa: DTZ011
    longest = len(MODELS) * (wanted.minutes * 60 + SHRINK_S) + _HOUR
    yield Stage("search", _harness(*told, wanted.folder / "search.jsonl", *search), longest)


def _harness(*words: str | Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "deepstack_harness", *map(str, words))


def _run(wanted: NightRequest, devices: Sequence[str]) -> tuple[str, ...]:
    told = [word for device in devices for word in ("--device", device)]
    return _harness("run", "--tier", "nightly", *told, "-n", str(wanted.workers), "--out", wanted.folder)


def _tests(wanted: NightRequest, *, gpu: bool) -> tuple[str, ...]:
    """Return the command that runs every case, also slow ones, those of the network and those of a GPU."""
    told = ["-q", "-m", "", "-n", str(wanted.workers), "--dist", "loadgroup", "--timeout", "3600"]
    told += ["-p", "no:cacheprovider", "--junitxml", str(wanted.folder / "tests.xml")]
    told += ["--deepstack-profile", "nightly"]
    told += ["--deepstack-device", "cuda", "--deepstack-require-gpu"] if gpu else []
    return (sys.executable, "-m", "pytest", *told)


def _cases() -> Path:
    """Return the folder of pyproject.toml, which has the settings of the cases: checkout or wheel."""
    return data("pyproject.toml").parent


def has_selftests() -> bool:
    """Return True in a checkout; a wheel carries the product's cases and not the tests of the harness."""
    return (_cases() / "cases" / "selftest").is_dir()


def _before(wanted: NightRequest) -> Path | None:
    """Return the last run of the history that came to its end."""
    others = sorted(wanted.history.iterdir()) if wanted.history.is_dir() else []
    for folder in reversed(others):
        files = list(found_in(folder)) if folder.resolve() != wanted.folder.resolve() else []
        if files and all(read_about(one).finished for one in files):
            return folder
    return None


def unexpected(rows: Path) -> bool:
    """Return True if a file of `--json` rows has an unexpected row; known broken rules are XFAIL."""
    try:
        found = read_rows(rows)
    except UsageError:
        return True  # no row says that what broke is known
    return not found or any(row.verdict in UNEXPECTED for row in found)
