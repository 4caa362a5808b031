"""Observations: what was measured of a case, as plain data that goes to JSON and back.

Nothing here knows torch; dtypes and devices are their names (`float32`, `cuda:0`).
"""

import sys
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from deepstack_harness.contract.facts import AccessFacts
from deepstack_harness.contract.rules import PayloadKind

NOT_FINITE = sys.float_info.max
"""Stored for a distance that is NaN or infinite, which JSON cannot carry."""


class RowRange(NamedTuple):
    """`rows` neighbouring rows of one origin.

    payload > 0: rows `row`, `row` + 1, .. of `level` of the payload with that
    number (payloads are numbered from 1 in the order of the trace's set steps); of rows with equal
    content all are named after the first one.
    payload < 0: the caller's tensor of payload -k, after the caller reused it.
    0: exact zeros. None: values that were never set.
    """

    payload: int | None
    level: int
    row: int
    rows: int


RowOrigin = tuple[int | None, int, int]
"""Origin of one row: (payload, level, row), as in `RowRange`."""


@dataclass(frozen=True)
class Answer:
    """The return value of one get.

    `structure` is `none` or `tensors`; the tuples have one entry per level: rows as ranges of one origin,
    hidden sizes, dtype and device names, storage addresses in bytes, strides in elements, and whether the
    tensor requires a gradient. `container` is the type of the value itself (`tuple`), empty for None, and
    `types` has the type of each level (`Tensor`). Within a case two types have two names, though both may
    call themselves `tuple`. A value that is one tensor has no levels.
    """

    structure: Literal["none", "tensors"]
    rows: tuple[tuple[RowRange, ...], ...] = ()
    hidden: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    addresses: tuple[int, ...] = ()
    container: str = ""
    strides: tuple[tuple[int, ...], ...] = ()
    gradients: tuple[bool, ...] = ()
    types: tuple[str, ...] = ()


Rows = tuple[tuple[RowRange, ...], ...]
"""Rows of every level."""

CallName = Literal[
    "set",
    "get",
    "clear",
    "resize",
    "decoder",
    "capture",
    "replay",
    "reload",
    "caller",
    "capacity",
    "make",
]

METHODS: frozenset[CallName] = frozenset({"make", "set", "get", "clear", "resize", "capacity"})
"""Calls that run only code under test."""


@dataclass(frozen=True)
class Raised:
    """An exception: its type and message, which call raised it, and where (file:line).

    `ends` is True for what no caller expects of a method: it requested the end of the process, or the process
    was ended in it (a signal, a hang, a limit); `type` then names that. `by_compiler` is True where the
    compiler failed in code of its own: then nothing is known about the code that it was to compile.
    """

    type: str
    message: str
    call: CallName
    where: str
    ends: bool = False
    by_compiler: bool = False


@dataclass(frozen=True)
class Distances:
    """Largest absolute differences of one forward's output (dtype of the case).

    The references are uncompiled runs of the same step: `eager` with what the same revision returned, the
    controls without and with a zeroed payload, and fp64. `effect` is eager against zero-deepstack, `rounding`
    eager against fp64; where that was not measured, `no_deepstack` is None and `rounding` 0. `greedy` is the
    share of tokens whose greedy choice equals eager's. `scale` is the largest absolute value of the eager
    output. `repeated` is how far two uncompiled runs from equal state are apart. `levels` has, where it was
    measured, the distance of eager to the output with one level zeroed, level by level.
    """

    eager: float
    no_deepstack: float | None
    zero_deepstack: float
    effect: float
    rounding: float
    greedy: float = 1.0
    scale: float = 1.0
    repeated: float = 0.0
    levels: tuple[float, ...] = ()


@dataclass(frozen=True)
class StateFacts:
    """One place of a decoder's state that a step changed, or that differs between the two lanes.

    `apart` is the distance of the value that the arm left to the value that the uncompiled run left: 0 where
    they are equal, `NOT_FINITE` where they are not floating values of one shape. `scale` is the largest
    absolute value there, and `rounding` how far another rounding moves it. `played` and `eager` are the two
    values in words.
    """

    place: str
    apart: float
    scale: float
    rounding: float
    played: str
    eager: str


@dataclass(frozen=True)
class ShardFacts:
    """The view of one rank in a sequence-parallel step: the payload rows of its decoder, per level.

    `stray` is the largest difference of the rank's gathered output to the unsharded run. `owns` has the
    half-open ranges of the step's rows that the engine states for this rank; None is the contiguous
    partition, rows [rank * P / ranks, (rank + 1) * P / ranks).
    """

    rank: int
    ranks: int
    rows: Rows
    stray: float | None = None
    owns: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class GraphUse:
    """Storage of the buffer as a captured graph used it in one step.

    `detached`: the graph read storage that get no longer returns, and the generation did not change. `freed`:
    storages that captured graphs still use, and the buffer let go while its generation did not change.
    `allocated`: tensors that get and clear allocated while they were captured.
    """

    detached: bool = False
    freed: int = 0
    allocated: int = 0


