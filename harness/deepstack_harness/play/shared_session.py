"""Play many cases on one session, which is compiled once."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import cast

import torch
from torch import nn

from deepstack_harness.arms.capture import capturing
from deepstack_harness.arms.compile import CompiledSession
from deepstack_harness.arms.eager import EagerSession
from deepstack_harness.arms.interpreted import InterpretedSession
from deepstack_harness.callers.by_name import caller_of
from deepstack_harness.contract.arm_spec import ArmSpec, Capture
from deepstack_harness.contract.case import HIDDEN_ALONE, LEVELS_ALONE, Case, Compare
from deepstack_harness.contract.observation import GraphFacts, Observation
from deepstack_harness.contract.protocols import BufferFactory, Family, Profile, Session
from deepstack_harness.contract.trace import Step
from deepstack_harness.errors import NotMeasured
from deepstack_harness.play.attempt import attempt
from deepstack_harness.play.in_process import shared_model
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import (
    decoder_of,
    mode_of,
    played_steps,
    without_buffer,
    without_steps,
)
from deepstack_harness.play.player import CasePlayer
from deepstack_harness.probes.graphs import GraphProbe
from deepstack_harness.probes.numerics import NumericsProbe
from deepstack_harness.torch_compat import dynamo


class SharedSession:
    """One session at a time, which cases of one family, arm and caller use one after the other.

    Each case has a fresh buffer, and graphs of its own where the arm captures.  Compiled code stays, so that
    a case may use what was compiled for the cases before it.  A session that reached the recompile limit is
    closed behind its case.
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
        alone = case.compare is Compare.NOTHING
        model = (
            _sizes_alone(case.family)
            if alone
            else shared_model(case.family, case.dtype, case.device, case.seed)
        )
        caller = caller_of(case)
        with mode_of(case):
            inner = self._open(case, caller.decoder(decoder_of(case, model)), model.sizes(case.trace))
            session = _capturing(case, inner, model)
            made = attempt("make", lambda: CasePlayer(case, model, make_buffer, session, caller))
            player = made.value
            if player is None:
                return without_buffer(case, model, made)
            steps, unmeasured = played_steps(case, player, announce=announce)
        graphs, error = self._graph_facts(case, inner)
        if isinstance(inner, CompiledSession) and inner.limit_hit:
            self.close()
        seen = without_steps(case, model, player)
        return replace(seen, steps=steps, graphs=graphs, error=unmeasured or error)

    def close(self) -> None:
        """Drop what was compiled."""
        if self._session is not None:
            self._session.close()
        self._session, self._facts = None, None

    def _open(self, case: Case, decoder: nn.Module, profile: Profile) -> EagerSession:
        wanted = f"{case.group} {case.caller} {case.dtype}"
        if self._session is None or wanted != self._opened_for:
            self.close()
            self._session, self._opened_for = _kind(case.arm)(case.arm, decoder, profile), wanted
        return self._session

    def _graph_facts(self, case: Case, session: EagerSession) -> tuple[GraphFacts | None, str | None]:
        """Return the compiler's work on this session so far, and the reason where it cannot be told."""
        if not isinstance(session, CompiledSession) or not session.calls:
            return None, None
        if self._facts is None or self._facts.graphs != dynamo.graphs_built() or session.limit_hit:
            probe = GraphProbe(session, case.arm.guards)
            with probe:
                pass
            try:
                self._facts = probe.facts()
            except NotMeasured as error:
                return None, str(error)
        return self._facts, None


def _kind(arm: ArmSpec) -> type[EagerSession]:
    if arm.interpreted:
        return InterpretedSession
    return CompiledSession if arm.compiled else EagerSession


def _capturing(case: Case, inner: EagerSession, model: Model) -> Session:
    if case.arm.capture is Capture.NONE:
        return inner
    return capturing(case.arm, inner, model.profile(case.trace.capacity))


class _Sizes:
    """Sizes of a buffer alone, in place of a family."""

    levels = LEVELS_ALONE
    hidden = HIDDEN_ALONE
    routed = False

    def __init__(self, name: str) -> None:
        self.name = name


@cache
def _sizes_alone(family: str) -> Model:
    """Return the sizes of a buffer alone, with a decoder that nobody calls."""
    nothing = nn.Linear(1, 1)
    probe = NumericsProbe(nothing, LEVELS_ALONE, HIDDEN_ALONE)
    return Model(cast(Family, _Sizes(family)), nothing, probe, torch.float32, torch.device("cpu"))
