"""Facts other than those of a trace: plain data that goes to JSON and back, without torch.

`AccessFacts` is the memory that interpreted kernels touched in a step, `KernelFacts` the sizes of generated
kernels (`n` is the size of the step's hidden states, as the compiler knows it; other symbolic sizes have the
compiler's names, such as `s17`). `OrderingObservation` and `RangeObservation` are about code of an engine
near the buffer: a dual-stream projection, and the results of a placeholder range.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

Span = tuple[int, int]
"""Neighbouring rows or bytes as a half-open range."""


@dataclass(frozen=True)
class KernelAccess:
    """One tensor as one launch of a kernel touched it, in bytes from the tensor's first.

    `size` is the number of bytes from the first to the last byte of the tensor that was passed, which may be
    a view of a longer one; the touched bytes are [`first`, `end`). `unwritten` is the number of bytes that
    were read and that nothing had written.

    `launch` numbers the launches of a step from 0, `argument` is the parameter of the kernel, `shape` the
    tensor's. `read` and `written` are rows, which are indices of the first dimension; `wild` are rows that
    would be before or after the tensor, and `in_storage` is False where such a row was not even in the
    storage that the tensor is a view of. Elements are counted once, however often they were touched.
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
    def of_payload(self) -> bool:
        """Return whether the tensor is a level of the payload, which probes call `payload[LEVEL]`."""
        return self.tensor.startswith("payload[")

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
        spans = merge_spans((*self.read, *self.written, *self.wild))
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

    `calls` were left to torch. `programs` is the number of blocks that ran, one after the other.
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
        interpreted = sum(access.bytes for access in self.accesses)
        return interpreted / max(1, interpreted + sum(call.bytes for call in self.calls))


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the union of ranges in their order; those that touch are joined."""
    union: list[Span] = []
    for begin, end in sorted(spans):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((begin, end))
    return union


def rows_in_words(spans: Sequence[Span]) -> str:
    """Return `row 16` or `rows 0..16, 20..21`."""
    union = merge_spans(spans)
    ranges = [f"{begin}" if end == begin + 1 else f"{begin}..{end - 1}" for begin, end in union]
    is_one = len(union) == 1 and union[0][1] == union[0][0] + 1
    return f"{'row' if is_one else 'rows'} {', '.join(ranges)}"


def join_accesses(parts: Sequence[AccessFacts]) -> AccessFacts | None:
    """Return the facts of a step that called the compiled code several times; None where it did not."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return AccessFacts(
        tuple(access for part in parts for access in part.accesses),
        sum(part.unwritten_rows for part in parts),
        tuple(call for part in parts for call in part.calls),
        sum(part.programs for part in parts),
        sum(part.compared for part in parts),
        tuple(disagreement for part in parts for disagreement in part.disagreements),
    )


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
    opaque op. `points` are the iterations of its largest loop, those of a
    `reduction` included. `rows` are token rows: those of the tensor this loop
    writes, or the most an extern kernel was given; None where no extent of it is a
    token count. `bytes` counts each buffer once for reading and once for writing,
    and of a buffer only what is touched; `ideal_bytes` is the same if no buffer had
    more token rows than the step. `carries_tokens`: the token symbol is in the
    size. `function` is the name of a Triton kernel, `numels` its sizes by prefix
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
        """Bytes of the inputs and outputs of extern kernels, weights included."""
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


class System(StrEnum):
    """A part of an engine with rules of its own.

    DEEPSTACK is the buffer, which plays traces. The others play none. STEPS is any compiled region over a
    list of calls, which is held to promises instead of rules.
    """

    DEEPSTACK = "deepstack"
    PLACEHOLDER_RANGES = "placeholder_ranges"
    DUAL_STREAM = "dual_stream"
    STEPS = "steps"


@dataclass(frozen=True)
class SystemSubject:
    """The variant of a system, or the class or function of a source, that was observed.

    `variant` is a name of `deepstack_harness.catalogue.registry`, or the label of a source; `model_class`
    and `engine` are the class or function of that source, and its package.
    """

    system: System
    variant: str
    model_class: str | None = None
    engine: str | None = None

    @property
    def source(self) -> str | None:
        """The label of the source; None for our own variants."""
        return self.variant if self.engine else None


