"""What a run's files hold: one judgement, one case, and what is said of the run as a whole."""

from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from deepstack_harness.catalogue.matrix import Planned
from deepstack_harness.contract.case import Distances, Judgement
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule, Verdict
from deepstack_harness.errors import UsageError
from deepstack_harness.machine.environment import Environment

SCHEMA_VERSION = 1
T = TypeVar("T")


@dataclass(frozen=True)
class RunRow(Row):
    """A judgement, its case, and whether the catalogue wants the rule broken (None: it says nothing).

    A failure that is wanted is XFAIL, and one that is wanted and missing is IMPROVED.
    """

    case: str = ""
    expected: bool | None = None

    @classmethod
    def judged(
        cls, planned: Planned, said: Judgement, torch: str, incident: str | None, case: str
    ) -> "RunRow":
        """The row of one judgement, against what the plan says."""
        expected = None if planned.must_break is None else said.rule in planned.must_break
        row = Row.of(planned.case, said, torch, incident)
        fields = {name: getattr(row, name) for name in Row.__dataclass_fields__}
        fields["verdict"] = against(said.verdict, expected=bool(expected))
        return cls(**fields, case=case, expected=expected)


def against(verdict: Verdict, *, expected: bool) -> Verdict:
    """A verdict, seen beside an expected failure."""
    if not expected:
        return verdict
    improved = Verdict.IMPROVED
    return {Verdict.FAIL: Verdict.XFAIL, Verdict.PASS: improved, Verdict.SKIP: improved}.get(verdict, verdict)


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
    """One case as it ended; `seconds` of wall time, `rows` judgements.

    `distances`: `eager` of the worst step, the rest of the worst that a payload takes part in.
    `ending` is `played`, `recompile limit`, `raised`, `crashed`, `timed out` or `out of memory`.
    `output` is the end of what a process printed that did not answer as it should.
    """

    case: str
    group: str
    incident: str | None
    ending: str
    seconds: float
    family: str
    subject: str
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
    schema_version: int = field(default=SCHEMA_VERSION)


@dataclass(frozen=True)
class Planning:
    """How much a run, or its shard, is to play."""

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
    schema_version: int = field(default=SCHEMA_VERSION)


class _Version(msgspec.Struct):
    schema_version: int


def decode(text: bytes, kind: type[T], where: str) -> T:
    """One object of a run's file; `UsageError` names `where`: corrupt, foreign, or of another version."""
    try:
        version = msgspec.json.decode(text, type=_Version).schema_version
        if version != SCHEMA_VERSION:
            raise UsageError(f"{where} has schema_version {version}, this harness reads {SCHEMA_VERSION}")
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{where} is not what a run writes: {error}") from None
