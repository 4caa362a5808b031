"""Orders of calls that were recorded in a running engine, read from `fixtures/orders/`.

`deepstack-harness engine --record FILE` writes such a file; recording again gives an equal one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from deepstack_harness.catalogue.data_files import data
from deepstack_harness.catalogue.versioned import load_json

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class RecordedOrder:
    """One distinct order: its trace, the schedule that showed it first, and the settings that lead there.

    `settings` are alternatives, each a set of flags that are needed together; an empty one is the default.
    `replayed` is True where steps of it are replays of a graph, which were emulated.
    """

    trace: str
    how: str
    settings: tuple[tuple[str, ...], ...]
    replayed: bool


@dataclass(frozen=True)
class EngineRecording:
    """The distinct orders of one engine.

    `deciding` has the SHA-256 of the text of each function that decides which calls a step makes, with which
    counts, and whether it is replayed, by its name `module.Class.method`.  The scheduler is not among them:
    it decides which batches come when, and every batch of a recording is one that some requests lead to.
    """

    package: str
    version: str
    runner: str
    deciding: Mapping[str, str]
    orders: tuple[RecordedOrder, ...]
    schema_version: int = SCHEMA_VERSION

    def speaks_of(self, hashes: Mapping[str, str]) -> bool:
        """Tell whether a source with these functions has the same orders: all that decide are equal."""
        return bool(self.deciding) and all(hashes.get(name) == one for name, one in self.deciding.items())


@cache
def recordings(package: str) -> tuple[EngineRecording, ...]:
    """Return the recordings of a package, in the order of their file names.

    Raises `UsageError` for a file that is no recording.
    """
    files = sorted(data("fixtures/orders").glob("*.json"))
    found = [load_json(file, EngineRecording, "a recording of orders", SCHEMA_VERSION) for file in files]
    return tuple(one for one in found if one.package == package)


def deciding_functions(package: str) -> frozenset[str]:
    """Return the names of all functions by which a recording is inherited; none without a recording."""
    return frozenset(name for recording in recordings(package) for name in recording.deciding)