@dataclass(frozen=True)
class Operation:
    """One operation as it was put into a stream, numbered in the order of the host's calls.

    `reads` and `writes` name memory, which other tensors may have had before. `clock`
    has one count a stream: how many of its operations are certainly done before this
    one begins, this one included in that of its own stream.
    """

    number: int
    name: str
    stream: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    clock: tuple[int, ...]


@dataclass(frozen=True)
class Recording:
    """Several layers one after the other, over recording streams and events, in one setting.

    `early_waits` counts waits for an event that nobody had recorded, which do nothing. `equal`: whether the
    order of the host's own calls gave the result of the projections one after the other, bit for bit;
    `raised` is what was raised instead of a result.
    """

    setting: str
    streams: tuple[str, ...]
    operations: tuple[Operation, ...]
    early_waits: int
    equal: bool
    raised: str = ""


@dataclass(frozen=True)
class OpResult:
    """Layers whose projection is called through its custom op, against projections one after the other.

    `how` is `eager`, or the backend they were compiled with, in `graphs` graphs;
    `different` of `elements` are not the same bits.
    """

    how: str
    elements: int
    different: int
    graphs: int


@dataclass(frozen=True)
class Subgraphs:
    """K identical layers, cut at the op that engines cut at, compiled from cold caches.

    `pieces` were cut out, `distinct` of them differ in more than the names of their
    values and are compiled; `compiled` were, as Dynamo counts. `seconds` from the call to
    the first result.
    """

    layers: int
    pieces: int
    distinct: int
    compiled: int
    seconds: float
    backend: str


@dataclass(frozen=True)
class OnDevice:
    """Real streams with delays between: `different` of `repetitions` did not give the sequential bits.

    `first` names the delays of the first repetition that differed. `ended` is empty, or how a process without
    a result ended (it hung, or crashed); then nothing else is known. `microseconds` are those of one call
    without delays, at the sizes that the caller chose, of the variant and of the projections one after the
    other.
    """

    device: str
    repetitions: int
    different: int
    first: str = ""
    ended: str = ""
    microseconds: float = 0.0
    sequential_microseconds: float = 0.0


@dataclass(frozen=True)
class OrderingObservation:
    """The facts of one variant; what was not measured is empty.

    `where` is FILE:LINE where a helper of a source begins.
    """

    subject: SystemSubject
    recordings: tuple[Recording, ...]
    results: tuple[OpResult, ...]
    subgraphs: tuple[Subgraphs, ...]
    on_device: OnDevice | None
    torch: str
    where: str = ""


Bounds = tuple[int, int]


@dataclass(frozen=True)
class PlaceholderAnswers:
    """What one placeholder returned: `ranges` for all its ranges, in the order of `bounds_within`.

    `mask` has one `0` or `1` a position, None where the placeholder has none. A text is an exception, or
    another value than the number or the two indices that are due.
    """

    mask: str | None
    length: int
    embeds: int | str
    ranges: tuple[Bounds | str, ...]


@dataclass(frozen=True)
class RangeObservation:
    """What one class returned for every placeholder.

    `kept_as` is the type in which it stores the cumulative sum (`tensor`, `list`, `unknown`). `where` is
    FILE:LINE where a class of a source begins.
    """

    subject: SystemSubject
    kept_as: str
    placeholders: tuple[PlaceholderAnswers, ...]
    torch: str
    where: str = ""


@dataclass(frozen=True)
class Measured:
    """One figure that was measured on a machine: of what, under which conditions, and against which control.

    `unit` is that of `value` and `control`; `control` is the same without what is measured, None where there
    is none. `conditions` are texts and numbers by name, such as the tokens of a step. `detail` is a remark in
    words.
    """

    measure: str
    value: float
    unit: str
    control: float | None = None
    conditions: Mapping[str, str | int | float] = field(default_factory=dict)
    detail: str = ""

    @property
    def ratio(self) -> float | None:
        """The value for each unit of the control."""
        return self.value / self.control if self.control else None
