"""Findings: faults that a hunt found, each as a trace that plays again from its text alone."""

from dataclasses import dataclass

import msgspec

from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Effect
from deepstack_harness.fuzzing.player import FindingKind


@dataclass(frozen=True)
class Finding:
    """One fault.

    `rule` is there for kind `rule` alone.  Findings of one rule or kind have different shapes.  `examples` is
    the number of the example that showed it, `seconds` the time until then.  `alone` says whether the trace
    showed it on a session of its own; None where that was not tried.
    """

    kind: FindingKind
    rule: Rule | None
    trace: str
    shape: str
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
    engine: str | None = None
    model_class: str | None = None
    reach: str | None = None
    effect: Effect | None = None

    @property
    def name(self) -> str:
        """The rule, or the kind."""
        return str(self.rule or self.kind)

    @property
    def line(self) -> str:
        """One line of text that says what broke and how to play it again."""
        return f"{self.target} [{self.arm}] {self.name}: {self.trace}  # {self.detail}"

    def to_json(self) -> str:
        """Return one line of JSON, without a line end."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> "Finding":
        """Read the text that `to_json` wrote; raises `msgspec.ValidationError` otherwise."""
        return msgspec.json.decode(text, type=cls)