@dataclass(frozen=True)
class PaddingFacts:
    """The influence of padded rows on real ones, for a payload that has rows for every token.

    The decoder ran a second time with other values in the `padded` rows after N; `changed` counts the real
    rows whose bits differ from those of the first run.
    """

    padded: int
    changed: int


@dataclass(frozen=True)
class StepFacts:
    """The facts of one step; `capacity` and `generation` are the buffer's afterwards.

    `raised` is the call that ended the step early, `unavailable` the step that the buffer or the arm does not
    have, `graphs` counts the graphs compiled so far. `attended` is the largest number of rows that an opaque
    attention was given; None where no attention counts them. `graph_use` is there for arms that capture,
    `shards` for those whose ranks share a step.

    `content` is given for a set whose rows are not all different: the origin that names the content of each
    row, which is the first row that ever had this content (equal rows are one content). `caller_changed`:
    what set changed of the tensor that it was given (bytes, shape, strides, requires_grad, version), empty
    where it changed nothing. `earlier_changed`: levels of earlier return values that this get changed, though
    no set, clear or resize came between. `failed_allocation`: whether an allocation was made to fail, as the
    step's `fail=` requests.

    `accesses` is what the kernels of the step touched, for arms whose code is interpreted. `padding` is there
    for steps of a payload that has rows for every token, where a live decoder ran over padded rows. `state`
    has the decoder's state that lives from call to call, where that is watched. `tokens` is the number of
    rows that belong to tokens, where a running engine knows it; the rows after them are padding.
    """

    step: str
    capacity: int
    generation: int | None = None
    answer: Answer | None = None
    raised: Raised | None = None
    unavailable: str | None = None
    distances: Distances | None = None
    graphs: int = 0
    attended: int | None = None
    graph_use: GraphUse | None = None
    shards: tuple[ShardFacts, ...] = ()
    content: Rows | None = None
    caller_changed: tuple[str, ...] = ()
    earlier_changed: int = 0
    failed_allocation: bool = False
    accesses: AccessFacts | None = None
    padding: PaddingFacts | None = None
    state: tuple[StateFacts, ...] = ()
    tokens: int | None = None


@dataclass(frozen=True)
class GraphCounts:
    """Graphs that a backend compiled, recompiles with Dynamo's reasons (64 at most), and graph breaks."""

    graphs: int
    recompiles: int
    breaks: int
    reasons: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class DroppedGuard:
    """A guard that the policy dropped, which failed in a later call of its graph.

    `name` is the input as a user writes it, `rule` torch's text of the guard, `where` FILE:LINE of the code
    that needed it. `then` and `now` are the input when traced and in the first call that failed. `first_call`
    counts calls of the compiled code from 1: of the decoder in a case, of a region in its steps. Where it
    does not decide (`decides`), the graph's output may be right all the same.
    """

    name: str
    rule: str
    where: str
    then: str
    now: str
    first_call: int
    calls: int
    decides: bool = True


@dataclass(frozen=True)
class DroppedKind:
    """The number of guards of one type (torch's `GuardFilterEntry.guard_type`) that the policy dropped."""

    kind: str
    number: int


@dataclass(frozen=True)
class CompiledCode:
    """What a compiler made of a trace's graphs: what another torch may make otherwise, and no rule judges.

    `dropped` has the types of the guards that the policy dropped. `kernels` are the names of the kernels and
    library calls that Inductor's code runs, graph by graph in its order, without the numbers at their ends,
    and `code_bytes` the length of that code; None for other backends. `seconds` is the processor time of
    this process in calls that built a graph, the C++ compiler not among it; None where a graph came out of a
    cache.
    """

    dropped: tuple[DroppedKind, ...] = ()
    kernels: tuple[str, ...] | None = None
    code_bytes: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class GraphFacts(GraphCounts):
    """The compiler's work over a trace.

    `guards` and `kept` count guards before and after the policy, `failed` are the dropped guards that would
    have refused a later call. `limit_hit`: Dynamo reached its recompile limit, where by default it falls back
    to eager silently.
    """

    limit_hit: bool
    guards: int
    kept: int
    failed: tuple[DroppedGuard, ...] = field(default=(), kw_only=True)
    code: CompiledCode = field(default=CompiledCode(), kw_only=True)


@dataclass(frozen=True)
class Observation:
    """The facts of one case.

    `vision` is False for a model without a vision tower; `routed` is True for a family that routes tokens to
    experts, where rounding may choose another expert. `error` is the reason why something could not be
    measured. `ended` describes how the process that played the case ended before the last step; the steps
    from there on are unavailable. `capacity` is the number of token rows that the buffer stated before the
    first step; None where there is no buffer, or it could not state one. `payload_kind` is the family's, or
    the adapter's. `tampering` describes how code under test changed the code that measures it; empty where it
    did not.
    """

    dtype: str
    device: str
    levels: int
    hidden: int
    torch: str
    steps: tuple[StepFacts, ...]
    graphs: GraphFacts | None = None
    vision: bool = True
    routed: bool = False
    error: str | None = None
    ended: str | None = None
    capacity: int | None = None
    payload_kind: PayloadKind = PayloadKind.VISUAL
    tampering: str = ""
