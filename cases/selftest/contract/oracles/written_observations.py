"""Observations written down by hand: no torch takes part."""

from dataclasses import replace

from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.observation import (
    Answer,
    Distances,
    GraphFacts,
    Observation,
    RowRange,
    StepFacts,
)
from deepstack_harness.contract.trace import Trace

TRACE = Trace.parse("cap 16: profile 16; set 16; forward 16")
COMPILED = ArmSpec.parse("eager/drop_all")
RIGHT = Distances(eager=0, no_deepstack=3, zero_deepstack=3, effect=3, rounding=1e-6)
QUIET = Distances(eager=0, no_deepstack=0, zero_deepstack=0, effect=0, rounding=1e-6)
ONE_GRAPH = GraphFacts(graphs=1, recompiles=0, breaks=0, limit_hit=False, guards=9, kept=0)


def answer(dtype: str = "float32", device: str = "cpu", address: int = 64, tokens: int = 16) -> Answer:
    return Answer(
        "tensors", ((RowRange(0, 0, 0, tokens),) if tokens else (),), (8,), (dtype,), (device,), (address,)
    )


def observed(
    *steps: StepFacts, facts: GraphFacts | None = ONE_GRAPH, error: str | None = None
) -> Observation:
    return Observation("float32", "cpu", 1, 8, "2.13.0", steps, facts, error=error)


def forward(distances: Distances | None, **changes: object) -> Observation:
    """Of `TRACE`: a profile run on None, and a last forward with these distances and changes."""
    last = StepFacts("forward 16", 16, answer=answer(), distances=distances)
    profile = StepFacts("profile 16", 16, answer=Answer("none"), distances=QUIET)
    return observed(profile, StepFacts("set 16", 16), replace(last, **changes))  # type: ignore[arg-type]
