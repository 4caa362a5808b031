"""Sandbox profiles: permissions of a worker that runs code under test, and the switch that turns them off.

Whoever runs code of a source or of a user gives its worker a profile: `profile_of` and `profile_for` return
the strictest one that fits the code, its arm and its device. `sandbox` enforces it in the worker.
"""

import logging
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from deepstack_harness.contract.arm import Backend
from deepstack_harness.contract.case import BufferKind, Case
from deepstack_harness.errors import MachineError
from deepstack_harness.workers.limits import BY_VARIABLE, SANDBOX_ADVICE, Limits
from deepstack_harness.workers.sandbox import remove_folder

NO_SANDBOX = "DEEPSTACK_HARNESS_NO_SANDBOX"
"""Environment variable that turns every sandbox off, as `--no-sandbox` does; workers inherit it."""
_TURNS_OFF = f"--no-sandbox or {NO_SANDBOX}=1 turns it off"
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Environment variables that name a cache of compilers."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class SandboxProfile:
    """Permissions of a worker; with any profile it may read every file, and write to a folder of its own.

    `network` "loopback" is a network of its own that holds the worker and its children. `caches` lets it
    write to the caches that its environment names. Other runs execute code from such a cache: where none is
    named, it compiles into its own folder. `devices` are patterns of files in /dev that it may open for
    writing.
    """

    name: str
    network: Literal["none", "loopback", "any"] = "none"
    processes: bool = False
    caches: bool = False
    devices: tuple[str, ...] = ()

    @property
    def advice(self) -> str:
        """What the sandbox forbids, and how to turn it off, for an error that may come from it."""
        refused = {
            "shared memory": "/dev/shm" not in self.devices,
            "network": self.network == "none",
            "new process": not self.processes,
        }
        forbidden = [f"no {name}" for name, is_refused in refused.items() if is_refused]
        return f"the sandbox allows {', '.join([*forbidden, 'no writes outside its folder'])}; {_TURNS_OFF}"


CONTRACT = SandboxProfile("contract")
"""Methods of a buffer, called step by step without a compiler: no network and no new process."""
COMPILE = SandboxProfile("compile", processes=True, caches=True)
"""Code that Inductor or Triton compiles: they start compilers, which write to caches. No network."""
OWN_CLASS = SandboxProfile("own class", processes=True, caches=True, devices=("/dev/shm",))
"""A buffer class that the user names, which may share memory with processes of its own. No network."""
RANKS = SandboxProfile("ranks", network="loopback", processes=True, caches=True, devices=("/dev/shm",))
"""Several ranks, started by one worker: they meet over a loopback device."""
CUDA = SandboxProfile(
    "cuda", network="any", processes=True, caches=True,
    devices=("/dev/shm", "/dev/nvidia*", "/dev/dri", "/dev/infiniband", str(Path("~/.nv").expanduser())),
)  # fmt: skip
"""Code on a GPU, the weakest one: the driver needs its devices, shared memory, and sockets for NCCL."""


def is_switched_off() -> bool:
    """Return whether sandboxes are turned off for this process and its children."""
    return os.environ.get(NO_SANDBOX, "") not in ("", "0")


@contextmanager
def switched_off(*, off: bool = True) -> Iterator[None]:
    """Turn every sandbox off for a while, if `off`; else leave the switch as it is."""
    before = os.environ.get(NO_SANDBOX)
    if off:
        os.environ[NO_SANDBOX] = "1"
    try:
        yield
    finally:
        if off:
            os.environ.pop(NO_SANDBOX) if before is None else os.environ.__setitem__(NO_SANDBOX, before)


