"""Facts about the memory that generated kernels touch, as an interpreter of their code sees it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Span = tuple[int, int]
"""Neighbouring rows or bytes as a half-open range."""


@dataclass(frozen=True)
class KernelAccess:
    """One tensor as one launch of a kernel touched it, in bytes from the tensor's first.

    `size` is the number of bytes from the first to the last byte of the tensor that was passed, which may be
    a view of a longer one; the touched bytes are [`first`, `end`).  `unwritten` is the number of bytes that
    were read and that nothing had written.

    `launch` numbers the launches of a step from 0, `argument` is the parameter of the kernel, `shape` the
    tensor's.  `read` and `written` are rows, which are indices of the first dimension; `wild` are rows
    that would lie before or behind the tensor, and `in_storage` is False where such a row was not even in
    the storage that the tensor is a view of.  Elements are counted once, however often they were touched.
    """

    kernel: str
    tensor: str
    size: int
    first: int
    end: int
    unwritten: int = 0
    launch: int = 0
    argument: str = ""
    shape: tuple[int, ...] = ()
    itemsize: int = 1
    read: tuple[Span, ...] = ()
    written: tuple[Span, ...] = ()
    wild: tuple[Span, ...] = ()
    in_storage: bool = True
    elements_read: int = 0
    elements_written: int = 0

    @property
    def outside(self) -> int:
        """Bytes that were touched and do not belong to the tensor."""
        return max(0, -self.first) + max(0, self.end - self.size)

    @property
    def bytes(self) -> int:
        """Bytes that were read, and bytes that were written."""
        return self.itemsize * (self.elements_read + self.elements_written)

    @property
    def rows(self) -> int:
        """Rows of the tensor that were read or written, those outside of it included."""
        spans = merged((*self.read, *self.written, *self.wild))
        return sum(end - begin for begin, end in spans)


@dataclass(frozen=True)
class LibraryCall:
    """One operation that the generated code left to torch, with the bytes of its operands and its results.

    `unwritten` names operands of which some byte had never been written.
    """

    operation: str
    operands: tuple[str, ...]
    bytes: int
    unwritten: tuple[str, ...] = ()


@dataclass(frozen=True)
class Disagreement:
    """A launch whose result depends on the configuration: the kernel, an argument, the largest difference."""

    kernel: str
    argument: str
    configurations: tuple[str, str]
    difference: float


@dataclass(frozen=True)
class AccessFacts:
    """Accesses of all launches of a step, and rows < n of its output that hold what was never written.

    `calls` were left to torch.  `programs` is the number of blocks that ran, one after the other.
    `compared` launches ran with the first and with the largest configuration of autotuning; those in
    `disagreements` gave two results.
    """

    accesses: tuple[KernelAccess, ...]
    unwritten_rows: int = 0
    calls: tuple[LibraryCall, ...] = ()
    programs: int = 0
    compared: int = 0
    disagreements: tuple[Disagreement, ...] = ()

    @property
    def launches(self) -> int:
        """Launches of kernels."""
        return len({access.launch for access in self.accesses})

    @property
    def share(self) -> float:
        """Bytes of the interpreted kernels as a share of these and of what was left to torch; 0 .. 1."""
        seen = sum(access.bytes for access in self.accesses)
        return seen / max(1, seen + sum(call.bytes for call in self.calls))


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the union of ranges in their order, neighbours joined."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def rows_in_words(spans: Sequence[Span]) -> str:
    """Return `row 16` or `rows 0..16, 20..21`."""
    told = [f"{begin}" if end == begin + 1 else f"{begin}..{end - 1}" for begin, end in merged(spans)]
    return f"row{'' if len(told) == 1 and '.' not in told[0] else 's'} {', '.join(told)}"


def joined(parts: Sequence[AccessFacts]) -> AccessFacts | None:
    """Return the facts of a step that called the compiled code several times; None where it did not."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return AccessFacts(
        tuple(access for part in parts for access in part.accesses),
        sum(part.unwritten_rows for part in parts),
        tuple(call for part in parts for call in part.calls),
        sum(part.programs for part in parts),
        sum(part.compared for part in parts),
        tuple(one for part in parts for one in part.disagreements),
    )
