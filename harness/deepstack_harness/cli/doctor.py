"""`doctor`: what this machine can run, and why it cannot run the rest.

Each check tries the real thing: it imports torch, compiles with Inductor, queries the package index, writes
to the cache, and tries to leave the sandbox for code under test.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from packaging.version import Version

from deepstack_harness import files
from deepstack_harness.catalogue.versions import (
    VERSIONS,
    TorchVersion,
    installed_version,
    minor,
    pythons,
    torch_entry,
)
from deepstack_harness.cli.output import progress
from deepstack_harness.document.blocks import Column, Document, Line, outcome, table_line
from deepstack_harness.engines.engine import KnownEngine
from deepstack_harness.engines.kinds.vllm import VLLM
from deepstack_harness.engines.known import all_engines
from deepstack_harness.errors import ExitCode, UsageError, torch_problem
from deepstack_harness.options import finite
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, EndKind, is_end
from deepstack_harness.workers.profiles import CONTRACT, is_switched_off
from deepstack_harness.workers.remote import Remote
from deepstack_harness.workers.worker import Worker

_COLUMNS = (Column(width=16), Column(width=3), Column())
_HERE = {True: "yes", False: "no", None: "?"}


def add_arguments(parser: ArgumentParser) -> None:
    """Add what is looked for beyond this machine, and the limit of the longest check."""
    parser.add_argument(
        "--engines", action="store_true", help="also look for installed engines ('--source installed:NAME')"
    )
    parser.add_argument(
        "--seconds",
        type=finite,
        default=20.0,
        metavar="S",
        help="longest time that Inductor may take to compile a sum (default 20)",
    )


def run(args: Namespace) -> Document[ExitCode]:
    """Exit 0 when `repro 43602` can run here on the CPU, 3 when what it needs is missing, or is not known."""
    if args.seconds <= 0:
        raise UsageError(f"--seconds {args.seconds:g} must be above 0")
    missing, not_known = [], []
    for finding in _examine(args.seconds, engines=args.engines):
        yield table_line(
            _COLUMNS, [finding.what, _HERE[finding.here], finding.found], "" if finding.here else "yellow"
        )
        yield finding
        if finding.needed and finding.here is False:
            missing.append(finding.what)
        elif finding.needed and finding.here is None:
            not_known.append(finding.what)
    if missing:
        yield outcome(f"cannot run 'repro 43602': {', '.join(missing)} missing", good=False)
        return ExitCode.MACHINE
    if not_known:
        yield Line("try again:", command=f"deepstack-harness doctor --seconds {_longer(args.seconds):g}")
        names = ", ".join(not_known)
        yield outcome(f"not known whether 'repro 43602' can run: no reply from {names}", good=False)
        return ExitCode.MACHINE
    yield outcome("can run 'repro 43602' on the CPU", good=True)
    return ExitCode.HOLDS


_ATTEMPTS = Remote(f"{__name__}:leave", list[str])
WITHOUT_SANDBOX = "code of a source, at its import and in its methods, can write files and use the network"


def sandbox_found() -> tuple[bool | None, str]:
    """Return True where a sandbox is whole, None where that is not known, and what it has."""
    if is_switched_off():
        return False, f"turned off: {WITHOUT_SANDBOX}"
    with tempfile.TemporaryDirectory() as outside, Worker(sandbox=CONTRACT) as worker:
        left = worker.call(_ATTEMPTS, {"outside": outside})
        enforced = worker.in_force
    if not isinstance(left, Answered):
        return None if is_end(left, EndKind.TIMED_OUT) else False, left.sentence
    parts = ", ".join(enforced.in_force) or "none"
    if enforced.missing or left.value:
        lacking = "; ".join([*enforced.missing, *(f"it could {attempt}" for attempt in left.value)])
        return False, f"{parts}; missing: {lacking}"
    return True, parts


def leave(outside: str) -> list[str]:
    """Return the attempts to reach outside that succeeded; for a worker."""
    done = []
    with suppress(OSError):
        Path(outside, "file").touch()
        done.append("write outside its folder")
    with suppress(OSError), socket.create_server(("127.0.0.1", 0)):
        done.append("use the network")
    with suppress(OSError):
        os.kill(os.getppid(), 0)
        done.append("send signals")
    return done


_COMPILE = Remote("deepstack_harness.cli.doctor:compile_something", float)
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_LIBRARIES = {
    "ray": "'run --executor ray' is refused",
    "pandas": "results as frames are refused",
    "datasets": "a run leaves JSON lines and no Parquet",
    "matplotlib": "'report --html' is refused",
    "junitparser": "'report --junit' is refused",
    "pyarrow": "'repro --workload' is refused",
    "pytest-xdist": "'pytest -n' and 'nightly' are refused",
}
"""Optional libraries, and what does not work without each."""


@dataclass(frozen=True)
class MachineCheck:
    """Result of one check: whether the thing is here, what was found, and whether everything needs it.

    `here` is None where the check did not end in time: nothing is known to be missing then.
    """

    what: str
    here: bool | None
    found: str
    needed: bool = False


def _examine(seconds: float, *, engines: bool) -> Iterator[MachineCheck]:
    """Yield each result as soon as it is known, cheap checks first; the last one compiles in a worker."""
    yield python_version()
    installed = all_engines() if engines else ()
    of_engines = [(engine.package.name, partial(installed_engine, engine)) for engine in installed]
    checks: list[Check] = [*CHECKS, *of_engines, ("inductor on cpu", partial(inductor, seconds))]
    with progress(f"looking for {checks[0][0]}") as say:
        for name, check in checks:
            say(f"looking for {name}")
            yield check()


def python_version() -> MachineCheck:
    """Check that Python is one with which a torch was run; a newer one is reported, and hinders nothing."""
    version, known = platform.python_version(), pythons()
    if minor(version) in known:
        return MachineCheck("python", here=True, found=version)
    needed = Version(version) < Version(known[0])
    return MachineCheck("python", False, f"{version}, never run; {known[0]} .. {known[-1]} were", needed)


def torch_version() -> MachineCheck:
    """Check that torch is one that was run, and report what was seen of it on this Python."""
    problem = _torch_problem()
    if problem:
        return MachineCheck("torch", here=False, found=problem, needed=True)
    import torch

    entry = torch_entry(torch.__version__)
    if entry is None:
        known = VERSIONS.entries
        found = f"{torch.__version__}, never run; {known[0].torch} .. {known[-1].torch} were"
        return MachineCheck("torch", here=False, found=found, needed=True)
    return MachineCheck("torch", True, f"{torch.__version__}, {_seen(entry)}", needed=True)


def _seen(entry: TorchVersion) -> str:
    """Return the results of this torch on this Python, or on which others it was run."""
    python = platform.python_version()
    run = entry.run_on(python)
    if run is None:
        others = ", ".join(sorted({other.python_minor for other in entry.runs}, key=Version))
        return f"never run on Python {minor(python)}{f', but on {others}' if others else ' or another'}"
    reasons = f": {'; '.join(run.red)}" if run.red else ""
    return f"{run.suite.cases} on Python {run.python_minor}: {run.answer}{reasons}"


def dropped_guards() -> MachineCheck:
    """Check that torch has the private names with which its dropped guards are watched."""
    if _torch_problem():
        return MachineCheck("dropped guards", here=False, found="torch is needed to look for its names")
    from deepstack_harness.compile.torch_compat.guards import missing_names

    if lacks := missing_names():
        found = f"torch has no {', '.join(lacks)}: 'watch' is refused, no dropped guard is named"
        return MachineCheck("dropped guards", here=False, found=found)
    return MachineCheck("dropped guards", here=True, found="torch has the private names that 'watch' needs")


def gpu() -> MachineCheck:
    """Name the GPUs that torch sees: without one, cases for a GPU are skipped."""
    if _torch_problem():
        return MachineCheck("gpu", here=False, found="unknown: torch is needed to look for one")
    import torch

    count = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(count))
    return MachineCheck("gpu", count > 0, names or "none: --device cuda is refused, GPU cases are skipped")


def _torch_problem() -> str | None:
    """Return why torch cannot be imported, with the line that installs it."""
    try:
        import torch  # noqa: F401  # a broken torch raises here
    except Exception as error:
        problem = torch_problem(error)
        if problem is None:
            raise
        return problem
    return None


def installed_engine(engine: KnownEngine) -> MachineCheck:
    """Look for an installed engine, as `--source installed:NAME` does: nothing else needs one."""
    from deepstack_harness.sources.tree import installed

    name = engine.package.name
    try:
        return MachineCheck(name, here=True, found=installed(engine.package).label)
    except UsageError as error:
        return MachineCheck(name, here=False, found=f"'--source installed:{name}' is refused: {error}")


def library(name: str, without: str) -> MachineCheck:
    """Check that an optional library is installed, by its metadata: some take seconds to import."""
    found = installed_version(name)
    return MachineCheck(name, here=found is not None, found=found or f"not installed: {without}")


def triton() -> MachineCheck:
    """Check that torch and triton are a pair that generates and interprets code for an H200.

    It checks what `kernels --target h200`, `--execute` and the h200 arm need; any triton is not enough.
    """
    from deepstack_harness.compile.torch_compat.targets import check_support, unchecked, why_not

    if problem := why_not(check_support):
        return MachineCheck("triton", here=False, found=f"'kernels --target h200' is refused: {problem}")
    version = importlib.metadata.version("triton")
    if doubt := unchecked():
        return MachineCheck("triton", here=True, found=f"{version}; {doubt}")
    return MachineCheck("triton", here=True, found=version)


def chromium() -> MachineCheck:
    """Check that the HTML report can be tested here; writing and reading it needs no browser."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser and shutil.which("chromedriver"):
        return MachineCheck("chromium", here=True, found=f"{browser}, with chromedriver")
    lacking = "no chromedriver" if browser else f"none of {', '.join(_BROWSERS)}"
    return MachineCheck("chromium", here=False, found=f"{lacking}: browser cases are skipped")