@dataclass(frozen=True)
class InForce:
    """Parts of a sandbox that a worker has entered, and those that its system does not offer."""

    in_force: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Return whether all restrictions of the profile are in force."""
        return bool(self.in_force) and not self.missing


class Confinement:
    """The sandbox of one worker: its rules, its environment, and its own folder, which ends with it."""

    def __init__(self, profile: SandboxProfile, environment: Mapping[str, str | None]) -> None:
        """Make the folder; raises `OSError` where that is impossible."""
        self.folder = tempfile.mkdtemp(prefix="deepstack-worker-")
        merged = {**os.environ, **environment}
        named = {name: merged.get(name) for name in CACHES}
        own = {name: f"{self.folder}/{name.lower()}" for name, path in named.items() if not path}
        shared = [path for path in named.values() if path and profile.caches]
        for path in shared:  # a rule about a folder that does not exist yet is not possible
            Path(path).mkdir(parents=True, exist_ok=True)
        self.environment: dict[str, str | None] = {
            **environment,
            **own,
            "TMPDIR": self.folder,
            SANDBOX_ADVICE: profile.advice,
        }
        self.rules = {
            "writable": [
                self.folder,
                *shared,
                *(str(path) for pattern in profile.devices for path in Path("/").glob(pattern.lstrip("/"))),
            ],
            "network": profile.network,
            "processes": profile.processes,
            "attributes": profile.processes,  # a linker makes what it writes executable
        }

    def close(self) -> None:
        """Remove the folder, where the supervisor of the worker could not."""
        remove_folder(self.folder)


def confine(profile: SandboxProfile, environment: Mapping[str, str | None]) -> Confinement:
    """Return the confinement of a new worker; raises `MachineError` where its folder cannot be made."""
    try:
        return Confinement(profile, environment)
    except OSError as error:
        raise MachineError(f"no folder can be made for a worker: {error}") from None


def parts_in_force(report: Mapping[str, Any]) -> InForce:
    """Return the parts of a worker's sandbox from its report; warn once in this process of missing ones."""
    parts = InForce(tuple(report.get("in_force", ())), tuple(report.get("missing", ())))
    with _LOCK:
        if parts.missing and not _WARNED:
            _WARNED.append(parts)
            _LOG.warning(
                "this system offers no complete sandbox for code under test (%s); its limits of time, memory "
                "and output still hold, and --no-sandbox turns off this warning with the sandbox",
                "; ".join(parts.missing),
            )
    return parts


_WARNED: list[InForce] = []
_LOCK = threading.Lock()


FOREIGN_LIMITS = Limits(
    start_s=300.0, call_s=300.0, memory=8 * 2**30, open_files=1024, file_size=2**30, processes=256,
    raised_by=BY_VARIABLE,
)  # fmt: skip
"""Limits of every worker with foreign code on the CPU; a driver of a GPU maps more memory than this."""
CONTRACT_LIMITS = replace(FOREIGN_LIMITS, call_s=None, step_s=30.0)
"""Limits where nothing is compiled: a call of a method takes microseconds, unless it hangs."""
COMPILE_LIMITS = replace(FOREIGN_LIMITS, call_s=None, step_s=300.0)
"""Limits where a decoder is compiled, which takes seconds on an idle machine."""


def profile_of(case: Case) -> SandboxProfile | None:
    """Return the strictest profile in which a case can be played; None for a buffer of ours."""
    if case.buffer.kind not in (BufferKind.SOURCE, BufferKind.USER):
        return None
    # A user's class is imported, and what it imports may start processes: triton runs ldconfig.
    within = OWN_CLASS if case.buffer.kind is BufferKind.USER else COMPILE
    within = within if within is OWN_CLASS or case.arm.backend is not Backend.NONE else CONTRACT
    return profile_for(case.device, ranks=case.arm.ranks, within=within)


def profile_for(device: str, *, ranks: int = 1, within: SandboxProfile = OWN_CLASS) -> SandboxProfile:
    """Return the strictest profile for a device and a number of ranks: `within`, where one CPU is enough."""
    if device.partition(":")[0] != "cpu":
        return CUDA
    return RANKS if ranks > 1 else within
