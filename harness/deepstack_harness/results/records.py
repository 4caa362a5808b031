"""Records of a run's files: a case, and what is said of the run as a whole; rows are in `contract.row`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import msgspec

from deepstack_harness.contract.buffer_ref import BufferRef
from deepstack_harness.contract.observation import Distances
from deepstack_harness.contract.row import SCHEMA_VERSION
from deepstack_harness.contract.rules import Rule
from deepstack_harness.errors import UsageError
from deepstack_harness.machine.environment import Environment

T = TypeVar("T")


class CaseEnding(StrEnum):
    """The way in which a case ended."""

    PLAYED = "played"
    RECOMPILE_LIMIT = "recompile limit"
    RAISED = "raised"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"

    @property
    def is_whole(self) -> bool:
        """Say whether the trace came to its end, so that its process may play another case."""
        return self in {CaseEnding.PLAYED, CaseEnding.RECOMPILE_LIMIT}


@dataclass(frozen=True)
class StepRecord:
    """One step: rows asked for, rows that attention processed (None: not seen), graphs built until then."""

    step: str
    asked: int | None
    processed: int | None
    graphs: int
    raised: str | None


@dataclass(frozen=True)
class CaseRecord:
    """One case as it ended; `seconds` of wall time, `rows` is the number of its judgements.

    `expected` has the rules that the catalogue wants broken.  `distances`: those of the whole case, see
    `deepstack_harness.oracles.distances.case_distances`.  `output` is the end of what a process printed
    that did not answer as it should.
    """

    case: str
    group: str
    incident: str | None
    ending: CaseEnding
    seconds: float
    family: str
    subject: str
    buffer: BufferRef
    trace: str
    arm: str
    device: str
    dtype: str
    expected: tuple[Rule, ...] | None
    distances: Distances | None
    graphs: int | None
    recompiles: int | None
    graph_budget: int
    steps: tuple[StepRecord, ...]
    diagnosis: str | None
    script: str | None
    note: str
    output: str
    rows: int
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Planning:
    """The number of groups and cases that a run, or its shard, is to play."""

    groups: int
    cases: int


@dataclass(frozen=True)
class About:
    """`run.json`; times are ISO 8601 in UTC, `finished` is None until the run came to its end.

    `plan` tells two plans apart: a run is resumed with the plan it was started with.
    """

    harness: str
    started: str
    finished: str | None
    command: tuple[str, ...]
    selection: str | None
    tier: str
    shard: str | None
    environment: Environment
    planned: Planning
    plan: str
    schema_version: int = SCHEMA_VERSION


class _Version(msgspec.Struct):
    schema_version: int


def decode(text: bytes, kind: type[T], where: str) -> T:
    """Decode one object of a run's file.

    Raises `UsageError` that names `where` for a corrupt or foreign object, and for one of another version.
    """
    try:
        refuse_version(msgspec.json.decode(text, type=_Version).schema_version, where)
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{where} is not what a run writes: {error}") from None


def refuse_version(version: object, where: str) -> None:
    """Raise `UsageError` that names `where` for another schema version than ours."""
    if version != SCHEMA_VERSION:
        raise UsageError(f"{where} has schema_version {version}, this harness reads {SCHEMA_VERSION}")
