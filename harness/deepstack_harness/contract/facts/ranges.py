"""What was measured of a placeholder range: answers, and what they cost; JSON, no torch."""

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from deepstack_harness.contract.facts.systems import Subject

Bounds = tuple[int, int]


class RangeAnswer(NamedTuple):
    """What `get_embeds_indices_in_range(start, end)` gave.

    `answer` is the two indices, or a text: what was raised, or what came that is no pair of ints.
    """

    start: int
    end: int
    answer: Bounds | str


@dataclass(frozen=True)
class Asked:
    """Every question put to one placeholder.

    `mask` has one `0` or `1` a position, None where the placeholder has none;
    `embeds` is what `get_num_embeds()` gave, as in `RangeAnswer.answer`.
    """

    mask: str | None
    length: int
    embeds: int | str
    ranges: tuple[RangeAnswer, ...]


@dataclass(frozen=True)
class RangeObservation:
    """The answers of one class.

    `kept_as` is the type in which it keeps the cumulative sum (`tensor`, `list`, `unknown`).
    `asked` holds questions within 0 <= start <= end <= length; those in `outside` are the
    caller's mistake: they are facts, which R12 does not judge.
    """

    subject: Subject
    kept_as: str
    asked: tuple[Asked, ...]
    outside: tuple[Asked, ...]
    torch: str

    def to_json(self) -> bytes:
        """One line of JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes | str) -> "RangeObservation":
        """Read back what `to_json` wrote."""
        return msgspec.json.decode(text, type=cls)


@dataclass(frozen=True)
class StepCost:
    """What scheduling a workload cost with one class, in the cheapest of the repetitions.

    `microseconds` (of the processor) and `torch_calls` (calls into torch) are those of a mean step; `steps`,
    `requests` and `features` are the workload's, `questions` the calls that its steps made.
    """

    variant: str
    workload: str
    requests: int
    features: int
    steps: int
    questions: int
    microseconds: float
    torch_calls: float


@dataclass(frozen=True)
class BuildCost:
    """What the cumulative sum of one placeholder costs: processor time once, bytes while it is kept."""

    variant: str
    length: int
    microseconds: float
    bytes: int


@dataclass(frozen=True)
class CostObservation:
    """Costs measured side by side in one run; only their ratios mean anything elsewhere.

    `growth` are steps in which every request decodes, after all its features.
    """

    steps: tuple[StepCost, ...]
    growth: tuple[StepCost, ...]
    builds: tuple[BuildCost, ...]
    torch: str

    def ratio(self, workload: str, variant: str, to: str) -> float:
        """How many times dearer a step of `workload` is with `variant` than with `to`."""
        found = {cost.variant: cost.microseconds for cost in self.steps if cost.workload == workload}
        return found[variant] / found[to]

    def to_json(self) -> bytes:
        """One line of JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes | str) -> "CostObservation":
        """Read back what `to_json` wrote."""
        return msgspec.json.decode(text, type=cls)
