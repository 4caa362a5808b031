"""A whole case: every step played, then stated as one observation.

`play` plays a case from a cold compiler; `SharedSession` plays many cases on a session that is compiled once.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import cast

import torch
from torch import Tensor, nn

from deepstack_harness.catalogue.registry import family_named
from deepstack_harness.compile.captured import capturing, open_arm, open_inner
from deepstack_harness.compile.eager import EagerSession
from deepstack_harness.compile.torch_compat import dynamo
from deepstack_harness.compile.torch_compat.modes import filled_with_nan
from deepstack_harness.contract.arm import GuardPolicy
from deepstack_harness.contract.case import HIDDEN_ALONE, LEVELS_ALONE, Case, Compare
from deepstack_harness.contract.observation import GraphFacts, Observation, StepFacts
from deepstack_harness.contract.protocols import (
    BufferFactory,
    Family,
    Profile,
    Session,
    innermost,
    payload_kind,
)
from deepstack_harness.contract.trace import Step
from deepstack_harness.errors import NotMeasured, UsageError
from deepstack_harness.models.engine import Engine, caller_of
from deepstack_harness.play.attempt import Attempt, attempt
from deepstack_harness.play.clock import own_time
from deepstack_harness.play.model import Model, NumericsProbe, shared_model
from deepstack_harness.play.player import CasePlayer
from deepstack_harness.play.tampering import Instruments

OnProgress = Callable[[Observation | StepFacts], None]
"""Called with the observation without steps before the first step, and then with the facts of each step."""


def play(
    case: Case,
    model: Model,
    make_buffer: BufferFactory,
    caller: Engine | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> Observation:
    """Play `case` from a cold compiler, and return what was seen at every step.

    `caller` is the engine that calls buffer and decoder, by default the one that the case names.

    Exceptions of the buffer and of the compiled call are facts of their step. Where a step could not be
    measured, that step and all later ones are unavailable, and `error` has the reason.
    """
    caller, tell = caller or caller_of(case), on_progress or (lambda _: None)
    decoder, profile = caller.decoder(decoder_of(case, model)), model.sizes(case.trace)
    with mode_of(case), closing(open_arm(case.arm, decoder, profile)) as session:
        made = attempt("make", lambda: CasePlayer(case, model, make_buffer, session, caller))
        player = made.value
        if player is None:
            return without_buffer(case, model, made, tell)
        beginning = without_steps(case, model, player)
        tell(beginning)
        instruments = Instruments()
        steps, unmeasured = played_steps(case, player, tell=tell)
        graphs, error = _graph_facts(innermost(session), case.arm.guards)
        tampering = player.records.tampering or instruments.replaced()
        error = error or _unserved(case, player)
    return replace(beginning, steps=steps, graphs=graphs, error=unmeasured or error, tampering=tampering)


def _unserved(case: Case, player: CasePlayer) -> str | None:
    """Return an error where the arm is about a saved graph and no step was served by one."""
    if not case.arm.reloaded or player.served_reloaded:
        return None
    return "no step was served by the reloaded artifact: a trace needs two steps that run the decoder"


def without_buffer(
    case: Case, model: Model, made: Attempt[CasePlayer], tell: OnProgress = lambda _: None
) -> Observation:
    """Return the observation of a buffer that cannot be made with these sizes: its first step raised."""
    first = StepFacts(
        str(case.trace.steps[0]), case.trace.capacity, raised=made.raised, unavailable=made.unavailable
    )
    steps = (first, *not_played(case, 1, "the buffer could not be made"))
    beginning = without_steps(case, model, None)
    tell(beginning)
    for facts in steps:
        tell(facts)
    return replace(beginning, steps=steps)


def without_steps(case: Case, model: Model, player: CasePlayer | None) -> Observation:
    """Return the observation of a case before its first step; None for a buffer that cannot be made."""
    sizes, vision = model.sizes(case.trace), player is None or player.vision
    return Observation(
        dtype=str(sizes.dtype).removeprefix("torch."), device=str(model.device), levels=sizes.levels,
        hidden=sizes.hidden, torch=str(torch.__version__), steps=(), vision=vision,
        routed=model.family.routed, capacity=player.first_capacity if player else None,
        payload_kind=case.buffer.adapter.payload_kind if case.buffer.adapter else payload_kind(model.family),
    )  # fmt: skip


class _NoDecoder(torch.nn.Module):
    """Stand-in for a decoder where only rows are judged: a graph then has get and clear in it."""

    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Return the hidden states (n, h)."""
        return hidden


@contextmanager
def mode_of(case: Case) -> Iterator[None]:
    """Enter the mode that the whole life of the case's buffer is under, with a clock of its own.

    Where no decoder runs, memory that nobody has written is filled with NaN, to find reads of it; a decoder
    runs with torch's default.
    """
    without_decoder = case.compare is Compare.NOTHING and not case.arm.compiled
    mode = torch.inference_mode() if case.trace.mode == "inference" else torch.no_grad()
    with mode, own_time(), filled_with_nan() if without_decoder else nullcontext():
        yield


