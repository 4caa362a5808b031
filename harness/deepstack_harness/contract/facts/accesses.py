"""Facts about the memory that generated kernels touch, as an interpreter of their code sees it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelAccess:
    """One tensor as one launch of a kernel touched it, in bytes from the tensor's first.

    `size` is the size of the tensor's storage; the touched bytes are [`first`, `end`).  `unwritten` is the
    number of bytes that were read and that nothing had written.
    """

    kernel: str
    tensor: str
    size: int
    first: int
    end: int
    unwritten: int = 0

    @property
    def outside(self) -> int:
        """Bytes that were touched and do not belong to the tensor."""
        return max(0, -self.first) + max(0, self.end - self.size)


@dataclass(frozen=True)
class AccessFacts:
    """Accesses of all launches of a step, and rows < n of its output that hold what was never written."""

    accesses: tuple[KernelAccess, ...]
    unwritten_rows: int = 0
