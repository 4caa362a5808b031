"""What rows that a step does not have cost in time, and what adding a payload of zeros costs.  No torch.

Ratios of times taken by turns in one process, on the CPU: they hold for this
machine, the tiny decoder and whole-sequence attention, and say nothing of another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from deepstack_harness.errors import HarnessError, MachineError
from deepstack_harness.workers.isolate import Ending, run_isolated

CAPACITIES = (256, 1024, 2048)
TOKENS = (1, 2, 4, 8)
REPETITIONS = 2
_SECONDS = 900


@dataclass(frozen=True)
class StepCost:
    """One decode step, in seconds, each the least of its repetitions, of the cheap ones a hundred each.

    `full`: the graph runs every row of the buffer; `sliced`: the step's, the payload
    being zeros; `skipped`: a graph that was compiled without a payload.
    """

    capacity: int
    tokens: int
    full: float
    sliced: float
    skipped: float

    @property
    def extra_rows(self) -> float:
        """How many times as long a step takes that runs the whole buffer."""
        return self.full / self.sliced

    @property
    def zeros(self) -> float:
        """How many times as long a step takes that adds zeros, against one that adds nothing."""
        return self.sliced / self.skipped


@dataclass(frozen=True)
class Costs:
    """Of one machine and one decoder."""

    family: str
    arm: str
    dtype: str
    device: str
    torch: str
    repetitions: int
    steps: tuple[StepCost, ...]


@dataclass(frozen=True)
class CostRow:
    """What `kernels --cost --json` writes for each step; times in seconds."""

    system: str
    kind: str
    family: str
    arm: str
    dtype: str
    device: str
    capacity: int
    tokens: int
    full_seconds: float
    sliced_seconds: float
    skipped_seconds: float
    full_to_sliced: float
    zeros_to_skipped: float
    repetitions: int
    torch: str
    schema_version: int = 1

    @classmethod
    def of(cls, costs: Costs, step: StepCost) -> "CostRow":
        """The row of one step."""
        return cls(
            system="deepstack", kind="cost", family=costs.family, arm=costs.arm, dtype=costs.dtype,
            device=costs.device, capacity=step.capacity, tokens=step.tokens, full_seconds=step.full,
            sliced_seconds=step.sliced, skipped_seconds=step.skipped, full_to_sliced=step.extra_rows,
            zeros_to_skipped=step.zeros, repetitions=costs.repetitions, torch=costs.torch,
        )  # fmt: skip


def measure_costs(
    capacities: Sequence[int] = CAPACITIES,
    tokens: Sequence[int] = TOKENS,
    repetitions: int = REPETITIONS,
    layers: int | None = None,
) -> Costs:
    """Time every step at every capacity, in a child of one thread that compiles two graphs.

    `layers` replaces the family's.

    Raises `MachineError` where the child was ended, `HarnessError` where it failed.
    """
    sizes = {"capacities": list(capacities), "tokens": list(tokens), "layers": layers}
    asked = {**sizes, "repetitions": repetitions}
    outcome = run_isolated("deepstack_harness.kernels.cost_worker:time_steps", asked, timeout_s=_SECONDS)
    if outcome.ending is not Ending.RETURNED:
        kind = HarnessError if outcome.ending is Ending.RAISED else MachineError
        raise kind(f"timing decode steps: {outcome.ending}: {outcome.detail}".rstrip(": "))
    return msgspec.convert(outcome.value, Costs)
