"""Rows of an audit of inputs: one argument, attribute or field that a compiled or captured region reads.

A row has what a program needs to run the code with the input: where the region is, who gives or writes the
input, and what the warm-up and later steps see of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from deepstack_harness.contract.rules import Promise


class Standing(StrEnum):
    """How an input in the warm-up compares with later calls.

    SAME: decided before the first call, or seen by the warm-up as by later calls.  GUARDED: it differs, and
    the engine does not run the graph then.  AT_RISK: it differs.  NOT_FOLLOWED: nothing is known, for the
    reason that the row has.
    """

    AT_RISK = "at risk"
    NOT_FOLLOWED = "not followed"
    GUARDED = "guarded"
    SAME = "same"


class InputKind(StrEnum):
    """How a region reads an input.

    ARGUMENT: an optional argument of its `forward`.  ATTRIBUTE: `self.name` of the region's class, or of a
    class whose methods the region calls.
    """

    ARGUMENT = "argument"
    ATTRIBUTE = "attribute"


class InputSeen(StrEnum):
    """What a call sees in the place of an input.

    FIXED: what the configuration or the rank decides, in every call alike.  EITHER: None in some calls, a
    value in others.  CHANGED: a value of another type, another Python value or another storage than before.
    IN_PLACE: the same storage, with other contents.
    """

    NONE = "None"
    GIVEN = "given"
    FIXED = "as configured"
    EITHER = "None or given"
    CHANGED = "changed"
    IN_PLACE = "written in place"
    UNKNOWN = "unknown"


class InputChange(StrEnum):
    """What of an input differs between the warm-up and a later call.

    PRESENCE: None or absent in one, given in the other.  VALUE: a Python value, which a graph holds as a
    constant.  STORAGE: a tensor that another tensor replaces, so that a captured address is dead.  LOST: a
    pipeline stage that does not receive what an earlier stage was given.
    """

    PRESENCE = "presence"
    VALUE = "value"
    STORAGE = "storage"
    LOST = "lost between pipeline stages"


@dataclass(frozen=True)
class Place:
    """A line of the source, with the class and the function that it is in ("" outside of any)."""

    member: str
    line: int
    model_class: str = ""
    function: str = ""

    def __str__(self) -> str:
        """Return FILE:LINE."""
        return f"{self.member}:{self.line}"


@dataclass(frozen=True)
class InputStanding:
    """One input of a compiled or captured region.

    `model_class`, `member` and `line` are the class whose region reads the input, its file, and the line of
    the `forward` (of the reading, for an attribute).  `where` is FILE:LINE of what decides the standing, and
    `why` has it in words.  `warm_up` and `steps` are what the calls before serving and later calls see.
    `writers` are the calls that give an argument, or the statements that write an attribute, outside the
    region.  `read_by` is the class that reads an attribute where that is not `model_class` but a class whose
    methods the region calls.
    """

    model_class: str
    input: str
    standing: Standing
    why: str
    where: str
    kind: InputKind = InputKind.ARGUMENT
    member: str = ""
    line: int = 0
    warm_up: InputSeen = InputSeen.UNKNOWN
    steps: InputSeen = InputSeen.UNKNOWN
    change: InputChange | None = None
    writers: tuple[Place, ...] = ()
    read_by: str = ""

    @property
    def name(self) -> str:
        """The name of the argument, the attribute or the field."""
        return self.input.removeprefix("self.")

    @property
    def is_attribute(self) -> bool:
        """Return whether it is an attribute of the region's class, or of the class `read_by`."""
        return self.kind is InputKind.ATTRIBUTE

    @property
    def given_first(self) -> bool:
        """Return whether the warm-up is given it; where that is not known, it is without the input."""
        return self.warm_up is InputSeen.GIVEN and self.change is InputChange.PRESENCE

    @property
    def is_lost(self) -> bool:
        """Return whether a later pipeline stage is not given it."""
        return self.change is InputChange.LOST

    @property
    def promise(self) -> Promise:
        """Return the promise that a later call would break."""
        if self.change is InputChange.STORAGE:
            return Promise.LAYOUT
        return Promise.OWNERSHIP if self.is_lost else Promise.SPECIALISATION


@dataclass(frozen=True)
class Region:
    """A compiled class: its name, and the file and line of its class statement."""

    model_class: str
    member: str
    line: int


@dataclass(frozen=True)
class AuditedInputs:
    """The inputs of every compiled region of a source, what is at risk first.

    `regions` has those without any optional input or written attribute too.  They are `captured` where the
    engine compiles no class, but captures and replays its models.  `unread` are the functions that decide
    the inputs of every class (`RunnerInputs`), where the source has another text of them than was read.
    """

    regions: tuple[Region, ...]
    standings: tuple[InputStanding, ...]
    captured: bool = False
    unread: tuple[str, ...] = ()

    def regions_of(self) -> Mapping[Standing, int]:
        """Return how many regions have each standing; the worst of its inputs is that of a region."""
        worst = {(region.model_class, region.member): Standing.SAME for region in self.regions}
        for row in self.standings:
            key = (row.model_class, row.member)
            if _ORDER[row.standing] < _ORDER[worst[key]]:
                worst[key] = row.standing
        return _counted(worst.values())


_ORDER = {standing: at for at, standing in enumerate(Standing)}


def in_order(standings: Iterable[InputStanding]) -> list[InputStanding]:
    """Return rows with what is at risk first, then by place and input."""
    return sorted(standings, key=lambda row: (_ORDER[row.standing], row.where, row.model_class, row.input))


def count(standings: Iterable[InputStanding]) -> Mapping[Standing, int]:
    """Return how many inputs have each standing."""
    return _counted(row.standing for row in standings)


def _counted(values: Iterable[Standing]) -> Mapping[Standing, int]:
    counts = dict.fromkeys(Standing, 0)
    for value in values:
        counts[value] += 1
    return counts
