"""Facts of kernels as measured before: `fixtures/baselines/` has a file for each target.

Counts, sizes and bytes, never generated text.  A line of a file is one fact of one subject with a column for
each torch, so that what a torch changed is seen at a glance.  A real GPU has columns of its own next to the
prediction for it.
The page docs/reference/baselines.md shows what moved (`tools/baselines_page.py`).  No torch.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from packaging.version import Version

from deepstack_harness.compile.kernels import CUDA, Measurement, Pair, Subject, paired
from deepstack_harness.compile.torch_compat.targets import GPUS
from deepstack_harness.contract.facts import AccessFacts, GraphCall, Measured
from deepstack_harness.contract.oracles.compiler import payload_rows
from deepstack_harness.files import data, load_file, write_atomically


@dataclass(frozen=True)
class Agreement:
    """Agreement of a prediction with a GPU: kernels that agree, of how many, and those that do not."""

    agreeing: int
    kernels: int
    differing: tuple[Pair, ...]

    @property
    def share(self) -> float:
        """Between 0 and 1."""
        return self.agreeing / self.kernels


def agreement(predicted: GraphCall, real: GraphCall) -> Agreement:
    """Count the kernels of a prediction that a real GPU ran: kind, points, reduction, rows and bytes.

    Where grids are known to both (candidates there, a launch here), the launched one
    must be a candidate's.
    """
    pairs = paired(predicted, real)
    differing = tuple(pair for pair in pairs if not _agree(pair))
    return Agreement(len(pairs) - len(differing), len(pairs), differing)


def _agree(pair: Pair) -> bool:
    one, other = pair
    if one is None or other is None:
        return False
    same = all(
        getattr(one, name) == getattr(other, name)
        for name in ("kind", "points", "reduction", "rows", "bytes")
    )
    possible = {candidate.grid for candidate in one.candidates}
    return same and (not possible or other.grid is None or other.grid in possible)


def figure_of(real: Measurement, agreeing: Agreement) -> Measured:
    """Return how many kernels of a decoder were predicted, and which were not."""
    moved = [
        " -> ".join(kernel.kernel if kernel else "nothing" for kernel in pair) for pair in agreeing.differing
    ]
    conditions: dict[str, str | int | float] = {
        "family": real.family, "revision": real.subject.revision, "predicted for": "h200",
        "device": real.device, "torch": real.torch,
    }  # fmt: skip
    told = f"moved: {'; '.join(moved)}" if moved else "nothing moved"
    return Measured("kernels as predicted", agreeing.agreeing, "kernels", agreeing.kernels, conditions, told)


SCHEMA_VERSION = 2
FACTS = (
    "graphs", "kernels", "points", "largest", "bytes", "agreement", "launches", "touched_rows",
    "touched_bytes", "outside_bytes",
)  # fmt: skip


class BaselineEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step of one subject: what it is, then graphs, generated kernels and their bytes.

    `largest` is the size of the largest kernel in symbols, `points` the same as
    called.  `agreement` is the share of kernels, of a real GPU, that were predicted.
    The last four are those of an interpreted step: its launches, one more than the last
    row of a payload, the bytes that launches touched, and those outside of their tensors.
    """

    family: str
    revision: str
    arm: str
    dtype: str
    tokens: int
    capacity: int
    profile_tokens: int
    layers: int | None
    graphs: int
    kernels: int
    largest: str
    points: int
    bytes: int
    agreement: float | None = None
    launches: int | None = None
    touched_rows: int | None = None
    touched_bytes: int | None = None
    outside_bytes: int | None = None

    @classmethod
    def from_measurement(cls, measured: Measurement, agreement: float | None = None) -> "BaselineEntry":
        """Return the entry of a measurement; bytes and kernels are sums over its calls."""
        subject, calls = measured.subject, measured.calls
        touched = {} if measured.accesses is None else _touched(measured.accesses)
        largest = max((call.largest for call in calls), key=lambda kernel: kernel.points or 0)
        return cls(
            family=subject.family, revision=subject.revision, arm=subject.arm, dtype=subject.dtype,
            tokens=subject.tokens, capacity=subject.capacity, profile_tokens=subject.profile_tokens,
            layers=subject.layers, graphs=measured.graphs,
            kernels=sum(len(call.generated) for call in calls),
            largest=largest.symbolic_points or "", points=largest.points or 0,
            bytes=sum(call.bytes for call in calls), agreement=agreement,
            **touched,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """The subject, as `name_of` returns it."""
        return name_of(self)


def _touched(seen: AccessFacts) -> dict[str, int]:
    return {
        "launches": seen.launches,
        "touched_rows": payload_rows(seen)[0],
        "touched_bytes": sum(access.bytes for access in seen.accesses),
        "outside_bytes": sum(access.outside for access in seen.accesses),
    }


def name_of(asked: Subject | BaselineEntry) -> str:
    """Return the subject of an entry as text: two of one name are two versions of one fact."""
    layers = f", {asked.layers} layers" if asked.layers else ""
    sizes = f"{asked.tokens} of {asked.capacity} tokens, traced with {asked.profile_tokens}"
    return f"{asked.family}{layers}, {asked.revision}, {asked.arm}, {asked.dtype}, {sizes}"


_SUBJECT = tuple(name for name in BaselineEntry.__struct_fields__ if name not in FACTS)


class BaselineRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One subject, and each of its facts in every column that has it."""

    subject: dict[str, str | int | None]
    facts: dict[str, dict[str, int | float | str]]

    def __post_init__(self) -> None:
        """Refuse what is no entry in some column; msgspec reports where."""
        for column in self.columns:
            msgspec.convert(self._fields(column), BaselineEntry)

    @property
    def columns(self) -> set[str]:
        """The columns that have a fact of this subject."""
        return {column for by_column in self.facts.values() for column in by_column}

    def entry(self, column: str) -> BaselineEntry:
        """Return the entry of one of its columns."""
        return BaselineEntry(**self._fields(column))

    def _fields(self, column: str) -> dict[str, Any]:
        facts = {fact: values[column] for fact, values in self.facts.items() if column in values}
        return {**self.subject, **facts}


def _torch_of(column: str) -> Version:
    return Version(column.partition(" ")[0])


class Baselines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole file: `columns` has what each was measured with, `rows` are in the order of their subjects."""

    schema_version: int
    columns: dict[str, str]
    rows: tuple[BaselineRow, ...]

    def __post_init__(self) -> None:
        """Refuse a row whose column is not among the columns, and columns that are no torch."""
        for column in self.columns:
            _torch_of(column)
        if unknown := {column for row in self.rows for column in row.columns} - self.columns.keys():
            raise ValueError(f"rows have columns that `columns` lacks: {', '.join(sorted(unknown))}")

    def entries(self, column: str) -> tuple[BaselineEntry, ...]:
        """Return what a column has."""
        return tuple(row.entry(column) for row in self.rows if column in row.columns)


class State(StrEnum):
    """State of an entry and a measurement that are not equal."""

    MISSING = "missing"
    UNUSED = "unused"
    IMPROVED = "improved"
    CHANGED = "changed"


@dataclass(frozen=True)
class Difference:
    """One entry that is not as it was; `detail` has each fact before and now."""

    state: State
    name: str
    detail: str = ""

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.state}: {self.name}" + (f" ({self.detail})" if self.detail else "")


