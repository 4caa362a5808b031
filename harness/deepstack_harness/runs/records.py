"""Records of a run's files (a case, the run as a whole), names of these files, and of those of its shards.

Rows are `deepstack_harness.contract.verdicts.Row`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from deepstack_harness.contract.case import BufferRef
from deepstack_harness.contract.observation import CompiledCode, Distances
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import READABLE_VERSIONS, SCHEMA_VERSION
from deepstack_harness.errors import UsageError
from deepstack_harness.runs.machine import Environment
from deepstack_harness.text import shortened
from deepstack_harness.workers.limits import ONE_THREAD

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
        """Return whether the trace came to its end, so that its process may play another case."""
        return self in {CaseEnding.PLAYED, CaseEnding.RECOMPILE_LIMIT}


@dataclass(frozen=True)
class StepRecord:
    """One step: its P, rows that attention processed (None: not seen), graphs built until then."""

    step: str
    asked: int | None
    processed: int | None
    graphs: int
    raised: str | None


@dataclass(frozen=True)
class CaseRecord:
    """One case as it ended; `seconds` of wall time, `rows` is the number of its judgements.

    `expected` has the rules that the catalogue wants broken. `distances`: those of the whole case, see
    `deepstack_harness.contract.oracles.outputs.case_distances`. `output` is the end of what the process
    printed, where it failed. `code` describes what was compiled, None where nothing was, and in records of
    earlier harnesses.
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
    breaks: int | None = None
    code: CompiledCode | None = None


@dataclass(frozen=True)
class Planning:
    """The number of groups and cases that a run, or its shard, is to play."""

    groups: int
    cases: int


@dataclass(frozen=True)
class About:
    """`run.json`; times are ISO 8601 in UTC, `finished` is None until the run came to its end.

    `plan` identifies a plan: a run is resumed with the plan it was started with.
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

    @property
    def versions(self) -> tuple[str, ...]:
        """What every verdict of the run rests on: torch, triton, Python and this harness, with versions.

        Guards, generated kernels and distances differ between any two of these, so a run belongs to one.
        """
        measured = {
            "torch": self.environment.torch, "triton": self.environment.triton,
            "Python": self.environment.python, "deepstack-harness": self.harness,
        }  # fmt: skip
        return tuple(f"{name} {version}" if version else f"no {name}" for name, version in measured.items())

    @property
    def settings(self) -> dict[str, str]:
        """Environment variables that may change a verdict: no places, logs, limits or what workers set."""
        without = (*ONE_THREAD, *_HARMLESS)
        return {
            name: value for name, value in self.environment.settings.items() if not name.startswith(without)
        }


_HARMLESS = (
    "CUDA_VISIBLE_DEVICES", "DEEPSTACK_HARNESS", "NVIDIA_VISIBLE", "TORCHINDUCTOR_CACHE_DIR", "TORCH_HOME",
    "TORCH_LOGS", "TORCH_TRACE", "TRITON_CACHE_DIR",
)  # fmt: skip
"""Beginnings of the names of variables that are stored with a run, and that may differ inside of one."""


class _Version(msgspec.Struct):
    schema_version: int


def decode(text: bytes, kind: type[T], where: str) -> T:
    """Decode one object of a run's file.

    Raises `UsageError` that names `where` for a corrupt or foreign object, and for one of another version.
    """
    try:
        refuse_version(msgspec.json.decode(text, type=_Version).schema_version, where)
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{where} is not what a run writes: {error}") from None


def refuse_version(version: object, where: str) -> None:
    """Raise `UsageError` that names `where` for a schema version that is not read any more, or not yet."""
    if version not in READABLE_VERSIONS:
        *earlier, newest = sorted(READABLE_VERSIONS)
        readable = f"{', '.join(map(str, earlier))} and {newest}"
        raise UsageError(f"{where} has schema_version {version}, this harness reads {readable}")


_ABOUT = re.compile(r"run(?:-(\d+)of(\d+))?\.json")


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 1) of `count`."""

    index: int
    count: int

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parse `1/3`; raises `UsageError` for anything else."""
        match = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)
        if not match or int(match[1]) > int(match[2]):
            raise UsageError(
                "--shard takes I/N with I from 1 to N and N up to 999999, as in 1/3, "
                f"not '{shortened(text, 200)}'"
            )
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class Files:
    """Paths of the files of one run, or of one shard of it."""

    folder: Path
    shard: Shard | None = None

    @property
    def about(self) -> Path:
        """Return the path of `run.json`."""
        return self._named("run", "json")

    @property
    def rows(self) -> Path:
        """Return the path of `rows.jsonl`."""
        return self._named("rows", "jsonl")

    @property
    def cases(self) -> Path:
        """Return the path of `cases.jsonl`."""
        return self._named("cases", "jsonl")

    def parquet(self, kind: str) -> Path:
        """Return the path of `rows.parquet` or `cases.parquet`, which are written at the end of a run."""
        return self._named(kind, "parquet")

    def _named(self, stem: str, suffix: str) -> Path:
        part = f"-{self.shard.index}of{self.shard.count}" if self.shard else ""
        return self.folder / f"{stem}{part}.{suffix}"


def run_files_in(folder: Path) -> Iterator[Files]:
    """Iterate over the runs or shards in a folder, by their `run.json`; none where there is no folder."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if match := _ABOUT.fullmatch(path.name):
            yield Files(folder, Shard(int(match[1]), int(match[2])) if match[1] else None)
