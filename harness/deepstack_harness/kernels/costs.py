"""The time that superfluous rows of a buffer cost a decode step, and the time that a payload of zeros costs.

The figures are ratios of times that one process takes by turns, on the CPU.  They hold for this machine,
the tiny decoder and whole-sequence attention, and say nothing of another machine or model.  No torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import value_of
from deepstack_harness.workers.worker import call_once

CAPACITIES = (256, 1024, 2048)
TOKENS = (1, 2, 4, 8)
REPETITIONS = 2
_WORK = "deepstack_harness.kernels.cost_worker:time_steps"
_SECONDS = 900.0


@dataclass(frozen=True)
class StepCost:
    """Seconds of one decode step: the least of its repetitions, and of a hundred times as many cheap ones.

    `full`: the graph runs every row of the buffer; `sliced`: it runs the rows of the step, and the payload
    is zeros; `skipped`: another graph, which was compiled without a payload.
    """

    capacity: int
    tokens: int
    full: float
    sliced: float
    skipped: float

    @property
    def extra_rows(self) -> float:
        """Ratio of a step that runs the whole buffer to one that runs its own rows."""
        return self.full / self.sliced

    @property
    def zeros(self) -> float:
        """Ratio of a step that adds zeros to one that adds nothing."""
        return self.sliced / self.skipped


@dataclass(frozen=True)
class Costs:
    """Costs of all steps, on one machine with one decoder."""

    family: str
    arm: str
    dtype: str
    device: str
    torch: str
    repetitions: int
    steps: tuple[StepCost, ...]


@dataclass(frozen=True)
class CostRow:
    """Row that `kernels --cost --json` writes for each step; times in seconds."""

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
        """Return the row of one step."""
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
    """Time every step at every capacity, in a worker of one thread that compiles two graphs.

    `layers` replaces the family's number of layers.  Raises `MachineError` where the worker ended, and
    `HarnessError` where it failed.
    """
    sizes = {"capacities": list(capacities), "tokens": list(tokens), "layers": layers}
    result = call_once(_WORK, {**sizes, "repetitions": repetitions}, Limits(call_s=_SECONDS))
    return msgspec.convert(value_of(result, "timing decode steps"), Costs)
