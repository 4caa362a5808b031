"""What there is to judge of the two neighbours, by name; no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from deepstack_harness.catalogue.registry import Entry


@dataclass(frozen=True)
class Variant(Entry):
    """A named variant; `fault` says what is wrong with it, and is empty for one that keeps its rule."""

    fault: str = field(default="", kw_only=True)


_EMPTY, _WRAPS = "an empty mask", "end index 0"

PLACEHOLDER_RANGES: Mapping[str, Variant] = {
    "reference": Variant(
        "deepstack_harness.ranges.placeholder_range:ReferenceRange", "a list, bad arguments raise"
    ),
    "tensor": Variant(
        "deepstack_harness.ranges.placeholder_range:TensorRange",
        "cumulative sum as tensor, indexed at every call",
    ),
    "list": Variant(
        "deepstack_harness.ranges.placeholder_range:ListRange", "cumulative sum as list, as vLLM 0.20.0 on"
    ),
    "tensor_empty": Variant("deepstack_harness.ranges.faults:EmptyTensorRange", "tensor", fault=_EMPTY),
    "tensor_wraps": Variant("deepstack_harness.ranges.faults:WrapsTensorRange", "tensor", fault=_WRAPS),
    "tensor_faulty": Variant(
        "deepstack_harness.ranges.faults:FaultyTensorRange",
        "tensor, as vLLM 0.16.0 .. 0.19.1",
        fault=f"{_EMPTY}; {_WRAPS}",
    ),
    "list_empty": Variant("deepstack_harness.ranges.faults:EmptyListRange", "list", fault=_EMPTY),
    "list_wraps": Variant("deepstack_harness.ranges.faults:WrapsListRange", "list", fault=_WRAPS),
    "list_faulty": Variant(
        "deepstack_harness.ranges.faults:FaultyListRange", "list", fault=f"{_EMPTY}; {_WRAPS}"
    ),
}
"""What makes a range: `deepstack_harness.ranges.placeholder_range.MakeRange`."""

_WAYS = "deepstack_harness.streams.dual_streams"

DUAL_STREAM: Mapping[str, Variant] = {
    "sequential": Variant(f"{_WAYS}:SEQUENTIAL", "one projection after the other"),
    "dual": Variant(f"{_WAYS}:DUAL", "a stream for each projection, ordered by events, as vLLM #36795"),
    "dual_of_copy": Variant(f"{_WAYS}:DUAL_OF_COPY", "dual over a copy that the allocator is told of"),
    "start_forgotten": Variant(
        f"{_WAYS}:START_FORGOTTEN", "dual", fault="the other stream does not wait for the input"
    ),
    "done_forgotten": Variant(f"{_WAYS}:DONE_FORGOTTEN", "dual", fault="nobody waits for the other stream"),
    "done_recorded_outside": Variant(
        f"{_WAYS}:DONE_RECORDED_OUTSIDE", "dual", fault="event 1 recorded outside the auxiliary stream"
    ),
    "start_waited_too_early": Variant(
        f"{_WAYS}:START_WAITED_TOO_EARLY", "dual", fault="event 0 waited for before it is recorded"
    ),
    "done_waited_too_early": Variant(
        f"{_WAYS}:DONE_WAITED_TOO_EARLY", "dual", fault="event 1 waited for before it is recorded"
    ),
    "memory_reused_too_early": Variant(
        f"{_WAYS}:MEMORY_REUSED_TOO_EARLY",
        "dual over a copy",
        fault="memory given back while the other stream reads",
    ),
    "fixed_op": Variant(f"{_WAYS}:FIXED_OP", "dual behind an op that takes its weights"),
    "named_op": Variant(
        f"{_WAYS}:NAMED_OP",
        "dual behind an op that takes the layer's name",
        fault="the name in the graph: every layer a subgraph of its own (vLLM #38152)",
    ),
}
"""A `deepstack_harness.streams.dual_streams.DualStream`."""

VARIANTS: Mapping[str, Mapping[str, Variant]] = {
    "placeholder_ranges": PLACEHOLDER_RANGES,
    "dual_stream": DUAL_STREAM,
}
"""By system, as `deepstack_harness.catalogue.registry.SYSTEMS` names it."""
