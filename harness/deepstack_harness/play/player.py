"""The steps of one case, played in order in both lanes."""

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.compile.torch_compat.modes import FailingAllocation
from deepstack_harness.contract.arm import Capture
from deepstack_harness.contract.case import Case, Compare
from deepstack_harness.contract.observation import (
    CallName,
    Distances,
    GraphUse,
    ShardFacts,
    StateFacts,
    StepFacts,
)
from deepstack_harness.contract.protocols import (
    Buffer,
    BufferFactory,
    Inputs,
    Session,
    begin_step,
    begins_steps,
    generation_of,
    has_vision,
    payload_kind,
    release,
    resize,
    take_accesses,
)
from deepstack_harness.contract.rules import PayloadKind
from deepstack_harness.contract.trace import SECOND, Op, Step
from deepstack_harness.errors import StepUnavailable
from deepstack_harness.models.engine import Engine
from deepstack_harness.play.attempt import Attempt, attempt
from deepstack_harness.play.clock import let_pass
from deepstack_harness.play.lane import PlayedLane, ReferenceLane
from deepstack_harness.play.model import Model
from deepstack_harness.play.rows import StorageWatch, join_answers
from deepstack_harness.play.state import LaneStates
from deepstack_harness.play.tampering import Records
from deepstack_harness.play.tensors import StepTensors, count_of

T = TypeVar("T")
_DUMMY = 1_000_000
"""Added to the index of the inputs of a dummy run, so that they differ from the inputs of all steps."""


def _repeat(step: Step, call: Callable[[], None]) -> None:
    """Call `call` as often as its step states."""
    for _ in range(step.calls or 1):
        call()


