"""Environments to judge a torch in: made for a release from the configured index, or an interpreter named.

A made environment has one release of torch and what the harness requires, is in the cache, and is used again.
Its stamp is written last, so that half an environment is never taken for one. The harness is no package of
it: PYTHONPATH of every environment has the very code that runs here (`harness_path`), so that only torch
differs. An interpreter of the user, with a nightly torch or one that was built here, reports what it has.
"""

import hashlib
import platform
import re
import sys
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from deepstack_harness import files
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.files import data
from deepstack_harness.sources.environments import (
    EnvironmentFolder,
    NewEnvironment,
    Say,
    clean_environment,
    interpreter_at,
    python_of,
)
from deepstack_harness.sources.source import KnownPackage, nearest_releases
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.supervised import Command, run_command

TORCH = KnownPackage("torch", "PyTorch", mark="torch/_inductor", version_file="torch/version.py")
SIZE_GB = 6.0
"""Size of an environment with a torch for CUDA (2.10: 7.5, 2.12: 5.3, 2.15: 5.9)."""
_NEEDED_GB = SIZE_GB + 4
"""Room on the disk: the environment, and what the installer unpacks next to it."""
_EXTRAS = ("reports", "kernels")
_PROBE_S = 300.0
"""The first import of torch from a cold disk takes a minute."""


@dataclass(frozen=True)
class TorchHome:
    """An interpreter with a torch; `folder` is the environment that was made for it, None for another."""

    python: Path
    torch: str
    folder: Path | None = None

    def __str__(self) -> str:
        """Return the version of its torch."""
        return self.torch

    @property
    def name(self) -> str:
        """The name of its run's folder: `torch-2.15.0`, and `torch-2.16.0.dev20261120+cpu` for a nightly."""
        return f"torch-{self.torch}"

    @property
    def environment(self) -> dict[str, str | None]:
        """The variables by which a process under this interpreter finds the harness that runs here."""
        return {**clean_environment(), "PYTHONPATH": str(harness_path())}


def harness_path() -> Path:
    """Return a folder for PYTHONPATH that holds this harness and nothing else.

    The folder of an installed package holds our torch too, so a folder with only a link to the package is
    made. Raises `MachineError` where the cache cannot be written.
    """
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256(str(package).encode()).hexdigest()[:12]
    folder = _folder() / f"harness-{digest}"
    link = folder / package.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # the name has the digest of where it leads to
            link.symlink_to(package, target_is_directory=True)
    except OSError as error:
        raise MachineError(f"cannot write '{folder}': {error.strerror}") from None
    return folder


def _folder() -> Path:
    return files.cache() / "torch"


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(data("pyproject.toml").read_text("utf-8"))["project"]
    return project


def requirements() -> list[str]:
    """Return what the harness requires except torch, with what `run` can use; from `pyproject.toml`."""
    project = _project()
    optional = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in _EXTRAS for line in optional[extra])]
    return [line for line in lines if Requirement(line).name != TORCH.name]


def oldest_supported() -> str:
    """Return the oldest torch that the harness takes, from `pyproject.toml`."""
    wanted = next(line for line in map(Requirement, _project()["dependencies"]) if line.name == TORCH.name)
    return str(min(Version(bound.version) for bound in wanted.specifier))


def chosen_releases(texts: Sequence[str], releases: Sequence[Version]) -> list[Version]:
    """Return the releases that the texts name, in their order, each once.

    `2.15.0` is that release, `2.15` the newest 2.15.x, and `2.10..2.15` the newest of each 2.x in between.
    Raises `UsageError` for what is no version, and for a release that is not there, with the nearest ones.
    """
    chosen: list[Version] = []
    final = sorted({release for release in releases if not release.is_prerelease})
    for text in texts:
        low, dots, high = text.partition("..")
        first, last = _version(low, text), _version(high if dots else low, text)
        parts = len(first.release)
        if dots:
            between = [known for known in final if first.release[:2] <= known.release[:2] <= last.release[:2]]
            found = list({known.release[:2]: known for known in between}.values())
        elif first in releases and (parts > 2 or first.is_prerelease):
            found = [first]
        else:
            matching = [known for known in releases if parts < 3 and known.release[:parts] == first.release]
            found = (
                [max([known for known in matching if not known.is_prerelease] or matching)]
                if matching
                else []
            )
        if not found:
            raise UsageError(
                f"--torch '{text}': the index has no such torch; {nearest_releases(first, final)}"
            )
        chosen += found
    return list(dict.fromkeys(chosen))


