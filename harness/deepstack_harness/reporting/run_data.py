"""A run as reports use it: typed, its text sanitised, with the files beside it in the folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from deepstack_harness.contract.row import Row
from deepstack_harness.nightly.night import Ended
from deepstack_harness.results.compare import Change
from deepstack_harness.results.records import About, CaseRecord


@dataclass(frozen=True)
class Changes:
    """Differences from the run before this one in the history, named `since`; the worst kind first."""

    since: str
    found: tuple[Change, ...]


@dataclass(frozen=True)
class RunData:
    """Everything that a report shows.

    `about` has one `run.json` per shard; `stages` are those of the night that the run is part of.
    Files that a folder does not have are None.  `notes` say what was left out, and why.
    """

    name: str
    about: tuple[About, ...]
    rows: tuple[Row, ...]
    cases: Mapping[str, CaseRecord]
    started: str = ""
    kernels: tuple[Mapping[str, Any], ...] | None = None
    audit: tuple[Row, ...] | None = None
    fuzz: tuple[str, ...] | None = None
    stages: tuple[Ended, ...] | None = None
    notes: tuple[str, ...] = ()
    history: tuple["RunData", ...] | None = None
    changes: "Changes | None" = None

    @property
    def finished(self) -> bool:
        """Say whether every shard that is here came to its end."""
        return all(about.finished for about in self.about)

    @property
    def planned(self) -> int:
        """The number of cases that the shards here were to play."""
        return sum(about.planned.cases for about in self.about)

    @property
    def when(self) -> str:
        """`started` for people: 2026-11-20 02:00 UTC."""
        try:
            began = datetime.fromisoformat(self.started)
        except ValueError:
            return self.started or "at an unknown time"
        return began.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
