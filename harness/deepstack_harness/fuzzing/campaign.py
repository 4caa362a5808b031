"""A fuzz campaign and the folder that it is kept in.

`findings.jsonl` has each finding from the moment it is told; `run.json` has the request and the progress.
A run that was killed goes on when the same command is given again with the same folder.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from deepstack_harness.errors import UsageError
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.hunt import Progress
from deepstack_harness.fuzzing.request import Asked
from deepstack_harness.fuzzing.worker import JOURNAL

RUN = "run.json"
MEMORY_BYTES = 4 * 2**30


@dataclass(frozen=True)
class HuntLimits:
    """Limits of a hunt: seconds for one step, bytes of memory, seconds for everything."""

    step_s: float = 20.0
    memory_bytes: int = MEMORY_BYTES
    seconds: float | None = None


@dataclass(frozen=True)
class Campaign:
    """A hunt of `examples` traces with a seed, kept in `folder`."""

    asked: Asked
    folder: Path
    examples: int
    seed: int = 0
    boundary: bool = False
    limits: HuntLimits = field(default_factory=HuntLimits)

    def describe(self) -> dict[str, object]:
        """Return the request; a run goes on only if this is the same."""
        return {"schema_version": 1, "asked": asdict(self.asked), "examples": self.examples,
                "seed": self.seed, "boundary": self.boundary}  # fmt: skip


@dataclass
class Hunted:
    """Result of a campaign so far: findings, counts over all its workers, and whether all was played."""

    findings: list[Finding] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)
    rounds: int = 0
    complete: bool = False
    resumed: int = 0
    """Findings of an earlier run that this one goes on with."""


def start(campaign: Campaign) -> Hunted:
    """Make the folder, or read what an unfinished run of the same campaign left in it.

    Raises `UsageError` for a folder that has something else in it.
    """
    _make(campaign.folder)
    earlier = _read_run(campaign.folder)
    if earlier is None or earlier.get("finished"):
        _forget(campaign.folder)
        return Hunted()
    if earlier["campaign"] != campaign.describe():
        raise UsageError(
            f"'{campaign.folder}' has an unfinished run of something else: "
            "go on with that one, or take another --out"
        )
    findings = read_journal(campaign.folder)
    progress = msgspec.convert(earlier["progress"], Progress)
    return Hunted(findings, progress, rounds=int(str(earlier["rounds"])), resumed=len(findings))


def read_journal(folder: Path) -> list[Finding]:
    """Findings in the order in which they came; one that was shrunk later is there once."""
    path = folder / JOURNAL
    found: dict[tuple[str, int, float], Finding] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(msgspec.DecodeError):  # the last line of a machine that lost power
            finding = Finding.from_json(line)
            found[finding.name, finding.examples, finding.seconds] = finding
    return list(found.values())


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot keep findings in '{folder}': {error.strerror}") from None


def _read_run(folder: Path) -> dict[str, object] | None:
    path = folder / RUN
    try:
        found: dict[str, object] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        raise UsageError(
            f"'{path}' is not what a fuzz run writes: remove it, or take another --out"
        ) from None
    return found


def _forget(folder: Path) -> None:
    for name in (RUN, JOURNAL):
        (folder / name).unlink(missing_ok=True)


def keep(campaign: Campaign, hunted: Hunted, *, finished: bool = False) -> None:
    """Write how far the campaign is; one that is finished is begun anew the next time."""
    state = {
        "campaign": campaign.describe(), "progress": asdict(hunted.progress),
        "rounds": hunted.rounds, "finished": finished,
    }  # fmt: skip
    partial = campaign.folder / f"{RUN}.partial"
    partial.write_text(json.dumps(state))
    partial.rename(campaign.folder / RUN)