def package_index() -> MachineCheck:
    """Check that releases can be fetched: query the configured index for the list of vLLM's releases."""
    from deepstack_harness.errors import HarnessError
    from deepstack_harness.sources.index import known_releases

    try:
        releases = known_releases(VLLM.package)
    except HarnessError as error:
        return MachineCheck("package index", here=False, found=str(error))
    return MachineCheck(
        "package index", here=True, found=f"{len(releases)} releases of vLLM, newest {releases[-1]}"
    )


def cache_folder() -> MachineCheck:
    """Check that files of releases can be cached."""
    folder = files.cache()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free / 2**30
    except OSError as error:
        return MachineCheck(
            "cache", here=False, found=f"{folder}: {error.strerror}; releases are fetched by every command"
        )
    return MachineCheck("cache", here=True, found=f"{folder}, {free:.0f} GiB free")


def sandbox() -> MachineCheck:
    """Check that code under test is shut off from files, network and processes."""
    whole, parts = sandbox_found()
    return MachineCheck("sandbox", here=whole, found=parts)


def inductor(seconds: float) -> MachineCheck:
    """Check that Inductor's CPU backend works: compile and run a function in a worker, within a limit."""
    if _torch_problem():
        return MachineCheck("inductor on cpu", here=False, found="torch is needed to compile", needed=True)
    with Worker(Limits(call_s=seconds)) as worker:
        result = worker.call(_COMPILE)
    if isinstance(result, Answered):
        return MachineCheck(
            "inductor on cpu", here=True, found=f"compiles, {os.cpu_count()} cores", needed=True
        )
    found = result.sentence.partition("\n")[0]
    if is_end(result, EndKind.TIMED_OUT):
        again = f"'doctor --seconds {_longer(seconds):g}' waits longer"
        found = f"not known, the machine may be busy: {found}; {again}"
        return MachineCheck("inductor on cpu", here=None, found=found, needed=True)
    return MachineCheck("inductor on cpu", here=False, found=found, needed=True)


def _longer(seconds: float) -> float:
    """Return the seconds for another try, after a check that took more than `seconds`."""
    return max(60.0, 4 * seconds)


def compile_something() -> float:
    """Compile a small sum with Inductor and return its result; for a worker."""
    import torch

    def total(values: torch.Tensor) -> torch.Tensor:
        return (values * 2).sum()

    return float(torch.compile(total)(torch.ones(8)))


Check: TypeAlias = tuple[str, Callable[[], MachineCheck]]

CHECKS: tuple[Check, ...] = (
    ("torch", torch_version),
    ("a GPU", gpu),
    ("triton", triton),
    ("dropped guards", dropped_guards),
    *((name, partial(library, name, without)) for name, without in _LIBRARIES.items()),
    ("a sandbox", sandbox),
    ("chromium", chromium),
    ("the cache", cache_folder),
    ("the package index", package_index),
)
