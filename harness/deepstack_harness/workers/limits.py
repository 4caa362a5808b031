"""Limits of a worker, and the environment that gives it one thread."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

ONE_THREAD: Mapping[str, str] = MappingProxyType(
    {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
)
"""Every worker starts with these.  Inductor then compiles in the worker itself, in no pool of its own."""


@dataclass(frozen=True)
class Limits:
    """Time, memory and output that a worker may use; None is no limit."""

    start_s: float = 60.0
    """Seconds until the worker is ready; the import of its preloaded module is part of it."""
    call_s: float | None = 300.0
    """Seconds for one call."""
    step_s: float | None = None
    """Seconds of a call without a phase or fact."""
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

    The supervisor counts them ten times a second and ends a worker that has more.  RLIMIT_NPROC would not
    do: it counts all processes and threads of the user, and does not bind root.
    """
