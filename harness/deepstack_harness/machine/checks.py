"""Looks at the machine: versions, compiler, GPUs, index, cache.  Each look is a real try."""

import importlib.metadata
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from deepstack_harness.catalogue import data_files
from deepstack_harness.engines.engine import Engine
from deepstack_harness.engines.known import ENGINES
from deepstack_harness.engines.vllm import VLLM
from deepstack_harness.workers.isolate import Ending, run_isolated

OLDEST_TORCH = (2, 10)
NEWEST_TORCH = (2, 15)
_COMPILE_SECONDS = 180
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_LIBRARIES = {
    "triton": "'kernels --target h200' is refused",
    "ray": "'run --executor ray' is refused",
    "datasets": "a run leaves JSON lines and no Parquet",
    "matplotlib": "'report --html' is refused",
    "pytest-xdist": "'pytest -n' and 'nightly' are refused",
}
"""Optional libraries, and what does not work without each."""


@dataclass(frozen=True)
class Finding:
    """One thing looked at: is it here, what was found, and can nothing run without it."""

    what: str
    here: bool
    found: str
    needed: bool = False


def examine() -> Iterator[Finding]:
    """Findings as they come, cheap ones first; the last one compiles in a child process."""
    yield Finding("python", sys.version_info >= (3, 11), sys.version.split()[0], needed=True)
    yield from (look() for look in LOOKS)


def torch_version() -> Finding:
    """Whether torch is in the range whose private APIs were read."""
    import torch

    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    known = f"read in {_dotted(OLDEST_TORCH)} .. {_dotted(NEWEST_TORCH)}"
    return Finding(
        "torch", OLDEST_TORCH <= found <= NEWEST_TORCH, f"{torch.__version__}, {known}", needed=True
    )


def gpu() -> Finding:
    """Which GPUs torch sees: without one, cases for a GPU are skipped."""
    import torch

    count = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(count))
    return Finding("gpu", count > 0, names or "none: --device cuda is refused, GPU cases are skipped")


def installed_engine(engine: Engine) -> Finding:
    """Look for an installed engine, as `--source installed:NAME` does: nothing else needs one."""
    from deepstack_harness.errors import UsageError
    from deepstack_harness.sources.installed import installed

    name = engine.package.name
    try:
        return Finding(name, here=True, found=installed(engine.package).label)
    except UsageError as error:
        return Finding(name, here=False, found=f"'--source installed:{name}' is refused: {error}")


def library(name: str, without: str) -> Finding:
    """Whether an optional library is installed, by its metadata: some cost seconds to import."""
    try:
        return Finding(name, here=True, found=importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, here=False, found=f"not installed: {without}")


def chromium() -> Finding:
    """Whether the HTML report can be tested here; it can be made and read anywhere."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser and shutil.which("chromedriver"):
        return Finding("chromium", here=True, found=f"{browser}, with chromedriver")
    lacking = "no chromedriver" if browser else f"none of {', '.join(_BROWSERS)}"
    return Finding("chromium", here=False, found=f"{lacking}: browser cases are skipped")


def package_index() -> Finding:
    """Ask the configured index for the list of vLLM's releases: without it none can be fetched."""
    from deepstack_harness.errors import HarnessError
    from deepstack_harness.sources.index import known_releases

    try:
        found = known_releases(VLLM.package)
    except HarnessError as error:
        return Finding("package index", here=False, found=str(error))
    return Finding("package index", here=True, found=f"{len(found)} releases of vLLM, newest {found[-1]}")


def cache_folder() -> Finding:
    """Whether files of releases can be kept."""
    folder = data_files.cache()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free / 2**30
    except OSError as error:
        return Finding(
            "cache", here=False, found=f"{folder}: {error.strerror}; releases are fetched every time"
        )
    return Finding("cache", here=True, found=f"{folder}, {free:.0f} GiB free")


def inductor() -> Finding:
    """Whether Inductor's CPU backend works: compiles and runs a function in a child."""
    outcome = run_isolated(
        "deepstack_harness.machine.checks:compile_something", {}, timeout_s=_COMPILE_SECONDS
    )
    if outcome.ending is Ending.RETURNED:
        return Finding("inductor on cpu", here=True, found=f"compiles, {os.cpu_count()} cores", needed=True)
    reason = outcome.detail or outcome.output.strip().splitlines()[-1]
    return Finding("inductor on cpu", here=False, found=reason.splitlines()[0], needed=True)


def compile_something() -> float:
    """Compile a small sum with Inductor; answers its result."""
    import torch

    def total(values: torch.Tensor) -> torch.Tensor:
        return (values * 2).sum()

    return float(torch.compile(total)(torch.ones(8)))


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


LOOKS: tuple[Callable[[], Finding], ...] = (
    torch_version,
    gpu,
    *(partial(installed_engine, one) for one in ENGINES),
    *(partial(library, name, without) for name, without in _LIBRARIES.items()),
    chromium,
    cache_folder,
    package_index,
    inductor,
)
