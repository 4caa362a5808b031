"""Observers of hunts, and the progress that they are told of."""

from dataclasses import dataclass

from deepstack_harness.contract.trace import Trace
from deepstack_harness.fuzzing.finding import Finding


@dataclass
class Progress:
    """Progress of a hunt in numbers; `graphs` of the last session are counted against their `budget`."""

    examples: int = 0
    steps: int = 0
    states: int = 0
    findings: int = 0
    graphs: int = 0
    budget: int = 0
    sessions: int = 0
    unmeasured: int = 0
    deaths: int = 0
    searches: int = 0
    """Searches that were begun; the seed of each follows from its number."""
    seconds: float = 0.0

    @property
    def steps_per_second(self) -> float:
        """Steps of examples, reads included, over the time of everything."""
        return self.steps / self.seconds if self.seconds else 0.0


class Watch:
    """Observer of a hunt; does nothing."""

    def example(self, progress: Progress, trace: Trace) -> None:
        """Be told that an example was played."""

    def found(self, finding: Finding) -> None:
        """Be told of a finding."""

    def enough(self) -> bool:
        """Say whether the hunt is to end; asked before each example."""
        return False