def decoder_of(case: Case, model: Model) -> torch.nn.Module:
    """Return the decoder that the arm runs; raises `UsageError` where it does not fit the buffer."""
    if case.compare is Compare.NOTHING:
        return _NoDecoder()
    if case.trace.changes_sizes:
        raise UsageError(
            f"trace '{case.trace}' states sizes of its buffer that no decoder has: it can be checked, fuzzed "
            "on a buffer alone, and audited"
        )
    return model.decoder


def played_steps(
    case: Case,
    player: CasePlayer,
    *,
    announce: Callable[[int, Step], None] = lambda *_: None,
    tell: OnProgress = lambda _: None,
) -> tuple[tuple[StepFacts, ...], str | None]:
    """Play all steps; return their facts, and why a step could not be measured.

    `announce` is called with the number of each step, from 1, and the step, before it is played; `tell`
    with its facts afterwards.
    """
    done: list[StepFacts] = []
    try:
        for index, step in enumerate(case.trace):
            announce(index + 1, step)
            done.append(player.play(index, step))  # what was played before an error stays
            tell(done[-1])
    except NotMeasured as error:
        why = f"step {len(done) + 1} '{case.trace.steps[len(done)]}': {error}"
        return (*done, *not_played(case, len(done), why)), why
    return tuple(done), None


def not_played(case: Case, done: int, why: str) -> list[StepFacts]:
    """Return facts of the steps after the first `done`, none of which was played."""
    rest = case.trace.steps[done:]
    return [StepFacts(str(step), case.trace.capacity, unavailable=why) for step in rest]


def _graph_facts(session: Session, policy: GuardPolicy) -> tuple[GraphFacts | None, str | None]:
    """Return the compiler's work on a session that compiles, or the reason why it was not measured."""
    # A decoder that was never reached, because the buffer raised first, has no graphs to count.
    if not isinstance(session, EagerSession) or not session.calls:
        return None, None
    from deepstack_harness.compile import compiled, graph_counts

    assert isinstance(session, compiled.CompiledSession)
    try:
        return graph_counts.graph_facts(session, policy), None
    except NotMeasured as error:
        return None, str(error)


class SharedSession:
    """One session at a time, which cases of one family, arm and caller use one after the other.

    Each case has a fresh buffer, and graphs of its own where the arm captures. Compiled code stays, so that
    a case may use what was compiled for the cases before it. A session that reached the recompile limit is
    closed at the end of its case.
    """

    def __init__(self) -> None:
        """Open nothing yet."""
        self._session: EagerSession | None = None
        self._opened_for = ""
        self._facts: GraphFacts | None = None

    def play(
        self, case: Case, make_buffer: BufferFactory, announce: Callable[[int, Step], None] = lambda *_: None
    ) -> Observation:
        """Play a case; `announce` is called with each step and its number, from 1, before it is played."""
        if case.compare is Compare.NOTHING:
            model = _sizes_alone(case.family)
        else:
            model = shared_model(case.family, case.dtype, case.device, case.seed)
        caller = caller_of(case)
        if case.arm.reloaded:  # an artifact is made from the first step of a case, not of the case before
            self.close()
        with mode_of(case):
            inner = self._open(case, caller.decoder(decoder_of(case, model)), model.sizes(case.trace))
            session = capturing(case.arm, inner, model.profile(case.trace.capacity))
            inner.forget_failures()
            made = attempt("make", lambda: CasePlayer(case, model, make_buffer, session, caller))
            player = made.value
            if player is None:
                return without_buffer(case, model, made)
            steps, unmeasured = played_steps(case, player, announce=announce)
            tampering = player.records.tampering
        graphs, error = self._graph_facts(case, inner)
        error = error or _unserved(case, player)
        if inner.limit_hit:
            self.close()
        beginning = without_steps(case, model, player)
        return replace(beginning, steps=steps, graphs=graphs, error=unmeasured or error, tampering=tampering)

    def close(self) -> None:
        """Drop what was compiled."""
        if self._session is not None:
            self._session.close()
        self._session, self._facts = None, None

    def _open(self, case: Case, decoder: nn.Module, profile: Profile) -> EagerSession:
        wanted = f"{case.group} {case.caller} {case.dtype}"
        if self._session is None or wanted != self._opened_for:
            self.close()
            self._session, self._opened_for = open_inner(case.arm, decoder, profile), wanted
        return self._session

    def _graph_facts(self, case: Case, session: EagerSession) -> tuple[GraphFacts | None, str | None]:
        """Return the compiler's work on this session so far, and why it is unknown where it is."""
        if self._facts is None or self._facts.graphs != dynamo.graphs_built() or session.limit_hit:
            self._facts, error = _graph_facts(session, case.arm.guards)
            return self._facts, error
        return replace(self._facts, failed=session.failed_guards()), None


class _Sizes:
    """Sizes of a buffer without a decoder, in place of a family."""

    levels = LEVELS_ALONE
    hidden = HIDDEN_ALONE
    routed = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.payload_kind = payload_kind(family_named(name))


@cache
def _sizes_alone(family: str) -> Model:
    """Return the sizes of a buffer without a decoder; the decoder of the model is never called."""
    nothing = nn.Linear(1, 1)
    probe = NumericsProbe(nothing, LEVELS_ALONE, HIDDEN_ALONE)
    return Model(cast(Family, _Sizes(family)), nothing, probe, torch.float32, torch.device("cpu"))
