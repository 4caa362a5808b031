"""A run as reports use it: typed, its text made harmless, and what lies beside it in the folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from deepstack_harness.contract.rules import Rule, Verdict
from deepstack_harness.nightly.night import Ended
from deepstack_harness.results.records import CaseRecord


@dataclass(frozen=True)
class Judged:
    """One judgement, its rule and verdict known ones; one of `audit.jsonl` has no case."""

    rule: Rule
    verdict: Verdict
    family: str = ""
    revision: str = ""
    trace: str = ""
    arm: str = ""
    device: str = ""
    dtype: str = ""
    value: float | None = None
    limit: float | None = None
    unit: str = ""
    reach: str | None = None
    detail: str = ""
    incident: str | None = None
    model_class: str | None = None
    source: str | None = None
    case: str = ""
    expected: bool | None = None

    @property
    def place(self) -> tuple[str, str, str]:
        """Family, arm and device: its line in the matrix."""
        return self.family or "-", self.arm or "-", self.device or "-"


@dataclass(frozen=True)
class RunData:
    """Everything a report shows.

    `about` is one object per shard (`run.json`); `stages` are those of the night that
    it is part of.  What a folder does not have is None.  `notes` say what was left out, and why.
    """

    name: str
    about: tuple[Mapping[str, Any], ...]
    rows: tuple[Judged, ...]
    cases: Mapping[str, CaseRecord]
    kernels: tuple[Mapping[str, Any], ...] | None = None
    audit: tuple[Judged, ...] | None = None
    fuzz: tuple[str, ...] | None = None
    stages: tuple[Ended, ...] | None = None
    notes: tuple[str, ...] = ()
    history: tuple["RunData", ...] | None = None

    @property
    def finished(self) -> bool:
        """Whether every shard that is here came to its end."""
        return all(one.get("finished") for one in self.about)

    @property
    def planned(self) -> int:
        """Cases that the shards here were to play."""
        return sum((one.get("planned") or {}).get("cases", 0) for one in self.about)

    @property
    def started(self) -> str:
        """When the first shard began, ISO 8601; texts that sort."""
        return min((str(one.get("started") or "") for one in self.about), default="")

    @property
    def when(self) -> str:
        """`started` for people: 2026-11-20 02:00 UTC."""
        try:
            began = datetime.fromisoformat(self.started)
        except ValueError:
            return self.started or "at an unknown time"
        return began.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
