"""Faults of the newest engines that were read, and what became of each: `fixtures/live_faults.toml`."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from deepstack_harness.catalogue.data_files import data
from deepstack_harness.catalogue.versioned import load_toml

SCHEMA_VERSION = 1


class FaultState(StrEnum):
    """Verdict on a fault that was read or seen in an engine's code."""

    REPRODUCED = "reproduced"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


class Seen(StrEnum):
    """Way in which the engine's own code was judged."""

    RUN = "run"
    READ = "read"


@dataclass(frozen=True)
class LiveFault:
    """A fault of some versions of a package, and the commands that show its mechanism.

    `incident` is the entry of the catalogue with that mechanism.  `why` says what refutes the fault, or what
    it would take to know.  `upstream` is the text that could be sent to the project.
    """

    id: str
    package: str
    versions: str
    title: str
    state: FaultState
    seen: Seen
    reach: str
    incident: str = ""
    commands: tuple[str, ...] = ()
    why: str = ""
    upstream: str = ""

    def __post_init__(self) -> None:
        """Refuse a reproduced fault without a command or an incident, and any other without a reason."""
        if self.state is FaultState.REPRODUCED:
            if not (self.commands and self.incident):
                raise ValueError(
                    f"fault {self.id} is reproduced: say in 'commands' and 'incident' by what and as which"
                )
        elif not self.why or self.commands:
            raise ValueError(f"fault {self.id} is {self.state}: say why, and leave 'commands' out")

    @property
    def outcome(self) -> str:
        """The command that shows the fault, or the reason why none does."""
        if self.state is FaultState.REPRODUCED:
            return f"reproduced: deepstack-harness {self.commands[0]}"
        return f"{self.state}: {self.why}"


@dataclass(frozen=True)
class LiveFaults:
    """The whole file."""

    schema_version: int
    fault: tuple[LiveFault, ...]


def load(path: Path) -> LiveFaults:
    """Read a file of live faults; raises what `load_toml` raises."""
    return load_toml(path, LiveFaults, "a file of live faults", SCHEMA_VERSION)


@cache
def live_faults() -> tuple[LiveFault, ...]:
    """Return the faults that come with the harness."""
    return load(data("fixtures/live_faults.toml")).fault
