"""Play a trace over a decoder and a buffer under an arm, and observe every step.

Beside the lane under test runs a reference lane: a buffer of the same revision
and the same decoder, uncompiled, given the same payloads.  Its outputs are what
compiled ones are compared with.
"""

import traceback
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from harness.arms.compile import CompiledSession
from harness.case import (
    Answer,
    CallName,
    Case,
    Compare,
    Distances,
    GraphFacts,
    Observation,
    Raised,
    StepFacts,
)
from harness.devices import parse_device, parse_dtype
from harness.errors import HarnessError, NotMeasured, StepUnavailable
from harness.probes.graphs import GraphProbe
from harness.probes.numerics import NumericsProbe
from harness.probes.rows import RowOwners, answer_facts
from harness.protocols import Buffer, BufferFactory, Family, Inputs, Profile, Session
from harness.registry import FAMILIES, resolve
from harness.torch_compat import dynamo
from harness.trace import Op, Step

T = TypeVar("T")
_TORCH = str(Path(torch.__file__).parent)
_REUSED = -1000.0
"""What a caller writes over its tensor after `set` returned: a buffer must have copied."""


@dataclass(frozen=True)
class Model:
    """A family's decoder, made once and shared by all cases of one dtype, device and seed."""

    family: Family
    decoder: torch.nn.Module
    numerics: NumericsProbe
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def build(cls, family: str, dtype: str = "float32", device: str = "cpu", seed: int = 0) -> "Model":
        """Draw the weights.

        Raises `UsageError` for an unknown name, `MachineError` for a device that is not here.
        """
        found: Family = resolve("family", FAMILIES, family)  # type: ignore[assignment]
        torch_dtype, torch_device = parse_dtype(dtype), parse_device(device)
        decoder = found.build(dtype=torch_dtype, device=torch_device, seed=seed)
        return cls(
            found, decoder, NumericsProbe(decoder, found.levels, found.hidden), torch_dtype, torch_device
        )

    def profile(self, capacity: int) -> Profile:
        """The largest sizes of a trace with this capacity."""
        return Profile(capacity, self.family.hidden, self.family.levels, self.dtype, self.device)


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """What one call gave: a value, or what it raised, or that there is no such call."""

    value: T | None = None
    raised: Raised | None = None
    unavailable: str | None = None

    @property
    def returned(self) -> bool:
        """Whether the call came back."""
        return self.raised is None and self.unavailable is None


