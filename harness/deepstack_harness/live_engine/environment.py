"""Make the environment of an engine once, and use it again: locked, stamped, checked."""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from deepstack_harness.atomic import write_atomically
from deepstack_harness.errors import MachineError
from deepstack_harness.live_engine.installer import Installer, find_installer, python_of
from deepstack_harness.live_engine.plan import (
    SIZE_GB,
    EnvironmentPlan,
    folder_for,
    plan_environment,
    planned_versions,
)
from deepstack_harness.workers.command import Command, run_command
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Exited, WorkerEnd

Say = Callable[[str], None]

STAMP = "deepstack-harness.json"
"""The file of a whole environment: it is written last, so a folder without it is half made."""

_LIMITS = Limits(call_s=3600.0)
"""An hour: a slow index is waited for, a hang is not."""
_NEEDED = int((SIZE_GB + 1.5) * 1e9)
"""Bytes on the disk: the environment, and what the installer unpacks beside it."""

_ERROR_LINES = 4
"""Lines of an installer's output that a message quotes: uv explains a conflict in two or three."""

# torchvision from an index without CPU builds is one for CUDA: its library does not load, so its operators
# have no schema, and `import torchvision` fails at the first one.  No model of ours calls them.
_SHIM = """import torch as _torch  # deepstack-harness: declares operators that a CPU torch lacks

_operators = _torch.library.Library("torchvision", "DEF")
_operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
# deepstack-harness: end
"""
_SHIM_END = "# deepstack-harness: end\n"


@dataclass(frozen=True)
class EngineHome:
    """An interpreter that has an engine; `version` is None where nobody has asked it yet."""

    python: Path
    label: str
    version: Version | None = None


def made_environment(version: Version) -> EngineHome | None:
    """Return the environment of a release that is whole; None where there is none."""
    folder = folder_for(version)
    try:
        stamp = json.loads((folder / STAMP).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    whole = stamp.get("version") == str(version) and python_of(folder).exists()
    return EngineHome(python_of(folder), f"vllm {version}", version) if whole else None


def newest_environment() -> EngineHome | None:
    """Return the whole environment of the newest release for this Python; None where none was made."""
    found = [made_environment(version) for version in planned_versions()]
    whole = [home for home in found if home is not None and home.version is not None]
    return max(whole, key=lambda home: home.version or Version("0"), default=None)


def make_environment(version: Version, say: Say) -> EngineHome:
    """Return the environment of a release, made where it is not there; `say` is told before it starts.

    Raises `UsageError` for a release without a CPU build, and `MachineError` where the index, the disk or
    an installer fails, with the end of its output.
    """
    found = made_environment(version)
    if found is not None:
        return found
    plan = plan_environment(version)
    with _locked(plan.folder, say):
        found = made_environment(version)  # the process that held the lock has made it
        return found or _Making(plan, find_installer(), say).run()


class _Making:
    """One environment that is being made."""

    def __init__(self, plan: EnvironmentPlan, installer: Installer, say: Say) -> None:
        self._plan, self._installer, self._say = plan, installer, say
        self._python = python_of(plan.folder)

    def run(self) -> EngineHome:
        """Make it in its place: the scripts of an environment name the folder that it was made in."""
        plan, installer = self._plan, self._installer
        _check_room(plan.folder)
        self._say(f"making the environment of {plan.unchecked[0]} with {installer.name}")
        for line in plan.lines():
            self._say(line)
        shutil.rmtree(plan.folder, ignore_errors=True)
        self._do("the empty environment", installer.make(plan.folder))
        self._say(f"installing {plan.torch} and {len(plan.checked) - 1} more requirements")
        self._do("the installation of what it requires", installer.install(plan.folder, plan.checked))
        self._say(f"installing {' '.join(plan.unchecked)}")
        words = ["--no-deps", *plan.unchecked]
        self._do(f"the installation of {plan.unchecked[0]}", installer.install(plan.folder, words))
        self._make_torchvision_importable()
        self._do("the import of vllm", [str(self._python), "-c", "import torchvision, vllm"])
        return self._stamped()

    def _make_torchvision_importable(self) -> None:
        """Make its import work where its library does not load: declare its operators."""
        if self._end_of([str(self._python), "-c", "import torchvision"]) == 0:
            return
        (init,) = self._plan.folder.glob("lib/python3*/site-packages/torchvision/__init__.py")
        init.write_text(shimmed(init.read_text("utf-8")), "utf-8")

    def _stamped(self) -> EngineHome:
        plan = self._plan
        stamp = {"version": str(plan.version), "installer": self._installer.name,
                 "checked": plan.checked, "unchecked": plan.unchecked}  # fmt: skip
        write_atomically(plan.folder / STAMP, json.dumps(stamp, indent=1).encode())
        return EngineHome(self._python, f"vllm {plan.version}", plan.version)

    def _do(self, doing: str, words: Sequence[str]) -> None:
        end = self._run(words)
        if end != Exited(status=0, output=end.output):
            raise MachineError(
                f"{doing} of {self._plan.unchecked[0]} failed: {end.reason}{_last_error(end.output)}; "
                f"all of it: {self._log}"
            )

    def _end_of(self, words: Sequence[str]) -> int | None:
        end = self._run(words)
        return end.status if isinstance(end, Exited) else None

    def _run(self, words: Sequence[str]) -> WorkerEnd:
        try:
            return run_command(
                Command(words, environment=self._installer.environment(), log=self._log), _LIMITS
            )
        except OSError as error:
            raise MachineError(f"cannot run '{words[0]}': {error.strerror}") from None

    @property
    def _log(self) -> Path:
        """The output of the last command."""
        return beside(self._plan.folder, "log")


def shimmed(text: str) -> str:
    """Return the source of torchvision's `__init__` with its operators declared, once however often."""
    return _SHIM + text.partition(_SHIM_END)[2] if _SHIM_END in text else _SHIM + text


def _check_room(folder: Path) -> None:
    free = shutil.disk_usage(folder.parent).free  # the lock lies there already
    if free < _NEEDED:
        raise MachineError(
            f"'{folder.parent}' has {free / 1e9:.1f} GB free, an engine's environment needs "
            f"{_NEEDED / 1e9:.1f} GB; DEEPSTACK_HARNESS_CACHE names another folder"
        )


@contextmanager
def _locked(folder: Path, say: Say) -> Iterator[None]:
    """Hold the lock of an environment; wait, and say so, where another process makes it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = beside(folder, "lock").open("wb")
    except OSError as error:
        raise MachineError(f"cannot make '{folder.parent}': {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say(f"waiting for another process that makes {folder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _last_error(output: str) -> str:
    """Return what an installer says is wrong: from its first error on, the last lines where it names none."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if "error" in line.lower()]
    told = lines[errors[0] :][:_ERROR_LINES] if errors else lines[-_ERROR_LINES:]
    return f": {' '.join(told)}" if told else ""


def beside(folder: Path, kind: str) -> Path:
    """Return a file beside a folder: `with_suffix` would take `.11` of python3.11 for a suffix."""
    return folder.with_name(f"{folder.name}.{kind}")