def path_of(target: str, device: str) -> Path:
    """Return the file of a target; the figures of a real GPU are next to the prediction."""
    predicted = [name for name, gpu in GPUS.items() if target == CUDA and gpu.name in device]
    return data("fixtures/baselines") / f"kernels-{predicted[0] if predicted else target}.json"


def column_of(measured: Measurement) -> str:
    """Return the name of the column of a measurement: `2.13`, or on a real GPU `2.13 on NVIDIA H200`."""
    minor = ".".join(measured.torch.split(".")[:2])
    return f"{minor} on {measured.device}" if measured.subject.target == CUDA else minor


def made_with(measured: Measurement) -> str:
    """Return the versions of torch and triton, without their builds."""
    torch, triton = Version(measured.torch).public, measured.triton
    return f"torch {torch}" + (f", triton {triton}" if triton else "")


def load(path: Path) -> Baselines:
    """Read a file; raise `UsageError` for a file that is none, or of another schema version."""
    return load_file(path, Baselines, "a file of baselines", SCHEMA_VERSION)


def differences(
    known: Iterable[BaselineEntry], measured: Iterable[BaselineEntry], names: Collection[str]
) -> list[Difference]:
    """Return MISSING, IMPROVED, CHANGED and UNUSED entries; UNUSED are known and not among `names`.

    `names` are of everything that is ever measured for this file; a run may leave some out.
    """
    before = {entry.name: entry for entry in known}
    unused = [Difference(State.UNUSED, name) for name in before if name not in names]
    compared = (_difference(before.get(entry.name), entry) for entry in measured)
    return unused + [comparison for comparison in compared if comparison is not None]


