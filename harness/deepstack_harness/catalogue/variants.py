"""Variants of the two systems beside the buffer, by name; a `fault` says what is wrong with one."""

from collections.abc import Mapping

from deepstack_harness.catalogue.names import Entry, Names

_RANGES = "deepstack_harness.ranges"
_EMPTY, _WRAPS = "an empty mask", "end index 0"

PLACEHOLDER_RANGES = Names(
    "placeholder range",
    {
        "reference": Entry(f"{_RANGES}.placeholder_range:ReferenceRange", "a list, bad arguments raise"),
        "tensor": Entry(
            f"{_RANGES}.placeholder_range:TensorRange", "cumulative sum as tensor, indexed at every call"
        ),
        "list": Entry(f"{_RANGES}.placeholder_range:ListRange", "cumulative sum as list, as vLLM 0.20.0 on"),
        "tensor_empty": Entry(f"{_RANGES}.faults:EmptyTensorRange", "tensor", fault=_EMPTY),
        "tensor_wraps": Entry(f"{_RANGES}.faults:WrapsTensorRange", "tensor", fault=_WRAPS),
        "tensor_faulty": Entry(
            f"{_RANGES}.faults:FaultyTensorRange",
            "tensor, as vLLM 0.16.0 .. 0.19.1",
            fault=f"{_EMPTY}; {_WRAPS}",
        ),
        "list_empty": Entry(f"{_RANGES}.faults:EmptyListRange", "list", fault=_EMPTY),
        "list_wraps": Entry(f"{_RANGES}.faults:WrapsListRange", "list", fault=_WRAPS),
        "list_faulty": Entry(f"{_RANGES}.faults:FaultyListRange", "list", fault=f"{_EMPTY}; {_WRAPS}"),
    },
)
"""Factories of placeholder ranges: each a `deepstack_harness.ranges.placeholder_range.MakeRange`."""

_STREAMS = "deepstack_harness.streams.dual_streams"

DUAL_STREAM = Names(
    "dual-stream variant",
    {
        "sequential": Entry(f"{_STREAMS}:SEQUENTIAL", "one projection after the other"),
        "dual": Entry(f"{_STREAMS}:DUAL", "a stream for each projection, ordered by events, as vLLM #36795"),
        "dual_of_copy": Entry(f"{_STREAMS}:DUAL_OF_COPY", "dual over a copy that the allocator is told of"),
        "start_forgotten": Entry(
            f"{_STREAMS}:START_FORGOTTEN", "dual", fault="the other stream does not wait for the input"
        ),
        "done_forgotten": Entry(
            f"{_STREAMS}:DONE_FORGOTTEN", "dual", fault="nobody waits for the other stream"
        ),
        "done_recorded_outside": Entry(
            f"{_STREAMS}:DONE_RECORDED_OUTSIDE", "dual", fault="event 1 recorded outside the auxiliary stream"
        ),
        "start_waited_too_early": Entry(
            f"{_STREAMS}:START_WAITED_TOO_EARLY", "dual", fault="event 0 waited for before it is recorded"
        ),
        "done_waited_too_early": Entry(
            f"{_STREAMS}:DONE_WAITED_TOO_EARLY", "dual", fault="event 1 waited for before it is recorded"
        ),
        "memory_reused_too_early": Entry(
            f"{_STREAMS}:MEMORY_REUSED_TOO_EARLY",
            "dual over a copy",
            fault="memory given back while the other stream reads",
        ),
        "fixed_op": Entry(f"{_STREAMS}:FIXED_OP", "dual behind an op that takes its weights"),
        "named_op": Entry(
            f"{_STREAMS}:NAMED_OP",
            "dual behind an op that takes the layer's name",
            fault="the name in the graph: every layer a subgraph of its own (vLLM #38152)",
        ),
    },
)
"""Dual-stream projections: each a `deepstack_harness.streams.dual_streams.DualStream`."""

VARIANTS: Mapping[str, Names] = {"placeholder_ranges": PLACEHOLDER_RANGES, "dual_stream": DUAL_STREAM}
"""Variants of each system that `deepstack_harness.catalogue.registry.SYSTEMS` names, `kernels` apart."""
