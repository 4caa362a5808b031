"""Facts of kernels as measured before: in `fixtures/baselines/`, a file for each target and torch minor.

Counts, sizes and bytes, never generated text: absolute counts differ between torch
versions, so each minor version has a file of its own (29 and 32 kernels on 2.12
where 2.13 has 21 and 24).  That of a real GPU is named by its device.  No torch.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from deepstack_harness.compile.kernels import CUDA, Measurement, Pair, Subject, paired
from deepstack_harness.contract.facts import AccessFacts, GraphCall
from deepstack_harness.contract.oracles.compiler import payload_rows
from deepstack_harness.files import load_file, write_atomically


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
    one, other = pair.one, pair.other
    if one is None or other is None:
        return False
    same = all(
        getattr(one, name) == getattr(other, name)
        for name in ("kind", "points", "reduction", "rows", "bytes")
    )
    possible = {candidate.grid for candidate in one.candidates}
    return same and (not possible or other.grid is None or other.grid in possible)


SCHEMA_VERSION = 1
_FACTS = (
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
    def of(cls, measured: Measurement, agreement: float | None = None) -> "BaselineEntry":
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
        """The subject, as `name_of` says it."""
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


class Baselines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole file."""

    schema_version: int
    entry: tuple[BaselineEntry, ...]


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


def file_name(target: str, device: str, torch: str) -> str:
    """Return `kernels-h200-torch2.13.json`, or for a real GPU `kernels-cuda-nvidia-h200-torch2.13.json`."""
    where = f"{target}-{re.sub(r'[^a-z0-9]+', '-', device.lower())}" if target == CUDA else target
    minor = ".".join(torch.split(".")[:2])
    return f"kernels-{where}-torch{minor}.json"


def load(path: Path) -> tuple[BaselineEntry, ...]:
    """Read the entries; raise `UsageError` for a file that is none, or of another schema version."""
    return load_file(path, Baselines, "a file of baselines", SCHEMA_VERSION).entry


def differences(
    known: Iterable[BaselineEntry], measured: Iterable[BaselineEntry], names: Collection[str]
) -> list[Difference]:
    """Return MISSING, IMPROVED, CHANGED and UNUSED entries; UNUSED are known and not among `names`.

    `names` are of everything that is ever measured for this file; a run may leave some out.
    """
    before = {entry.name: entry for entry in known}
    unused = [Difference(State.UNUSED, name) for name in before if name not in names]
    compared = (_difference(before.get(entry.name), entry) for entry in measured)
    return unused + [one for one in compared if one is not None]


def update(path: Path, measured: Iterable[BaselineEntry], names: Collection[str], *, only_new: bool) -> None:
    """Write what was measured; entries of other `names` stay, and with `only_new` all that are there.

    The file is whole at any time.
    Raises `UsageError` where a file is there that cannot be read.
    """
    before = {entry.name: entry for entry in (load(path) if path.exists() else ())}
    now = {entry.name: entry for entry in measured}
    kept = before if only_new else {name: entry for name, entry in before.items() if name in names}
    entries = {**kept, **now, **(before if only_new else {})}
    whole = Baselines(SCHEMA_VERSION, tuple(entries[name] for name in sorted(entries)))
    write_atomically(path, msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")


def _difference(before: BaselineEntry | None, now: BaselineEntry) -> Difference | None:
    if before is None:
        return Difference(State.MISSING, now.name)
    differing = [fact for fact in _FACTS if getattr(before, fact) != getattr(now, fact)]
    if not differing:
        return None
    numbers = [fact for fact in differing if fact != "largest"]
    better = bool(numbers) and all(_is_better(fact, before, now) for fact in numbers)
    detail = ", ".join(f"{fact} {getattr(before, fact)} -> {getattr(now, fact)}" for fact in differing)
    return Difference(State.IMPROVED if better else State.CHANGED, now.name, detail)


def _is_better(fact: str, before: BaselineEntry, now: BaselineEntry) -> bool:
    one, other = getattr(before, fact) or 0, getattr(now, fact) or 0
    return bool(other > one if fact == "agreement" else other < one)
