"""Calls of any function with given inputs, for `compile_arms.calls`: measured as steps, judged by R0 and R11.

The inputs are drawn once; `play.steps` copies the function and the inputs for every run.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deepstack_harness.catalogue.plans import graph_budget
from deepstack_harness.compile.distances import apart
from deepstack_harness.compile.torch_compat import structures
from deepstack_harness.contract.arm import ArmSpec, GuardPolicy
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import (
    NOT_FINITE,
    Answer,
    Distances,
    GraphFacts,
    Observation,
    Raised,
    StateFacts,
    StepFacts,
)
from deepstack_harness.contract.protocols import Inputs
from deepstack_harness.contract.steps import Difference, SteppedArm, SteppedCall, SteppedRegion
from deepstack_harness.contract.tolerances import ROUNDINGS
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.errors import UsageError
from deepstack_harness.play.region_calls import Call, Left, in_place, restoring, run_call
from deepstack_harness.text import plural


def draw_inputs(inputs: Callable[[int], Inputs], sizes: Sequence[int]) -> list[Inputs]:
    """Call `inputs(tokens)` once for each size, in order.  Raises `UsageError` for what no function can take.

    The payload may be any structure of tensors, numbers and None; hidden is (n, h) or None, positions (3, n).
    """
    with torch.no_grad():
        drawn: list[object] = [inputs(tokens) for tokens in sizes]
    checked = []
    for tokens, given in zip(sizes, drawn, strict=True):
        if not isinstance(given, Inputs):
            wanted = "deepstack_harness.Inputs(hidden, positions, payload)"
            raise UsageError(f"inputs({tokens}) returned {type(given).__name__}, not {wanted}")
        if getattr(given.positions, "shape", ())[-1:] != (tokens,):
            shape = _described(given.positions)
            raise UsageError(f"inputs({tokens}) has positions {shape}, not (3, {tokens})")
        checked.append(given)
    return checked


def describe_inputs(inputs: Inputs) -> str:
    """Return the shapes and dtypes of a call in words, for an error; tensors may have any shape."""
    payload: object = inputs.payload
    if isinstance(payload, tuple) and payload and all(isinstance(level, Tensor) for level in payload):
        shapes = f"{plural(len(payload), 'tensor')} {tuple(payload[0].shape)}"
    else:
        shapes = str(structures.map_leaves(_described, payload))
    return f"hidden {_described(inputs.hidden)}, positions {_described(inputs.positions)}, payload {shapes}"


def _described(leaf: object) -> str:
    if isinstance(leaf, Tensor):
        return f"{tuple(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"
    return "None" if leaf is None else type(leaf).__name__


def steps_of(calls: Iterable[Inputs]) -> list[Call]:
    """Return the calls as steps of a region."""
    return [Call(call.hidden, call.positions, call.payload) for call in calls]


def run_uncompiled(function: Callable[..., Tensor], calls: Sequence[Inputs]) -> list[Left]:
    """Call a copy of the function, uncompiled; what it shares with the function is put back."""
    program, shared = restoring(in_place(function, steps_of(calls)))
    with shared.preserved(), torch.no_grad():
        region, steps = program()
        return [run_call(region, call, 0) for call in steps if isinstance(call, Call)]


def observation_of(
    case: Case, region: SteppedRegion, effects: Sequence[Sequence["LeafEffect"]], width: int
) -> Observation:
    """Return what was measured of an arm, a step for each call; nothing was of one that is not compiled."""
    arm = next((arm for arm in region.arms if arm.arm == case.arm.name), SteppedArm(case.arm.name))
    failed = f"the compiler of torch {region.torch} failed here: {arm.unjudged}" if arm.unjudged else None
    calls = dict(zip((call.step for call in arm.calls), arm.calls, strict=True))
    steps = [
        _facts_of(str(step), calls[number], arm, max((leaf.effect for leaf in leaves), default=0.0))
        if number in calls
        else StepFacts(str(step), 0, unavailable=arm.stopped or "it was not run")
        for number, (step, leaves) in enumerate(zip(case.trace, effects, strict=True), 1)
    ]
    guards = tuple(guard for call in arm.calls for guard in call.guards)
    graphs = GraphFacts(arm.graphs, max(arm.graphs - 1, 0), 0, False, 0, 0, failed=guards)
    return Observation(
        case.dtype, case.device, 0, width, region.torch, tuple(steps), graphs if arm.calls else None,
        error=region.restless or failed,
    )  # fmt: skip


def _facts_of(step: str, call: SteppedCall, arm: SteppedArm, effect: float) -> StepFacts:
    if call.raised:
        kind, _, message = call.raised.partition(": ")
        return StepFacts(step, 0, raised=Raised(kind, message, "decoder", "", by_compiler=call.refused))
    if call.wanted:
        return StepFacts(step, 0, unavailable=f"uncompiled it ends with {call.wanted}")
    answers = [_size_of(found) for found in call.differences if found.is_answer]
    written = tuple(
        StateFacts(found.place, _size_of(found), 1.0, call.limit / ROUNDINGS, *_values_of(found))
        for found in call.differences
        if not found.is_answer
    )
    distances = Distances(max(answers, default=0.0), None, effect, effect, call.limit / ROUNDINGS)
    return StepFacts(step, 0, answer=Answer("tensors"), distances=distances, graphs=arm.graphs, state=written)


def _size_of(difference: Difference) -> float:
    return NOT_FINITE if difference.distance is None else difference.distance


def _values_of(difference: Difference) -> tuple[str, str]:
    """Return in words what the arm leaves at a place, and what the uncompiled code leaves."""
    if difference.distance is not None:
        return "other numbers", "its own"
    left, _, wanted = difference.what.partition(", not ")
    return (left, wanted) if wanted else ("a value", "nothing")[:: -1 if left == "missing" else 1]  # type: ignore[return-value]


@dataclass(frozen=True)
class LeafEffect:
    """How far one tensor or number of the payload moves the uncompiled output.

    `structure` are the places of the payload: another structure has other inputs.
    """

    place: str
    tokens: int
    effect: float
    structure: tuple[str, ...]


def leaf_effects(function: Callable[..., Tensor], call: Inputs) -> list[LeafEffect]:
    """Measure what each tensor and number of a payload does to the output.

    It is replaced by zeros (ones, where it has zeros), and an output of another value or shape, or an
    exception, shows that the function reads it.  None and tensors without an element cannot be changed.
    """
    tokens = call.positions.size(-1)
    changes = [
        (place, payload)
        for place, leaf, payload in structures.with_one_changed(_other_value, call.payload)
        if leaf is not None and not (isinstance(leaf, Tensor) and leaf.numel() == 0)
    ]
    if not changes or not tokens:
        return []
    (own,) = run_uncompiled(function, [call])
    structure = tuple(place for place, _ in changes)
    found = []
    for place, payload in changes:
        (changed,) = run_uncompiled(function, [replace(call, payload=payload)])
        outputs = own.answer, changed.answer
        both = isinstance(outputs[0], Tensor) and isinstance(outputs[1], Tensor)
        found.append(
            LeafEffect(f"payload{place}", tokens, apart(*outputs) if both else NOT_FINITE, structure)  # type: ignore[arg-type]
        )
    return found


def _other_value(leaf: object) -> object:
    """Return another value in place of one of a payload; None where no other value is known."""
    if isinstance(leaf, Tensor):
        if leaf.dtype is torch.bool:
            return ~leaf
        return torch.zeros_like(leaf) if leaf.count_nonzero() else torch.ones_like(leaf)
    if isinstance(leaf, bool):
        return not leaf
    if isinstance(leaf, int | float):
        return type(leaf)(0 if leaf else 1)
    return None


def most_by_place(effects: Iterable[Sequence[LeafEffect]]) -> Iterator[LeafEffect]:
    """Yield the effect of each place in the call where it does most, for each structure apart."""
    most: dict[tuple[tuple[str, ...], str], LeafEffect] = {}
    for leaf in (leaf for of_call in effects for leaf in of_call):
        key = leaf.structure, leaf.place
        if key not in most or leaf.effect > most[key].effect:
            most[key] = leaf
    yield from most.values()


def trace_of(calls: Sequence[Inputs], arm: ArmSpec) -> Trace:
    """Return a trace with one forward for each call; raises `UsageError` for an arm that captures graphs."""
    if arm.captured:
        raise UsageError(f"arm {arm.name}: captured graphs read fixed storage; play a buffer, not calls")
    sizes = [call.positions.size(-1) for call in calls]
    return Trace(max(sizes), tuple(Step(Op.FORWARD, size) for size in sizes))


def graphs_needed(calls: Sequence[Inputs], arm: ArmSpec) -> int:
    """Return the number of graphs that a right function needs: guards require one for each structure."""
    if arm.guards in {GuardPolicy.DROP_ALL, GuardPolicy.SHAPE_ENV_ONLY}:
        return graph_budget(trace_of(calls, arm), arm)
    kinds: dict[str, list[Inputs]] = {}
    for call in calls:
        kinds.setdefault(structures.kind(call.payload), []).append(call)
    return sum(graph_budget(trace_of(same, arm), arm) for same in kinds.values())
