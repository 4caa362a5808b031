"""Environments in the cache: made once under a lock by an installer, stamped when whole, and used again.

What goes into one is known to its owner: a release of vLLM (`deepstack_harness.engines.live.environment`), or
of torch (`deepstack_harness.runs.environments`). uv installs the packages where it is on the path, else pip,
from the same indexes.
"""

import fcntl
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from deepstack_harness.errors import MachineError
from deepstack_harness.files import write_atomically
from deepstack_harness.sources import pip_settings
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import WorkerEnd
from deepstack_harness.workers.supervised import Command, run_command

Say = Callable[[str], None]
T = TypeVar("T")

STAMP = "deepstack-harness.json"
"""The file of a whole environment: it is written last, so a folder without it is half made."""

_LIMITS = Limits(call_s=3600.0)
"""An hour: a slow index is waited for, a hang is not."""
_ERROR_LINES = 4
"""Lines of an installer's output that a message quotes: uv explains a conflict in two or three."""


@dataclass(frozen=True)
class Installer:
    """Command lines that make an environment and install into it."""

    uv: str | None

    @property
    def name(self) -> str:
        """The program's name."""
        return "uv" if self.uv else "pip"

    def make(self, folder: Path) -> Sequence[str]:
        """Return the command line that makes an empty environment."""
        if self.uv:
            return [self.uv, "venv", "--quiet", "--python", sys.executable, str(folder)]
        return [sys.executable, "-m", "venv", str(folder)]

    def install(self, folder: Path, words: Sequence[str]) -> Sequence[str]:
        """Return the command line that installs `words` into an environment."""
        python = str(python_of(folder))
        if self.uv:
            options, _ = pip_settings.read().for_uv()
            return [self.uv, "pip", "install", "--quiet", "--python", python, *options, *words]
        return [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words]

    def environment(self) -> Mapping[str, str | None]:
        """Return the variables that name the indexes; addresses may carry passwords."""
        if not self.uv:
            return clean_environment()
        _, variables = pip_settings.read().for_uv()
        return {**clean_environment(), **variables}


def find_installer() -> Installer:
    """Return uv where it is on the path, else pip."""
    return Installer(shutil.which("uv"))


def clean_environment() -> dict[str, str | None]:
    """Return the variables that would lead another interpreter to our packages, each as None."""
    return dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"))


def python_of(folder: Path) -> Path:
    """Return the interpreter of an environment."""
    return folder / "bin" / "python"


def interpreter_at(text: str) -> Path | None:
    """Return the interpreter that a path names, or that of the environment in this folder; None for neither.

    It is not resolved: a link to the interpreter of the system is what makes an environment.
    """
    path = Path(text).expanduser()
    return next((found.absolute() for found in (python_of(path), path) if found.is_file()), None)


@dataclass(frozen=True)
class EnvironmentFolder:
    """The folder of an environment in the cache, which may not exist yet.

    >>> EnvironmentFolder(Path("/nowhere")).stamp()
    {}
    """

    folder: Path

    def stamp(self) -> dict[str, Any]:
        """Return what was noted when the environment was whole; nothing for half an environment, or none."""
        try:
            noted = json.loads((self.folder / STAMP).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return noted if isinstance(noted, dict) and python_of(self.folder).exists() else {}

    def used(self) -> float:
        """Return when it was used last, in seconds of the clock."""
        with suppress(OSError):
            return (self.folder / STAMP).stat().st_mtime
        return 0.0

    def note_use(self) -> None:
        """Note that it is used now."""
        with suppress(OSError):
            (self.folder / STAMP).touch()

    def provide(
        self, find: Callable[[], T | None], fill: Callable[["NewEnvironment"], Mapping[str, object]], say: Say
    ) -> T:
        """Return what `find` returns; where that is None, make the environment by `fill` before.

        `fill` returns the stamp. Raises `MachineError` where the disk or an installer fails.
        """
        if (found := find()) is not None:
            return found
        with self._locked(say):
            if (found := find()) is None:  # else the process that held the lock has made it
                stamp = fill(NewEnvironment(self.folder, find_installer(), say))
                write_atomically(self.folder / STAMP, json.dumps(stamp, indent=1).encode())
                found = find()
        assert found is not None
        return found

    def remove(self) -> None:
        """Remove it with its log and lock, after a process that is making it."""
        with self._locked(lambda _: None):
            (self.folder / STAMP).unlink(missing_ok=True)  # first: half of it must not pass for whole
            shutil.rmtree(self.folder, ignore_errors=True)
        for kind in ("log", "lock"):
            _sibling(self.folder, kind).unlink(missing_ok=True)

    @contextmanager
    def _locked(self, say: Say) -> Iterator[None]:
        """Hold its lock; where another process makes it, report that in a line, and wait."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            lock = _sibling(self.folder, "lock").open("wb")
        except OSError as error:
            raise MachineError(f"cannot make '{self.folder.parent}': {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say(f"waiting for another process that makes {self.folder}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@dataclass(frozen=True)
class NewEnvironment:
    """An environment that is being made in its place: its scripts name the folder that it was made in."""

    folder: Path
    installer: Installer
    say: Say

    @property
    def python(self) -> str:
        """The interpreter of the environment."""
        return str(python_of(self.folder))

    def begin(self, doing: str, what: str, gigabytes: float, lines: Sequence[str]) -> None:
        """Print `lines`, and make the empty environment; `what` needs so many GB on the disk."""
        free = shutil.disk_usage(self.folder.parent).free  # the folder exists: the lock is in it
        if free < gigabytes * 1e9:
            raise MachineError(
                f"'{self.folder.parent}' has {free / 1e9:.1f} GB free, {what} needs {gigabytes:.1f} GB; "
                "DEEPSTACK_HARNESS_CACHE names another folder"
            )
        for line in lines:
            self.say(line)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.do(doing, self.installer.make(self.folder))

    def install(self, doing: str, words: Sequence[str]) -> None:
        """Install packages; raises `MachineError` with the installer's reason."""
        self.do(doing, self.installer.install(self.folder, words))

    def do(self, doing: str, words: Sequence[str]) -> None:
        """Run a command that must succeed; raises `MachineError` with the end of its output."""
        end = self.run(words)
        if end.status == 0:
            return
        # The installer's reason is what follows its first error; where it names none, the last lines.
        lines = [line.strip() for line in end.output.splitlines() if line.strip()]
        errors = [number for number, line in enumerate(lines) if "error" in line.lower()]
        reason = lines[errors[0] :][:_ERROR_LINES] if errors else lines[-_ERROR_LINES:]
        why = f"{end.reason}: {' '.join(reason)}" if reason else end.reason
        raise MachineError(f"{doing} failed: {why}; all of it: {_sibling(self.folder, 'log')}")

    def run(self, words: Sequence[str]) -> WorkerEnd:
        """Run a command with the installer's variables; its output goes to the log next to the folder."""
        log = _sibling(self.folder, "log")
        try:
            return run_command(Command(words, environment=self.installer.environment(), log=log), _LIMITS)
        except OSError as error:
            raise MachineError(f"cannot run '{words[0]}': {error.strerror}") from None


def _sibling(folder: Path, kind: str) -> Path:
    """Return a file next to a folder: `with_suffix` would take `.11` of python3.11 for a suffix."""
    return folder.with_name(f"{folder.name}.{kind}")
