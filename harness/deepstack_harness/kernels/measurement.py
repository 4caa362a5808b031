"""Results of a child process that measured kernels, and what they cost.  No torch."""

from dataclasses import dataclass

from deepstack_harness.contract.facts.accesses import AccessFacts
from deepstack_harness.contract.facts.kernels import GraphCall


@dataclass(frozen=True)
class Cost:
    """Cost of measuring a subject: wall and processor seconds, and the peak of resident memory in bytes."""

    seconds: float
    processor_seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Measurement:
    """The calls of one step, one for each graph called; `graphs` were compiled until then.

    `family` is its full name, with the variants that were chosen for it.  `triton` is
    None where none took part.  `accesses` is what the step's launches touched, where they
    were interpreted, and `step_seconds` the processor time of that.
    """

    family: str
    calls: tuple[GraphCall, ...]
    graphs: int
    torch: str
    triton: str | None
    device: str
    cost: Cost
    accesses: AccessFacts | None = None
    step_seconds: float = 0.0