def _version(text: str, whole: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(
            f"--torch '{whole}' is neither a version, such as 2.15 or 2.10..2.15, nor an interpreter: "
            "give the path of its python"
        ) from None


def is_interpreter(text: str) -> bool:
    """Return whether a text names a path, and not a version."""
    return "/" in text or text.startswith("~") or not re.match(r"[0-9v]", text)


class _Probed(msgspec.Struct):
    torch: str | None
    missing: list[str]
    error: str = ""


_PROBE = """
import importlib.metadata as metadata, json, sys
missing = []
for name in sys.argv[1:]:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        missing.append(name)
torch = error = None
try:
    import torch
    torch = metadata.version("torch")
except ModuleNotFoundError:
    pass
except Exception as raised:
    error = f"{type(raised).__name__}: {raised}".partition(chr(10))[0]
print(json.dumps({"torch": torch, "missing": missing, "error": error or ""}))
"""


def named_home(text: str) -> TorchHome:
    """Return an interpreter that the user names, or the one of an environment's folder.

    Raises `UsageError` for what is none, `MachineError` for one without torch or what the harness needs.
    """
    python = interpreter_at(text)
    if python is None:
        raise UsageError(f"--torch '{text}' is no interpreter, and no folder with bin/python")
    probed = _probe(python)
    if probed.error:
        raise MachineError(f"torch cannot be imported by '{python}': {probed.error}")
    if probed.torch is None:
        raise MachineError(f"'{python}' has no torch")
    if probed.missing:
        raise MachineError(
            f"packages are missing that the harness needs: {python} -m pip install {' '.join(probed.missing)}"
        )
    return TorchHome(python, probed.torch)


def _probe(python: Path) -> _Probed:
    names = [Requirement(line).name for line in requirements()]
    command = [str(python), "-c", _PROBE, *names]
    try:
        end = run_command(
            Command(command, environment=clean_environment(), stderr=False), Limits(call_s=_PROBE_S)
        )
    except OSError as error:
        raise MachineError(f"cannot run '{python}': {error.strerror}") from None
    try:
        return msgspec.json.decode(end.output.strip().rpartition("\n")[2].encode(), type=_Probed)
    except msgspec.MsgspecError:
        raise MachineError(f"'{python}' is no Python that runs: {end.reason}") from None


def folder_for(release: Version) -> Path:
    """Return the folder of a release's environment for this Python, which may not exist yet."""
    return _folder() / f"torch-{release}-python{sys.version_info.major}.{sys.version_info.minor}"


def made_home(release: Version) -> TorchHome | None:
    """Return the whole environment of a release; None where there is none, or one of other requirements."""
    folder = folder_for(release)
    stamp = EnvironmentFolder(folder).stamp()
    whole = stamp.get("requirements") == requirements()
    return TorchHome(python_of(folder), stamp["torch"], folder) if whole else None


def made_homes() -> list[TorchHome]:
    """Return the whole environments for any Python, the one that was used last first."""
    found = [EnvironmentFolder(folder) for folder in sorted(_folder().glob("torch-*-python*"))]
    whole = [(folder, stamp["torch"]) for folder in found if "torch" in (stamp := folder.stamp())]
    whole.sort(key=lambda pair: -pair[0].used())
    return [TorchHome(python_of(made.folder), torch, made.folder) for made, torch in whole]


def keep_newest(number: int) -> list[Path]:
    """Remove all made environments but the `number` that were used last; return the folders that are gone."""
    gone = [home.folder for home in made_homes()[number:] if home.folder is not None]
    for folder in gone:
        EnvironmentFolder(folder).remove()
    return gone


def make_home(release: Version, say: Say) -> TorchHome:
    """Return the environment of a release, made where it is not there, which is first reported in a line.

    Raises `MachineError` where the disk has no room, or an installer fails, with the end of its output.
    """
    environment = EnvironmentFolder(folder_for(release))
    home = environment.provide(partial(made_home, release), partial(_fill, release), say)
    environment.note_use()
    return home


def _fill(release: Version, making: NewEnvironment) -> dict[str, object]:
    """Make an environment; return its stamp."""
    line = (
        f"making an environment for torch {release} with {making.installer.name}, "
        f"Python {platform.python_version()}: up to {SIZE_GB:g} GB on the disk and 3 GB to fetch, 1 to "
        f"10 minutes; it stays in {making.folder}, --keep 0 removes it"
    )
    wanted, of_torch = requirements(), f"for torch {release}"
    making.begin(
        f"making the environment {of_torch}", f"an environment with torch {release}", _NEEDED_GB, [line]
    )
    constraints: list[str] = []
    with suppress(UsageError):  # what the harness was tried with; a wheel has no such file
        constraints = ["-c", str(data("constraints-any-torch.txt"))]
    making.install(f"the installation {of_torch}", [f"{TORCH.name}=={release}", *wanted, *constraints])
    (site,) = making.folder.glob("lib/python3*/site-packages")
    # For people who start this interpreter themselves; our processes get PYTHONPATH.
    (site / "deepstack_harness.pth").write_text(f"{harness_path()}\n", "utf-8")
    return {"torch": named_home(making.python).torch, "requirements": wanted}
