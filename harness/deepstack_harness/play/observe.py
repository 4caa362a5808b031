"""A whole case: every step played, then stated as one observation."""

from collections.abc import Callable
from contextlib import closing, nullcontext

import torch

from deepstack_harness.arms.compile import CompiledSession
from deepstack_harness.arms.open import open_arm
from deepstack_harness.callers.by_name import caller_of
from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import GraphFacts, Observation, StepFacts
from deepstack_harness.contract.optional_members import innermost
from deepstack_harness.contract.protocols import BufferFactory, Session
from deepstack_harness.contract.trace import Step
from deepstack_harness.errors import NotMeasured
from deepstack_harness.play.model import Model
from deepstack_harness.play.player import Player
from deepstack_harness.probes.graphs import GraphProbe


def play(case: Case, model: Model, make_buffer: BufferFactory, caller: Engine | None = None) -> Observation:
    """Play `case` from a cold compiler, and state what was seen at every step.

    `caller` drives buffer and decoder instead of the one that the case names.

    Exceptions of the buffer and of the compiled call are facts of their step.  Where a
    step could not be measured the steps from there on are unavailable, and `error` says why.
    """
    caller = caller or caller_of(case)
    decoder, profile = caller.decoder(model.decoder), model.profile(case.trace.capacity)
    with torch.no_grad(), closing(open_arm(case.arm, decoder, profile)) as session:
        player = Player(case, model, make_buffer, session, caller)
        compiled = _compiled(session)
        probe = GraphProbe(compiled, case.arm.guards) if compiled else None
        with probe or nullcontext():
            steps, unmeasured = played_steps(case, player)
        graphs, error = _graph_facts(probe, compiled)
    return observation_of(case, model, player, steps, graphs, unmeasured or error)


def observation_of(
    case: Case,
    model: Model,
    player: Player,
    steps: tuple[StepFacts, ...],
    graphs: GraphFacts | None,
    error: str | None,
) -> Observation:
    """Put together what was measured of a case."""
    return Observation(
        dtype=case.dtype,
        device=str(model.device),
        levels=model.family.levels,
        hidden=model.family.hidden,
        torch=str(torch.__version__),
        steps=steps,
        graphs=graphs,
        vision=player.vision,
        routed=model.family.routed,
        error=error,
    )


def played_steps(
    case: Case, player: Player, announce: Callable[[int, Step], None] | None = None
) -> tuple[tuple[StepFacts, ...], str | None]:
    """Play all steps; return their facts, and what kept a step from being measured.

    `announce` is called with the number of each step, from 1, and the step, before it is played.
    """
    done: list[StepFacts] = []
    try:
        for index, step in enumerate(case.trace):
            if announce is not None:
                announce(index + 1, step)
            done.append(player.play(index, step))  # what was played before an error stays
    except NotMeasured as error:
        said = f"step {len(done) + 1} '{case.trace.steps[len(done)]}': {error}"
        rest = case.trace.steps[len(done) :]
        lost = [StepFacts(str(step), case.trace.capacity, unavailable=said) for step in rest]
        return (*done, *lost), said
    return tuple(done), None


def _compiled(session: Session) -> CompiledSession | None:
    """The session that compiles, which may stand inside one that captures."""
    inner = innermost(session)
    return inner if isinstance(inner, CompiledSession) else None


def _graph_facts(
    probe: GraphProbe | None, session: CompiledSession | None
) -> tuple[GraphFacts | None, str | None]:
    # A decoder that was never reached, because the buffer raised first, has no graphs to count.
    if probe is None or session is None or session.calls == 0:
        return None, None
    try:
        return probe.facts(), None
    except NotMeasured as error:
        return None, str(error)
