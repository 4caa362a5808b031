"""Timeouts and other limits of a worker, how each is raised, and the environment of one thread."""

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

from deepstack_harness.errors import UsageError, text_of

ONE_THREAD: Mapping[str, str] = MappingProxyType(
    {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
)
"""Every worker starts with these, before it imports torch: no call has to set torch's number of threads.

torch takes MKL's number over OpenMP's. Inductor then compiles in the worker itself, in no pool of its own.
"""

MIB = 1 << 20
"""Bytes of a MiB."""
_UNITS: Mapping[str, tuple[str, str, int]] = MappingProxyType(
    {
        "start_s": ("the start of a worker", "s", 1),
        "call_s": ("a call", "s", 1),
        "step_s": ("a step", "s", 1),
        "memory": ("private memory", "MiB", MIB),
        "output": ("printed output", "MiB", MIB),
        "open_files": ("open files", "files", 1),
        "file_size": ("one written file", "MiB", MIB),
        "processes": ("processes at a time", "processes", 1),
    }
)
"""What each limit is about, the unit in which people read and set it, and how many of ours that is."""
BY_VARIABLE: Mapping[str, str] = MappingProxyType(
    {
        "start_s": "DEEPSTACK_HARNESS_MAX_START_S",
        "call_s": "DEEPSTACK_HARNESS_MAX_CALL_S",
        "step_s": "DEEPSTACK_HARNESS_MAX_STEP_S",
        "memory": "DEEPSTACK_HARNESS_MAX_MEMORY_MIB",
        "output": "DEEPSTACK_HARNESS_MAX_OUTPUT_MIB",
        "open_files": "DEEPSTACK_HARNESS_MAX_OPEN_FILES",
        "file_size": "DEEPSTACK_HARNESS_MAX_WRITTEN_MIB",
        "processes": "DEEPSTACK_HARNESS_MAX_PROCESSES",
    }
)
"""Environment variables that replace the limits of a worker with foreign code."""
_ADVICE = "DEEPSTACK_HARNESS_WORKER_LIMITS"
SANDBOX_ADVICE = "DEEPSTACK_HARNESS_WORKER_SANDBOX"
"""Environment variable of a worker in a sandbox: what that forbids, in words."""
_BY_ERRNO = MappingProxyType({errno.EFBIG: "file_size", errno.EMFILE: "open_files"})


def from_environment(variable: str, unit: str) -> int | None:
    """Return a count that an environment variable has, or None; raise `UsageError` for one not above 0."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise UsageError(f"{variable} is '{text}', but has to be a count above 0 ({unit})")
    return int(text)


@dataclass(frozen=True)
class Limits:
    """Timeouts, memory and output of a worker; None is no limit."""

    start_s: float = 60.0
    """Timeout of the start, in seconds; the import of the preloaded module is part of it."""
    call_s: float | None = 300.0
    """Timeout of one call, in seconds."""
    step_s: float | None = None
    """Timeout of a step: seconds of a call without a phase or fact."""
    memory: int | None = None
    """Bytes of private memory (RLIMIT_DATA): heap, stacks of threads and writable private mappings.

    Shared memory and files that are mapped read-only do not count; a driver of a GPU maps far more than it
    uses, so a worker on a GPU needs None.
    """
    output: int | None = 64 * 2**20
    """Bytes that one call may print; where `step_s` is set, bytes between two phases or facts.

    A step may be charged up to 64 KiB that the next steps printed: between two pipes there is no order.
    """
    open_files: int | None = None
    """Open files of each process of the worker (RLIMIT_NOFILE)."""
    file_size: int | None = None
    """Bytes of the longest file that it may write (RLIMIT_FSIZE); a longer one is an OSError."""
    processes: int | None = None
    """Processes of the worker at a time, itself included.

    The supervisor counts them ten times a second and ends a worker that has more. RLIMIT_NPROC would not
    do: it counts all processes and threads of the user, and does not bind root.
    """
    raised_by: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The option or the environment variable that raises a limit, by field; one that has none is fixed."""

    def in_force(self) -> Self:
        """Return the limits with those replaced that an environment variable of `raised_by` sets.

        A limit that is None stays None: there are reasons not to have it. Raises `UsageError` for a value
        that is no count above 0.
        """
        changes: dict[str, Any] = {
            name: count * _UNITS[name][2]
            for name, variable in self.raised_by.items()
            if not variable.startswith("-") and getattr(self, name) is not None
            if (count := from_environment(variable, _UNITS[name][1])) is not None
        }
        return replace(self, **changes) if changes else self

    def advice(self, name: str) -> str:
        """Return which limit the field `name` is, its value, and how to raise it; "" for a fixed one."""
        value = getattr(self, name)
        if value is None or name not in self.raised_by:
            return ""
        about, unit, scale = _UNITS[name]
        return f"the limit of {about} is {value / scale:g} {unit}, {self.raised_by[name]} raises it"

    def as_environment(self) -> dict[str, str]:
        """Return the environment by which `advice_about` in the worker knows limits that show as errors."""
        advice = {name: self.advice(name) for name in _BY_ERRNO.values()}
        return {_ADVICE: json.dumps({name: text for name, text in advice.items() if text})}


def advice_about(error: BaseException) -> str:
    """Return which limit of this worker an error comes from, and how to raise it; "" for any other error.

    A permission that was denied may be the sandbox's doing. torch raises a RuntimeError for shared memory
    (`share_memory_`), whose text ends with the number of the error.
    """
    denied, text = (errno.EPERM, errno.EACCES), text_of(error)
    number = (
        error.errno
        if isinstance(error, OSError)
        else next((number for number in denied if text.endswith(f"{os.strerror(number)} ({number})")), None)
    )
    if number in denied:
        return os.environ.get(SANDBOX_ADVICE, "")
    name = _BY_ERRNO.get(number or 0)
    if name is None:
        return ""
    try:
        return str(json.loads(os.environ.get(_ADVICE, "{}")).get(name, ""))
    except (ValueError, AttributeError):  # code under test shares this environment
        return ""
