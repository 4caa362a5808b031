"""Hunts whose outcome is known: each mutant must be caught by its rule alone, `reference` by no rule."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from deepstack_harness.catalogue.mutants import MUTANTS

CONTROL = "reference"
"""The buffer in which no broken rule may be found."""


@dataclass(frozen=True)
class Effort:
    """Length of a hunt: examples in all, and how many of them at most after the first finding."""

    examples: int
    extra: int


EFFORTS: Mapping[str, Effort] = MappingProxyType(
    {"eager/stock": Effort(12, 0), "eager/full": Effort(100, 10), "eager": Effort(600, 15)}
)
"""Arms that mutants are hunted under, expensive arms first: the hunt that starts last must be a short one.

Every mutant is caught within so many examples; on the control all of them find nothing.
"""


@dataclass(frozen=True)
class Trial:
    """A hunt: the buffer's name, the rule that it breaks (None for the control), the arm, and the effort."""

    subject: str
    rule: str | None
    arm: str
    examples: int
    extra: int
    seed: int


@dataclass(frozen=True)
class Proof:
    """Result of a trial: every rule that was found broken, and the shrunk trace of a finding.

    `examples` is the number of the example with the first finding, or of all where there is no finding.
    """

    trial: Trial
    found: tuple[str, ...]
    examples: int
    seconds: float
    trace: str = ""
    detail: str = ""

    @property
    def holds(self) -> bool:
        """True if exactly the stated rule was found; for the control, none."""
        return not self.failed and self.found == ((self.trial.rule,) if self.trial.rule else ())

    @property
    def failed(self) -> bool:
        """True if the worker gave no answer; `detail` says why."""
        return self.examples == 0


def trials_for(mutants: Iterable[str], seed: int) -> list[Trial]:
    """Return a trial for each mutant, and one of the control for each arm that these take."""
    named = [(name, str(MUTANTS[name].rule), MUTANTS[name].arm) for name in mutants]
    arms = {arm for _, _, arm in named}
    controls = [(CONTROL, None, arm) for arm in arms]
    return [
        Trial(subject, rule, arm, effort.examples, effort.extra, seed)
        for arm, effort in EFFORTS.items()
        for subject, rule, its_arm in [*controls, *named]
        if its_arm == arm
    ]