def update(
    path: Path,
    column: str,
    versions: str,
    measured: Iterable[BaselineEntry],
    names: Collection[str],
    *,
    only_new: bool,
) -> None:
    """Write a column; entries of other `names` stay, and with `only_new` all that are there.

    Other columns stay as they are, and the file is whole at any time.
    Raises `UsageError` where a file is there that cannot be read.
    """
    known = load(path) if path.exists() else Baselines(SCHEMA_VERSION, {}, ())
    before = {entry.name: entry for entry in known.entries(column)}
    now = {entry.name: entry for entry in measured}
    kept = before if only_new else {name: entry for name, entry in before.items() if name in names}
    entries = {other: known.entries(other) for other in known.columns if other != column}
    entries[column] = tuple({**kept, **now, **(before if only_new else {})}.values())
    columns = {name: known.columns[name] for name in entries if name in known.columns}
    write_atomically(path, _text({**columns, column: versions}, entries))


def _text(columns: Mapping[str, str], entries: Mapping[str, Iterable[BaselineEntry]]) -> bytes:
    """Return a file with a line for each fact; columns are ordered by torch, real GPUs last."""
    order = sorted(columns, key=lambda name: (" on " in name, _torch_of(name), name))
    rows: dict[str, Any] = {}
    for column in order:
        for entry in entries[column]:
            subject = {name: getattr(entry, name) for name in _SUBJECT}
            row = rows.setdefault(entry.name, {"subject": subject, "facts": {}})
            for fact in FACTS:
                if (value := getattr(entry, fact)) is not None:
                    row["facts"].setdefault(fact, {})[column] = value
    whole = {
        "schema_version": SCHEMA_VERSION,
        "columns": {column: columns[column] for column in order},
        "rows": [rows[name] for name in sorted(rows)],
    }
    on_lines = json.dumps(whole, indent=1)
    innermost = re.compile(r"\{[^{}]*\}")
    return innermost.sub(lambda found: " ".join(found[0].split()), on_lines).encode() + b"\n"


def _difference(before: BaselineEntry | None, now: BaselineEntry) -> Difference | None:
    if before is None:
        return Difference(State.MISSING, now.name)
    differing = [fact for fact in FACTS if getattr(before, fact) != getattr(now, fact)]
    if not differing:
        return None
    numbers = [fact for fact in differing if fact != "largest"]
    better = bool(numbers) and all(_is_better(fact, before, now) for fact in numbers)
    detail = ", ".join(f"{fact} {getattr(before, fact)} -> {getattr(now, fact)}" for fact in differing)
    return Difference(State.IMPROVED if better else State.CHANGED, now.name, detail)


def _is_better(fact: str, before: BaselineEntry, now: BaselineEntry) -> bool:
    one, other = getattr(before, fact) or 0, getattr(now, fact) or 0
    return bool(other > one if fact == "agreement" else other < one)
