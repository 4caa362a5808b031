"""A function and its inputs, in place of a decoder, a buffer and an engine.

`compile_arms.calls` compares any function with itself compiled.  The inputs are drawn once and copied for
each call, so that every arm and the eager reference are called with the same values in the same structure.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from deepstack_harness.catalogue.plans import graph_budget
from deepstack_harness.compile.torch_compat import structures
from deepstack_harness.contract.arm import ArmSpec, GuardPolicy, PayloadPolicy
from deepstack_harness.contract.observation import NOT_FINITE
from deepstack_harness.contract.protocols import Inputs, Lane
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.errors import UsageError
from deepstack_harness.models.engine import Engine
from deepstack_harness.play.model import NumericsProbe, distance
from deepstack_harness.play.state import DecoderState
from deepstack_harness.text import plural

T = TypeVar("T")


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


def copy_inputs(inputs: Inputs) -> Inputs:
    """Return equal inputs in other memory, with the strides and the shared storage of the originals."""
    memo: dict[int, object] = {}

    def copy_leaf(leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        # deepcopy refuses what autograd made.
        return copy.deepcopy(leaf.detach(), memo).requires_grad_(leaf.requires_grad)

    return Inputs(*structures.map_leaves(copy_leaf, (inputs.hidden, inputs.positions, inputs.payload)))


def _zeroed(payload: T) -> T:
    """Return a payload with zeros in its floating-point tensors, and all else as it is."""
    return structures.map_leaves(
        lambda leaf: (
            torch.zeros_like(leaf) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
        ),
        payload,
    )


class FunctionModule(nn.Module):
    """A function as a decoder: it is called with hidden (n, h), positions (3, n) and the payload as it is."""

    def __init__(self, function: Callable[..., Tensor], device: torch.device) -> None:
        """Take a function that runs on `device`."""
        super().__init__()
        self._function = function
        # The probes read from it where the function runs.
        self.place = nn.Parameter(torch.empty(0, device=device), requires_grad=False)

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: object) -> Tensor:
        """Call the function -> (n, h)."""
        return self._function(hidden, positions, payload)


class _ZeroedPayload(nn.Module):
    """The control arm of a function: it is called with its own payload, zeroed."""

    def __init__(self, decoder: nn.Module, engine: "GivenCalls") -> None:
        super().__init__()
        self._decoder = decoder
        self._engine = engine

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: object) -> Tensor:
        out: Tensor = self._decoder(hidden, positions, _zeroed(self._engine.current.payload))
        return out


class GivenCalls(Engine):
    """Engine that calls the session with given inputs, one after the other."""

    def __init__(self, calls: Sequence[Inputs], arm: ArmSpec) -> None:
        """Take the inputs of all steps, in order, and the arm: a control takes their values away."""
        self._upcoming = iter(calls)
        self._zeroed = arm.payload is PayloadPolicy.ZERO
        self.current = calls[0]

    @override
    def decoder(self, decoder: nn.Module) -> nn.Module:
        return _ZeroedPayload(decoder, self) if self._zeroed else decoder

    @override
    def inputs(self, step: Step, inputs: Inputs) -> Inputs:
        self.current = next(self._upcoming)
        return self.current

    @override
    def forward(self, lane: Lane, inputs: Inputs, step: Step) -> Tensor:
        given = copy_inputs(inputs)
        payload = given.payload
        tensors = (leaf for _, leaf in structures.leaves(payload) if isinstance(leaf, Tensor))
        lane.record_graph_input(None if payload is None else tuple(tensors))
        return lane.run(given)


class GivenBuffer:
    """A buffer whose get returns the payloads of given inputs in their order, whatever was set."""

    def __init__(self, calls: Sequence[Inputs], capacity: int) -> None:
        """Take the inputs of all steps, and a capacity: the rows of the largest call."""
        self._upcoming = iter(calls)
        self.capacity = capacity

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return the payload of the next call, of any structure."""
        return next(self._upcoming).payload

    def set(self, payload: Tensor) -> None:
        """Drop a payload (levels, N, h): no trace of a call sets."""

    def clear(self, tokens: int) -> None:
        """Do nothing."""

    def resize(self, tokens: int) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class GivenBuffers:
    """A `deepstack_harness.contract.protocols.BufferFactory` of `GivenBuffer`."""

    calls: Sequence[Inputs]

    def __call__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> GivenBuffer:
        """Make a buffer that begins with the first call."""
        return GivenBuffer(self.calls, capacity)


