"""Cases and what was measured of them: plain data that goes to JSON and back.

Nothing here knows torch; dtypes and devices are their names (`float32`, `cuda:0`).
"""

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

import msgspec

from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.rules import Rule, Verdict
from deepstack_harness.contract.trace import Trace

NOT_FINITE = sys.float_info.max
"""Stands for a distance that is NaN or infinite, which JSON cannot carry."""


ENGINE = "engine"
"""The caller that does everything right."""


class Compare(StrEnum):
    """What the decoder's output is compared with at every forward.

    ALL: eager, both controls and fp64.  EAGER: eager and the zeroed payload only, for
    long workloads.  NOTHING: no decoder runs; forward and profile read and clear.
    """

    ALL = "all"
    EAGER = "eager"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Case:
    """One thing to run: (family, revision, trace, arm) and where.

    `revision` is a name of the registry or the label of an upstream source;
    `source` and `model_class` are set for upstream only.  `caller` is how the buffer
    and the decoder are driven (`deepstack_harness.catalogue.registry.CALLERS`).  `graph_budget` is the
    number of graphs the compiler may build over the whole trace.
    """

    family: str
    revision: str
    trace: Trace
    arm: ArmSpec
    dtype: str = "float32"
    device: str = "cpu"
    seed: int = 0
    graph_budget: int = 1
    compare: Compare = Compare.ALL
    source: str | None = None
    model_class: str | None = None
    caller: str = "engine"

    @property
    def subject(self) -> str:
        """Who is judged: `pr43617`, or `pr43617@micro_batches` under another caller than a correct engine."""
        return self.revision if self.caller == ENGINE else f"{self.revision}@{self.caller}"


def parse_subject(text: str) -> tuple[str, str]:
    """(revision, caller) of what `Case.subject` gives."""
    revision, _, caller = text.partition("@")
    return revision, caller or ENGINE


class Run(NamedTuple):
    """`rows` neighbouring rows of one origin.

    payload > 0: rows `row`, `row` + 1, .. of `level` of the payload with that
    number (payloads are numbered from 1 in the order of the trace's set steps).
    payload < 0: the caller's tensor of payload -k, after the caller reused it.
    0: exact zeros.  None: values that were never set.
    """

    payload: int | None
    level: int
    row: int
    rows: int


@dataclass(frozen=True)
class Answer:
    """What one get gave.

    `structure` is `none` or `tensors`; the tuples have one entry per level:
    rows as runs, hidden sizes, dtype and device names, storage addresses in bytes.
    """

    structure: Literal["none", "tensors"]
    rows: tuple[tuple[Run, ...], ...] = ()
    hidden: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    addresses: tuple[int, ...] = ()


CallName = Literal["set", "get", "clear", "resize", "decoder", "capture", "replay", "reload", "caller"]


@dataclass(frozen=True)
class Raised:
    """An exception: its type and message, which call raised it, and where (file:line)."""

    type: str
    message: str
    call: CallName
    where: str


@dataclass(frozen=True)
class Distances:
    """Largest absolute differences of one forward's output (dtype of the case).

    The references run uncompiled beside it: `eager` the same revision's own
    answer, the controls without and with a zeroed payload, and in fp64.
    `effect` is eager against zero-deepstack, `rounding` eager against fp64;
    where that was not measured, `no_deepstack` is None and `rounding` 0.
    `greedy` is the share of tokens whose greedy choice equals eager's.
    """

    eager: float
    no_deepstack: float | None
    zero_deepstack: float
    effect: float
    rounding: float
    greedy: float = 1.0


@dataclass(frozen=True)
class Shard:
    """What one rank of a sequence-parallel step saw: the payload rows given to its decoder, per level.

    `stray` is the largest difference of the rank's gathered output to the unsharded run.
    """

    rank: int
    ranks: int
    rows: tuple[tuple[Run, ...], ...]
    stray: float | None = None


@dataclass(frozen=True)
class GraphUse:
    """Storage of the buffer as a captured graph used it in one step.

    `detached`: the graph read storage that the buffer no longer answers from.
    `freed`: storages that captured graphs still use, and the buffer let go.
    `allocated`: tensors that get and clear allocated while they were captured.
    """

    detached: bool = False
    freed: int = 0
    allocated: int = 0


@dataclass(frozen=True)
class StepFacts:
    """What one step did; `capacity` and `generation` are the buffer's afterwards.

    `raised` is the call that ended the step early, `unavailable` the step that the
    buffer or the arm lacks, `graphs` counts the graphs compiled so far.  `attended`
    is the largest number of rows that an opaque attention was given; None where no
    attention says so.  `graph_use` is there for arms that capture, `shards` for
    those whose ranks share a step.
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
    shards: tuple[Shard, ...] = ()


@dataclass(frozen=True)
class GraphFacts:
    """What the compiler did over a trace: counts, and reasons in its own words.

    `guards` and `kept` count guards before and after the policy; the `payload_`
    pair counts those on the decoder's payload argument only.  `limit_hit`: Dynamo
    reached its recompile limit, where by default it falls back to eager silently.
    """

    graphs: int
    recompiles: int
    breaks: int
    limit_hit: bool
    guards: int
    kept: int
    payload_guards: int
    payload_kept: int
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observation:
    """The facts of one case.

    `vision` is False for a model without a vision tower; `routed` is True for a
    family that routes tokens to experts, where rounding may choose another expert.
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

    def to_json(self) -> bytes:
        """One line of JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes | str) -> "Observation":
        """Read what `to_json` wrote; raises `msgspec.ValidationError` otherwise."""
        return msgspec.json.decode(text, type=cls)


@dataclass(frozen=True)
class Judgement:
    """What an oracle says: a figure against a limit, not only yes or no."""

    rule: Rule
    verdict: Verdict
    value: float | None = None
    limit: float | None = None
    unit: str = ""
    detail: str = ""
