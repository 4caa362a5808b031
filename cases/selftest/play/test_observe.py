"""Observations of cases that cannot be measured as a whole: each says why, and what was measured stays."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from cases.selftest.play.playing import case_of
from deepstack_harness.arms.compile import CompiledSession
from deepstack_harness.arms.eager import EagerSession
from deepstack_harness.arms.interpreted import InterpretedSession
from deepstack_harness.binding.splitter import PayloadSplitter
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.case import Compare
from deepstack_harness.contract.observation import StepFacts
from deepstack_harness.contract.trace import Step
from deepstack_harness.errors import NotMeasured, UsageError
from deepstack_harness.play import observe, shared_session
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe_split import observe_split
from deepstack_harness.play.player import CasePlayer
from deepstack_harness.play.shared_session import SharedSession
from deepstack_harness.probes.graphs import GraphProbe
from deepstack_harness.revisions.reference import ReferenceBuffer

TRACE = "cap 4: set 2; get 2; get 3"
COMPILED = ArmSpec.parse("eager/drop_all")


def not_measured(*_: object) -> None:
    raise NotMeasured("no graph was seen")


class Fails(GraphProbe):
    """A probe that saw no graph."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> None:  # type: ignore[override]
        pass

    def __exit__(self, *_: object) -> None:
        pass

    facts = not_measured  # type: ignore[assignment]


class Stops:
    """A player that cannot measure the second step."""

    def play(self, index: int, step: Step) -> StepFacts:
        if index == 1:
            raise NotMeasured("the kernels were cached")
        return StepFacts(str(step), 4)


def test_what_was_played_before_a_step_that_cannot_be_measured_stays() -> None:
    told: list[object] = []
    case = case_of(TRACE, "reference")
    steps, said = observe.played_steps(case, cast(CasePlayer, Stops()), tell=told.append)
    assert said == "step 2 'get 2': the kernels were cached"
    assert [(one.step, one.unavailable) for one in steps] == [
        ("set 2", None),
        ("get 2", said),
        ("get 3", said),
    ]
    assert told == [steps[0]]


def test_a_decoder_has_one_size_and_a_buffer_alone_any(qwen: Model) -> None:
    case = case_of("cap 4 levels 2: set 2; get 2", "reference")
    with pytest.raises(UsageError, match="'cap 4 levels 2: set 2; get 2' states sizes of its buffer that no"):
        observe.decoder_of(case, qwen)
    assert observe.decoder_of(replace(case, compare=Compare.NOTHING), qwen) is not qwen.decoder


def test_graphs_that_cannot_be_counted_are_said_to_be_so() -> None:
    session = cast(CompiledSession, SimpleNamespace(calls=1))
    assert observe._graph_facts(Fails(), session) == (None, "no graph was seen")
    assert observe._graph_facts(None, session) == (None, None)
    unused = cast(CompiledSession, SimpleNamespace(calls=0))
    assert observe._graph_facts(Fails(), unused) == (None, None)


def test_a_shared_session_at_its_recompile_limit_is_closed_and_its_graphs_are_not_told(
    qwen: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited: list[object] = []

    class AtItsLimit(CompiledSession):
        """A compiled session that has reached the limit, without compiling."""

        def __init__(self, *_: object) -> None:
            self.calls, self.limit_hit = 1, True

        def close(self) -> None:
            limited.append(self)

    monkeypatch.setattr(shared_session, "_kind", lambda _: AtItsLimit)
    monkeypatch.setattr(shared_session, "GraphProbe", Fails)
    shared = SharedSession()
    case = replace(case_of(TRACE, "reference"), arm=COMPILED, compare=Compare.NOTHING)
    seen = shared.play(case, ReferenceBuffer)
    assert (seen.graphs, seen.error) == (None, "no graph was seen")
    assert shared._session is None
    assert len(limited) == 1


@pytest.mark.parametrize(
    ("arm", "kind"),
    [("eager", EagerSession), ("eager/drop_all", CompiledSession), ("h200/drop_all", InterpretedSession)],
)
def test_an_arm_is_played_on_a_session_of_its_kind(arm: str, kind: type[EagerSession]) -> None:
    assert shared_session._kind(ArmSpec.parse(arm)) is kind


def test_ctrl_c_in_a_splitter_is_not_a_fact_of_its_ranks() -> None:
    class Interrupted:
        def rows(self, *_: object) -> Sequence[torch.Tensor]:
            raise KeyboardInterrupt

    case = replace(case_of("cap 4: set 4; forward 4", "reference"), arm=ArmSpec.parse("eager/tp2"))
    with pytest.raises(KeyboardInterrupt):
        observe_split(case, cast(PayloadSplitter, Interrupted()))