class CasePlayer:
    """Player of one case: it does the steps in order; see `play`."""

    def __init__(
        self, case: Case, model: Model, make_buffer: BufferFactory, session: Session, caller: Engine
    ) -> None:
        """Make the buffer under test, empty, and that of the reference lane."""
        self._case = case
        self._model = model
        self._session = session
        self._caller = caller
        self._correct = Engine()
        every_token = payload_kind(model.family) is PayloadKind.EVERY_TOKEN
        # Batches that only decode have such a payload too.
        self._decodes_with_payload = every_token
        # A second run would add to what an interpreted kernel touched.
        self._every_token = every_token and not case.arm.interpreted
        self._sizes = sizes = model.sizes(case.trace)
        self.records = Records()
        self._tensors = StepTensors(case, model)
        self.records.add(self._tensors.owners)
        self._states = LaneStates(model.state) if model.state else None
        self._lanes = {
            name: PlayedLane(
                caller.buffer(make_buffer, sizes),
                session,
                self._tensors.owners,
                self.records,
                notes_given=caller.ranks > 1,
            )
            for name in (None, SECOND)[: case.trace.buffers]
        }
        self._lane = self._lanes[None]
        self._rows_only = case.compare is Compare.NOTHING
        # Graphs need the second buffer: freed storage shows only where nothing references what get returned.
        self._reference: ReferenceLane | None = None
        if not self._rows_only or case.arm.captured:
            with nullcontext() if self._states is None else self._states.reference():
                buffer = self._correct.buffer(make_buffer, sizes)
            self._reference = ReferenceLane(buffer, model, self._states)
        self._first_reference = self._reference
        self.records.add(self, self._tensors, *self._lanes.values())
        self._watch = StorageWatch()
        self._captured_in: dict[int, int | None] = {}
        self._loaded = False
        self.served_reloaded = 0
        """Steps that a loaded artifact served, where the arm reloads."""
        self._failing: FailingAllocation | None = None
        self.first_capacity = self._stated_capacity().value
        """Token rows that the buffer stated before the first step; None where it raised."""

    @property
    def vision(self) -> bool:
        """True if the buffer belongs to a model with a vision tower."""
        return has_vision(self._lane.buffer)

    def play(self, index: int, step: Step) -> StepFacts:
        """Do one step (index from 0) in both lanes."""
        self._lane = self._lanes[step.on]
        self._reference = self._first_reference if step.on is None else None
        self._lane.begin_step()
        self._failing = None
        let_pass(step.after or 0)
        if self._states is not None:
            self._states.begin_step()
            self._model.numerics.noise = {}
        if step.op is not Op.GET:
            self._lane.forget_held_answers()
        match step.op:
            case Op.GET:
                return self._facts(step, self._get(step))
            case Op.SET:
                return self._set(step)
            case Op.CLEAR:
                clear = self._change(step, "clear", lambda buffer: buffer.clear(count_of(step)))
                return self._facts(step, clear)
            case Op.RESIZE:
                changed = self._change(step, "resize", lambda buffer: resize(buffer, count_of(step)))
                return self._facts(step, changed)
            case Op.CAPTURE:
                done = attempt("capture", lambda: self._capture_size(step.tokens))
                return self._facts(step, done, first=True)
            case Op.RELOAD:
                return self._facts(step, attempt("reload", self._reload))
        facts = self._replay(index, step) if step.op is Op.REPLAY else self._forward(index, step)
        self._lane.mixed = False
        return self._reloaded(facts) if self._case.arm.reloaded else facts

    def _reloaded(self, facts: StepFacts) -> StepFacts:
        """Save what the first step compiled, and go on in a process that loaded it."""
        self.served_reloaded += self._loaded
        if self._loaded or facts.raised or facts.unavailable:
            return facts
        done = attempt("reload", self._reload)
        self._loaded = done.returned
        return replace(facts, raised=done.raised, unavailable=done.unavailable)

    def _buffers(self) -> Sequence[tuple[Engine, Buffer]]:
        under_test = (self._caller, self._lane.buffer)
        return (
            [under_test] if self._reference is None else [under_test, (self._correct, self._reference.buffer)]
        )

    def _set(self, step: Step) -> StepFacts:
        payload = self._tensors.payload(step)
        content = self._tensors.content(payload)
        attempts = []
        for lane, (caller, buffer) in enumerate(self._buffers()):

            def set_payload(
                given: Tensor, lane: int = lane, caller: Engine = caller, buffer: Buffer = buffer
            ) -> Attempt[None]:
                with self._state_of(lane):
                    return self._call(step, "set", lambda: caller.set(buffer, given))

            attempts.append(self._tensors.give(lane, step, payload, set_payload))
        self._tensors.remember_reuse(payload)
        done, changed = attempts[0]
        self._lane.mixed = done.returned and not self._decodes_with_payload
        if done.returned and self._every_token:
            self._lane.real_rows = step.tokens
        return replace(self._facts(step, done), content=content, caller_changed=changed)

    def _call(self, step: Step, call: CallName, function: Callable[[], T]) -> Attempt[T]:
        """Call a method of a buffer, with the failing allocation that the step states."""
        if step.fail is None:
            with self.records.untouched(call):
                return attempt(call, function)
        failing = FailingAllocation(step.fail)
        with self.records.untouched(call), failing:
            done = attempt(call, function, runs_out=True)
        self._failing = self._failing or failing
        return done

    def _change(self, step: Step, call: CallName, change: Callable[[Buffer], None]) -> Attempt[None]:
        done = []
        for lane, (_, buffer) in enumerate(self._buffers()):
            with self._state_of(lane):
                work = partial(_repeat, step, partial(change, buffer))
                done.append(self._call(step, call, work))
        return done[0]

    def _state_of(self, lane: int) -> AbstractContextManager[None]:
        """Make a lane's state the decoder's state while open: 0 is the lane under test."""
        return self._reference.in_force() if lane and self._reference is not None else nullcontext()

    def _get(self, step: Step) -> Attempt[tuple[Tensor, ...] | None]:
        # What get returned is noted after the call, because noting allocates too.
        done = self._call(step, "get", lambda: self._lane.call_get(count_of(step), step.calls or 1))
        if done.returned:
            done = attempt("get", lambda: self._lane.record_answer(done.value))
        if self._reference is not None:
            self._reference.read(step.tokens)
        return done

    def _forward(self, index: int, step: Step) -> StepFacts:
        for lane, (_, buffer) in enumerate(self._buffers()):
            with self._state_of(lane):
                begin_step(buffer, step.tokens, profile=step.op is Op.PROFILE)
        if self._rows_only:

            def read_and_clear() -> None:
                self._lane.get(step.tokens)
                self._lane.clear(step.tokens)

            done = attempt("get", read_and_clear)
            if self._reference is not None:
                self._reference.follow(step.tokens)
            return self._facts(step, done)
        inputs = self._inputs(index, step)
        ran = attempt("caller", lambda: self._caller.forward(self._lane, inputs, step))
        if not self._lane.answers:
            return self._facts(step, ran)
        out = ran.value
        if out is None and self._lane.outputs and ran.raised and ran.raised.call == "clear":
            out = torch.cat(self._lane.outputs)  # only the clear after the decoder failed
        _, distances = self._compare(step, inputs, out)
        return self._facts(step, ran, distances)

    def _inputs(self, index: int, step: Step) -> Inputs:
        if self._rows_only:
            hidden = torch.zeros((step.tokens, 1), device=self._model.device)
            return Inputs(hidden, hidden.new_zeros(3, step.tokens), None)
        return self._caller.inputs(step, self._tensors.inputs(step.tokens, index))

    def _compare(
        self, step: Step, inputs: Inputs, out: Tensor | None
    ) -> tuple[tuple[Tensor, ...] | None, Distances | None]:
        """Do the step in the reference lane; its payload, and how far `out` is from its output."""
        reference = self._reference
        assert reference is not None  # nobody compares where there is no reference lane
        if self._rows_only:
            return reference.follow(step.tokens), None
        ranges, thorough = self._caller.parts(step.tokens), self._case.compare is Compare.ALL
        return reference.compare(step.tokens, inputs, ranges, out, thorough=thorough)

    def _capture_size(self, tokens: int) -> None:
        """Capture one size, with a dummy run before it, in both lanes."""
        reference = self._capturable()
        dummy = self._inputs(_DUMMY + tokens, Step(Op.CAPTURE, tokens))
        with self._lane.watched():
            self._session.capture(dummy, self._lane)
        for _ in range(2):
            self._watch.note_capture(tokens, reference.read(tokens), generation_of(reference.buffer))
            reference.clear(tokens)
        if self._states is not None:  # dummy runs of the decoder are no steps that could be compared
            self._states.adopt()
        self._captured_in[tokens] = self._generation

    def _capturable(self) -> ReferenceLane:
        """Return the reference lane.

        Raises `StepUnavailable` where a graph would not record what the case states.
        """
        if self._reference is None:
            raise StepUnavailable(f"arm {self._case.arm.name} captures no graphs")
        if begins_steps(self._lane.buffer):
            raise StepUnavailable("a class that is driven through its own forward is not captured")
        if self._caller.ranks > 1:
            raise StepUnavailable("graphs of steps that ranks share are not captured")
        if type(self._caller).forward is not Engine.forward:
            raise StepUnavailable(f"graphs of caller {self._case.caller} are not captured")
        return self._reference

    def _replay(self, index: int, step: Step) -> StepFacts:
        if self._captured_in.get(step.tokens, self._generation) != self._generation:
            # The generation changed: do this step without a graph, and capture all graphs again.
            facts = self._forward(index, step)
            again = attempt("capture", self._capture_again)
            use = replace(facts.graph_use or GraphUse(), allocated=self._lane.allocated)
            return replace(facts, raised=facts.raised or again.raised, graph_use=use)
        if self._lane.mixed and self._case.arm.capture is Capture.FULL_DECODE_ONLY:
            return self._forward(index, step)
        inputs = self._inputs(index, step)

        def replay() -> Tensor:
            with self._lane.watched():
                return self._session.replay(inputs, self._lane)

        ran = attempt("replay", replay)
        if ran.unavailable:
            return self._facts(step, ran)
        # A replay runs no get: what only the next get would announce is not announced yet.
        generation = None if self._reference is None else generation_of(self._reference.buffer)
        payload, distances = self._compare(step, inputs, ran.value)
        use = self._watch.replayed(step.tokens, payload, generation)
        return self._facts(step, ran, distances, use)

    def _capture_again(self) -> None:
        # Largest first, as engines do: storage that grows while it is captured moves before the others.
        for tokens in sorted(self._captured_in, reverse=True):
            self._capture_size(tokens)
        for lane, (_, buffer) in enumerate(self._buffers()):
            with self._state_of(lane):
                release(buffer)

    def _reload(self) -> None:
        if self._caller.ranks > 1:
            raise StepUnavailable(
                "a step that ranks share is not reloaded: the fresh process is not one of the ranks"
            )
        self._session.reload()
        self._states = None  # from now on it lies in the fresh process

    @property
    def _generation(self) -> int | None:
        return generation_of(self._lane.buffer)

    def _facts(
        self,
        step: Step,
        last: Attempt[None] | Attempt[Tensor] | Attempt[tuple[Tensor, ...] | None],
        distances: Distances | None = None,
        graph_use: GraphUse | None = None,
        *,
        first: bool = False,
    ) -> StepFacts:
        lane, caller = self._lane, self._caller
        capacity = self._stated_capacity()
        state: tuple[StateFacts, ...] = ()
        if self._states is not None:
            if step.on is not None:  # the reference lane has no part in it
                self._states.adopt()
            state = self._states.compare(self._model.numerics.noise)
        shards: tuple[ShardFacts, ...] = ()
        if lane.given:
            stray, own = distances.eager if distances else None, caller.owns(step.tokens)
            shards = (ShardFacts(caller.rank, caller.ranks, lane.given, stray, own),)
        generation = self._generation if self._reference is None else generation_of(self._reference.buffer)
        return StepFacts(
            step=str(step),
            capacity=self._sizes.capacity if capacity.value is None else capacity.value,
            generation=self._generation,
            answer=join_answers(lane.answers[:1] if first else lane.answers),
            raised=last.raised or capacity.raised,
            unavailable=last.unavailable,
            distances=distances,
            graphs=dynamo.graphs_built() if self._case.arm.compiled else 0,
            attended=max(lane.attended, default=None),
            graph_use=graph_use or self._watch.use(generation, lane.allocated),
            shards=shards,
            earlier_changed=lane.earlier_changed,
            failed_allocation=self._failing is not None and self._failing.failed,
            accesses=take_accesses(self._session),
            padding=lane.padding,
            state=state,
        )

    def _stated_capacity(self) -> Attempt[int]:
        return attempt("capacity", lambda: operator.index(self._lane.buffer.capacity))
