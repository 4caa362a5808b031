"""What a hunt brings home: a fault as a trace that plays again from its text alone."""

from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from deepstack_harness.contract.rules import Rule
from deepstack_harness.fuzzing.pattern import Pattern


class FindingKind(StrEnum):
    """How a fault showed: a broken rule, or an end of the process that played it."""

    RULE = "rule"
    HANG = "hang"
    CRASH = "crash"
    MEMORY = "memory"
    OUTPUT = "output"


@dataclass(frozen=True)
class Finding:
    """One fault.

    `rule` is there for kind `rule` alone.  `examples` is the number of the example
    that showed it, `seconds` the time until then.  `alone`: whether the trace showed
    it on a buffer and a session of its own; None where that was not tried.
    """

    kind: FindingKind
    rule: Rule | None
    trace: str
    pattern: Pattern
    detail: str
    target: str
    arm: str
    family: str
    examples: int
    seconds: float
    seed: int
    value: float | None = None
    limit: float | None = None
    unit: str = ""
    alone: bool | None = None
    source: str | None = None
    model_class: str | None = None
    reach: str | None = None

    @property
    def name(self) -> str:
        """What it is, in a word: the rule, or the kind."""
        return str(self.rule or self.kind)

    @property
    def line(self) -> str:
        """One line of text that says what broke and how to play it again."""
        return f"{self.target} [{self.arm}] {self.name}: {self.trace}  # {self.detail}"

    def to_json(self) -> str:
        """One line of JSON, without a line end."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> "Finding":
        """Read what `to_json` wrote; raises `msgspec.ValidationError` otherwise."""
        return msgspec.json.decode(text, type=cls)

    def shrunk_to(self, trace: str, pattern: Pattern, detail: str, *, alone: bool) -> "Finding":
        """The same finding, shown by a smaller trace."""
        return replace(self, trace=trace, pattern=pattern, detail=detail, alone=alone)