class CallNumerics(NumericsProbe):
    """Probe that compares outputs of one function; its control is the payload as it is, zeroed."""

    def __init__(self, decoder: nn.Module, width: int, state: DecoderState, *, thorough: bool) -> None:
        """Take the function as a decoder, the width of its outputs, and the state that it may keep."""
        super().__init__(decoder, 0, width, thorough=thorough, state=state)

    @override
    def _without_values(self, parts: Sequence[Inputs]) -> Tensor | None:
        (call,) = parts
        return self.output(replace(call, payload=_zeroed(call.payload)))

    def output(self, call: Inputs) -> Tensor | None:
        """Return the uncompiled output (n, h), and leave the state as it was; None where it raises."""
        with self._preserved():
            try:
                return self._run(call, call.payload)
            except Exception:  # noqa: BLE001  # a function may raise anything for values that it did not expect
                return None

    @override
    def _run(self, part: Inputs, payload: tuple[Tensor, ...] | None) -> Tensor:
        given = copy_inputs(replace(part, payload=payload))
        return super()._run(given, given.payload)

    @override
    def _exact_run(self, part: Inputs) -> Tensor:
        given = copy_inputs(part)
        hidden, payload = structures.map_leaves(
            lambda leaf: leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf,
            (given.hidden, given.payload),
        )
        out: Tensor = self._exact(hidden, given.positions, payload)
        return out


@dataclass(frozen=True)
class LeafEffect:
    """How far one tensor or number of the payload moves the eager output, in the call where it does most."""

    place: str
    tokens: int
    effect: float


def leaf_effects(numerics: CallNumerics, calls: Iterable[Inputs]) -> list[LeafEffect]:
    """Measure what each tensor and number of the payloads does to the output, for each structure apart.

    It is replaced by zeros (ones, where it has zeros), and an output of another value or shape, or an
    exception, shows that the function reads it.  None and tensors without an element cannot be changed.
    """
    effects: dict[tuple[tuple[str, ...], str], LeafEffect] = {}
    for call in calls:
        tokens = call.positions.size(-1)
        changes = [
            (place, payload)
            for place, leaf, payload in structures.with_one_changed(_other_value, call.payload)
            if leaf is not None and not (isinstance(leaf, Tensor) and leaf.numel() == 0)
        ]
        eager = numerics.output(call) if changes and tokens else None
        if eager is None:
            continue
        structure = tuple(place for place, _ in changes)
        for place, payload in changes:
            changed = numerics.output(replace(call, payload=payload))
            moved = NOT_FINITE if changed is None else distance(changed, eager)
            known = effects.get((structure, place))
            if known is None or moved > known.effect:
                effects[structure, place] = LeafEffect(f"payload{place}", tokens, moved)
    return list(effects.values())


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


def most_tensors(calls: Iterable[Inputs]) -> int:
    """Return the largest number of tensors in a payload."""
    counts = (sum(isinstance(leaf, Tensor) for _, leaf in structures.leaves(call.payload)) for call in calls)
    return max(counts, default=0)


def trace_of(sizes: Sequence[int], arm: ArmSpec) -> Trace:
    """Return a trace with one forward for each size; raises `UsageError` for an arm that captures graphs."""
    if arm.captured:
        raise UsageError(f"arm {arm.name}: captured graphs read fixed storage; play a buffer, not calls")
    return Trace(max(sizes), tuple(Step(Op.FORWARD, size) for size in sizes))


def graphs_needed(calls: Sequence[Inputs], arm: ArmSpec) -> int:
    """Return the number of graphs that a right function needs: guards require one for each structure."""
    sizes = [call.positions.size(-1) for call in calls]
    if arm.guards in {GuardPolicy.DROP_ALL, GuardPolicy.SHAPE_ENV_ONLY}:
        return graph_budget(trace_of(sizes, arm), arm)
    kinds: dict[str, list[int]] = {}
    for tokens, call in zip(sizes, calls, strict=True):
        kinds.setdefault(structures.kind(call.payload), []).append(tokens)
    return sum(graph_budget(trace_of(same, arm), arm) for same in kinds.values())
