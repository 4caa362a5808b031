"""What was measured of generated kernels: plain data that goes to JSON and back.  No torch.

In symbolic sizes `n` stands for the size of the step's hidden states, as the
compiler knows it; other sizes keep the compiler's names (`s17`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["generated", "template", "extern"]
TOKENS = "n"
"""The token symbol in symbolic sizes."""


@dataclass(frozen=True)
class Candidate:
    """One configuration that autotuning may choose for a Triton kernel, compiled for its target.

    `config` is as Triton writes it, `grid` in blocks, `registers` for each thread,
    `spills` and `shared` in bytes (spills: stores and loads of local memory, for each
    thread).
    """

    config: str
    grid: tuple[int, int, int]
    registers: int
    spills: int
    shared: int


@dataclass(frozen=True)
class Kernel:
    """One kernel of one call, with the symbols bound as the compiled callable was called.

    `kind`: `generated` by Inductor, from a `template`, or `extern`: a library's, or an
    opaque op.  `points` are the iterations of its largest loop, those of a
    `reduction` included.  `rows` are token rows: those of the tensor this loop
    writes, or the most an extern kernel was given; None where no extent of it is a
    token count.  `bytes` counts each buffer once for reading and once for writing,
    and of a buffer only what is touched; `ideal_bytes` is the same if no buffer had
    more token rows than the step.  `carries_tokens`: the token symbol is in the
    size.  `function` is the name of a Triton kernel, `numels` its sizes by prefix
    (`x`, `r0_`), `grid` what it was launched with on a real GPU.
    """

    graph: int
    kernel: str
    kind: Kind
    points: int | None
    symbolic_points: str | None
    reduction: int | None
    symbolic_reduction: str | None
    rows: int | None
    symbolic_rows: str | None
    bytes: int
    ideal_bytes: int
    carries_tokens: bool
    function: str | None = None
    numels: Mapping[str, int] = field(default_factory=dict)
    grid: tuple[int, int, int] | None = None
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class GraphCall:
    """One call of one compiled graph; `symbols` are bound as in this call.

    `symbolic`: the token count is a symbol of this graph, else it was compiled in.
    """

    graph: int
    symbolic: bool
    symbols: Mapping[str, int]
    kernels: tuple[Kernel, ...]

    @property
    def generated(self) -> tuple[Kernel, ...]:
        """Kernels whose code came from the compiler: all but the extern ones."""
        return tuple(kernel for kernel in self.kernels if kernel.kind != "extern")

    @property
    def extern(self) -> tuple[Kernel, ...]:
        """Kernels of libraries, and opaque ops."""
        return tuple(kernel for kernel in self.kernels if kernel.kind == "extern")

    @property
    def largest(self) -> Kernel:
        """The generated kernel with the most points; the first of equals."""
        return max(self.generated, key=lambda kernel: kernel.points or 0)

    @property
    def points(self) -> int:
        """Points of all generated kernels."""
        return sum(kernel.points or 0 for kernel in self.generated)

    @property
    def bytes(self) -> int:
        """Bytes that the generated kernels move."""
        return sum(kernel.bytes for kernel in self.generated)

    @property
    def ideal_bytes(self) -> int:
        """Bytes that they would move if no buffer had more token rows than the step."""
        return sum(kernel.ideal_bytes for kernel in self.generated)

    @property
    def extern_bytes(self) -> int:
        """Bytes of what extern kernels are given and give, weights included."""
        return sum(kernel.bytes for kernel in self.extern)

    @property
    def rows(self) -> int:
        """The most token rows that any kernel processed."""
        return max((kernel.rows or 0 for kernel in self.kernels), default=0)


@dataclass(frozen=True)
class KernelFacts:
    """Every call of every compiled graph while a probe watched, in order; `graphs` were lowered."""

    graphs: int
    calls: tuple[GraphCall, ...]
