"""A whole case: every step played, then stated as one observation."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from deepstack_harness.arms.compile import CompiledSession
from deepstack_harness.arms.open import open_arm
from deepstack_harness.callers.by_name import caller_of
from deepstack_harness.callers.engine import Engine
from deepstack_harness.contract.case import Case, Compare
from deepstack_harness.contract.observation import GraphFacts, Observation, StepFacts
from deepstack_harness.contract.optional_members import innermost
from deepstack_harness.contract.protocols import BufferFactory, Session
from deepstack_harness.contract.trace import Step
from deepstack_harness.errors import NotMeasured, UsageError
from deepstack_harness.play.attempt import Attempt, attempt
from deepstack_harness.play.model import Model
from deepstack_harness.play.player import CasePlayer
from deepstack_harness.probes.graphs import GraphProbe
from deepstack_harness.torch_compat.uninitialized import filled_with_nan

OnProgress = Callable[[Observation | StepFacts], None]
"""Is given the observation without steps before the first step, and then the facts of each step."""


def play(
    case: Case,
    model: Model,
    make_buffer: BufferFactory,
    caller: Engine | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> Observation:
    """Play `case` from a cold compiler, and return what was seen at every step.

    `caller` drives buffer and decoder instead of the one that the case names.

    Exceptions of the buffer and of the compiled call are facts of their step.  Where a
    step could not be measured the steps from there on are unavailable, and `error` says why.
    """
    caller, tell = caller or caller_of(case), on_progress or (lambda _: None)
    decoder, profile = caller.decoder(decoder_of(case, model)), model.sizes(case.trace)
    with mode_of(case), closing(open_arm(case.arm, decoder, profile)) as session:
        made = attempt("make", lambda: CasePlayer(case, model, make_buffer, session, caller))
        player = made.value
        if player is None:
            return without_buffer(case, model, made, tell)
        compiled = _compiled(session)
        probe = GraphProbe(compiled, case.arm.guards) if compiled else None
        beginning = without_steps(case, model, player)
        tell(beginning)
        with probe or nullcontext():
            steps, unmeasured = played_steps(case, player, tell=tell)
        graphs, error = _graph_facts(probe, compiled)
    return replace(beginning, steps=steps, graphs=graphs, error=unmeasured or error)


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
    )  # fmt: skip


class _NoDecoder(torch.nn.Module):
    """Decoder stand-in where rows alone are judged: a graph then has get and clear in it."""

    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        """Return the hidden states (n, h)."""
        return hidden


@contextmanager
def mode_of(case: Case) -> Iterator[None]:
    """Enter the mode that the whole life of the case's buffer is under.

    A buffer alone also finds NaN wherever nobody has written; a decoder does as torch does by default.
    """
    alone = case.compare is Compare.NOTHING and not case.arm.compiled
    mode = torch.inference_mode() if case.trace.mode == "inference" else torch.no_grad()
    with mode, filled_with_nan() if alone else nullcontext():
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
    """Play all steps; return their facts, and what kept a step from being measured.

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
        said = f"step {len(done) + 1} '{case.trace.steps[len(done)]}': {error}"
        return (*done, *not_played(case, len(done), said)), said
    return tuple(done), None


def not_played(case: Case, done: int, why: str) -> list[StepFacts]:
    """Return facts of the steps behind the first `done`, none of which was played."""
    rest = case.trace.steps[done:]
    return [StepFacts(str(step), case.trace.capacity, unavailable=why) for step in rest]


def _compiled(session: Session) -> CompiledSession | None:
    """Return the session that compiles, which may stand inside one that captures."""
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