class Player:
    """Plays the steps of one case in order; see `play`."""

    def __init__(self, case: Case, model: Model, make_buffer: BufferFactory, session: Session) -> None:
        """Make the buffer under test, empty, and beside it that of the reference lane."""
        self._case = case
        self._model = model
        self._session = session
        family, capacity = model.family, case.trace.capacity
        lanes = 1 if case.compare is Compare.NOTHING else 2
        self._lanes = [
            make_buffer(capacity, family.hidden, family.levels, dtype=model.dtype, device=model.device)
            for _ in range(lanes)
        ]
        self._buffer = self._lanes[0]
        self._owners = RowOwners()
        self._sets = 0
        # Answers are kept: freed storage could be handed out again at the same
        # address, which would hide that a buffer moved.
        self._answers: list[tuple[Tensor, ...] | None] = []

    @property
    def vision(self) -> bool:
        """Whether the buffer belongs to a model with a vision tower."""
        return bool(getattr(self._buffer, "vision", True))

    def play(self, index: int, step: Step) -> StepFacts:
        """Do one step (index from 0) in both lanes."""
        match step.op:
            case Op.SET:
                return self._facts(step, self._set(step))
            case Op.GET:
                return self._get(step)
            case Op.CLEAR:
                return self._change(step, lambda buffer: buffer.clear(step.tokens))
            case Op.RESIZE:
                return self._change(step, lambda buffer: buffer.resize(step.tokens))
            case Op.FORWARD | Op.PROFILE:
                return self._forward(index, step)
            case Op.CAPTURE:
                return self._facts(step, attempt("capture", lambda: self._session.capture(step.tokens)))
            case Op.REPLAY:
                return self._facts(step, attempt("replay", lambda: self._session.replay(step.tokens)))
            case Op.RELOAD:
                return self._facts(step, attempt("reload", self._session.reload))

    def _set(self, step: Step) -> "Attempt[None]":
        payload = self._payload(step)
        self._owners.remember(self._sets, payload)
        attempts = [self._set_and_reuse(buffer, payload.clone()) for buffer in self._lanes]
        self._owners.remember(-self._sets, torch.full_like(payload, _REUSED - self._sets))
        return attempts[0]

    def _set_and_reuse(self, buffer: Buffer, payload: Tensor) -> "Attempt[None]":
        done = attempt("set", lambda: buffer.set(payload))
        payload.fill_(_REUSED - self._sets)
        return done

    def _payload(self, step: Step) -> Tensor:
        self._sets += 1
        family = self._model.family
        levels = family.levels if step.levels is None else step.levels
        hidden = family.hidden if step.hidden is None else step.hidden
        return self._random((levels, step.tokens, hidden), salt=self._sets)

    def _random(self, shape: tuple[int, ...], salt: int) -> Tensor:
        # Drawn on the CPU, so that every device gets the same numbers.
        generator = torch.Generator().manual_seed(self._case.seed * 1_000_003 + salt)
        drawn = torch.randn(shape, generator=generator)
        return drawn.to(dtype=self._model.dtype, device=self._model.device)

    def _change(self, step: Step, change: Callable[[Buffer], None]) -> StepFacts:
        call: CallName = "clear" if step.op is Op.CLEAR else "resize"
        attempts = [attempt(call, partial(change, buffer)) for buffer in self._lanes]
        return self._facts(step, attempts[0])

    def _get(self, step: Step) -> StepFacts:
        got, *_ = [attempt("get", partial(buffer.get, step.tokens)) for buffer in self._lanes]
        return self._facts(step, got, self._answer(got))

    def _answer(self, got: "Attempt[tuple[Tensor, ...] | None]") -> Answer | None:
        self._answers.append(got.value)
        return answer_facts(got.value, self._owners) if got.returned else None

    def _forward(self, index: int, step: Step) -> StepFacts:
        for buffer in self._lanes:
            _begin(buffer, step)
        got = attempt("get", lambda: self._buffer.get(step.tokens))
        answer = self._answer(got)
        if not got.returned:
            return self._facts(step, got)
        ran, distances = self._decode(index, step, got.value)
        if not ran.returned:
            return self._facts(step, ran, answer)
        cleared = attempt("clear", lambda: self._buffer.clear(step.tokens))
        return self._facts(step, cleared, answer, distances)

    def _decode(
        self, index: int, step: Step, payload: tuple[Tensor, ...] | None
    ) -> "tuple[Attempt[Tensor], Distances | None]":
        if self._case.compare is Compare.NOTHING:
            return Attempt(), None
        hidden = self._random((step.tokens, self._model.family.hidden), salt=-1 - index)
        inputs = Inputs(hidden, self._model.family.positions(step.tokens, self._model.device), payload)
        ran = attempt("decoder", lambda: self._session.forward(inputs))
        return ran, self._compare(step, ran, inputs)

    def _compare(self, step: Step, ran: "Attempt[Tensor]", inputs: Inputs) -> Distances | None:
        beside = self._lanes[1]
        reference = attempt("get", lambda: beside.get(step.tokens))
        inputs = Inputs(inputs.hidden, inputs.positions, reference.value)
        eager = attempt("decoder", lambda: self._model.numerics.eager(inputs))
        distances = None
        if reference.returned and eager.value is not None and ran.value is not None and step.tokens > 0:
            thorough = self._case.compare is Compare.ALL
            distances = self._model.numerics.distances(ran.value, inputs, eager.value, thorough=thorough)
        attempt("clear", lambda: beside.clear(step.tokens))
        return distances

    def _facts(
        self,
        step: Step,
        last: "Attempt[None] | Attempt[Tensor] | Attempt[tuple[Tensor, ...] | None]",
        answer: Answer | None = None,
        distances: Distances | None = None,
    ) -> StepFacts:
        return StepFacts(
            step=str(step),
            capacity=self._buffer.capacity,
            generation=getattr(self._buffer, "generation", None),
            answer=answer,
            raised=last.raised,
            unavailable=last.unavailable,
            distances=distances,
            graphs=dynamo.graphs_built() if self._case.arm.compiled else 0,
        )


def _begin(buffer: Buffer, step: Step) -> None:
    """Let a buffer that is driven as an engine drives it see a step that may carry no payload."""
    begin = getattr(buffer, "begin_step", None)
    if begin is not None:
        begin(step.tokens, profile=step.op is Op.PROFILE)


def attempt(call: CallName, function: Callable[[], T]) -> Attempt[T]:
    """Call `function` and keep what came of it; errors of the harness itself come through."""
    try:
        return Attempt(value=function())
    except HarnessError:
        raise
    except StepUnavailable as missing:
        return Attempt(unavailable=str(missing))
    except Exception as error:  # noqa: BLE001  # whatever a buffer or a compiled call raises is a fact
        message = (str(error).strip().splitlines() or [""])[0]
        return Attempt(raised=Raised(type(error).__name__, message, call, _where(error)))


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith(_TORCH)]
    return f"{outside[-1].filename}:{outside[-1].lineno}"


def play(case: Case, model: Model, make_buffer: BufferFactory) -> Observation:
    """Play `case` from a cold compiler, and state what was seen at every step.

    Exceptions of the buffer and of the compiled call are facts of their step.
    """
    with (
        torch.no_grad(),
        closing(case.arm.open(model.decoder, model.profile(case.trace.capacity))) as session,
    ):
        player = Player(case, model, make_buffer, session)
        probe = GraphProbe(session, case.arm.guards) if isinstance(session, CompiledSession) else None
        with probe or nullcontext():
            steps = tuple(player.play(index, step) for index, step in enumerate(case.trace))
        graphs, error = _graph_facts(probe, session)
    return Observation(
        dtype=case.dtype,
        device=str(model.device),
        levels=model.family.levels,
        hidden=model.family.hidden,
        torch=str(torch.__version__),
        steps=steps,
        graphs=graphs,
        vision=player.vision,
        error=error,
    )


def _graph_facts(probe: GraphProbe | None, session: Session) -> tuple[GraphFacts | None, str | None]:
    # A decoder that was never reached, because the buffer raised first, has no graphs to count.
    if probe is None or not isinstance(session, CompiledSession) or session.calls == 0:
        return None, None
    try:
        return probe.facts(), None
    except NotMeasured as error:
        return None, str(error)
