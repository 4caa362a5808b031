"""The cost of a scheduling step with a range class, beside a class that keeps its sum in the other type."""

from collections.abc import Mapping
from types import MappingProxyType

from deepstack_harness.contract.facts.ranges import SchedulingCost
from deepstack_harness.ranges.placeholder_range import MakeRange
from deepstack_harness.ranges.scheduling_cost import step_costs
from deepstack_harness.ranges.workloads import geo3k

OTHER_KIND: Mapping[str, str] = MappingProxyType({"tensor": "list", "list": "tensor"})
"""Type that a cumulative sum is kept in -> our variant that keeps it in the other type."""

REPETITIONS = 9


def step_costs_of(makes: Mapping[str, MakeRange]) -> dict[str, SchedulingCost]:
    """Measure a mean scheduling step with each class, side by side; return the costs by name."""
    return {cost.variant: cost for cost in step_costs(makes, geo3k(), REPETITIONS)}
