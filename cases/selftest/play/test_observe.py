"""Observations of cases that cannot be measured as a whole: each has a reason, and earlier facts stay."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import cast

import pytest
import torch

from cases.selftest.play.playing import case_of
from deepstack_harness.compile import graph_counts
from deepstack_harness.compile.captured import open_inner
from deepstack_harness.compile.compiled import CompiledSession
from deepstack_harness.compile.eager import EagerSession
from deepstack_harness.contract.arm import ArmSpec, GuardPolicy
from deepstack_harness.contract.case import Compare
from deepstack_harness.contract.observation import StepFacts
from deepstack_harness.contract.trace import Step
from deepstack_harness.engines.bind import PayloadSplitter
from deepstack_harness.errors import MachineError, NotMeasured, UsageError
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.play import observe
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import SharedSession
from deepstack_harness.play.player import CasePlayer
from deepstack_harness.play.source_work import observe_split

TRACE = "cap 4: set 2; get 2; get 3"
COMPILED = ArmSpec.parse("eager/drop_all")


def not_measured(*_: object) -> None:
    raise NotMeasured("no graph was seen")


class Stops:
    """A player that cannot measure the second step."""

    def play(self, index: int, step: Step) -> StepFacts:
        if index == 1:
            raise NotMeasured("the kernels were cached")
        return StepFacts(str(step), 4)


def test_what_was_played_before_a_step_that_cannot_be_measured_stays() -> None:
    reported: list[object] = []
    case = case_of(TRACE, "reference")
    steps, said = observe.played_steps(case, cast(CasePlayer, Stops()), tell=reported.append)
    assert said == "step 2 'get 2': the kernels were cached"
    assert [(facts.step, facts.unavailable) for facts in steps] == [
        ("set 2", None),
        ("get 2", said),
        ("get 3", said),
    ]
    assert reported == [steps[0]]


def test_a_decoder_has_one_size_and_a_buffer_by_itself_any(qwen: Model) -> None:
    case = case_of("cap 4 levels 2: set 2; get 2", "reference")
    with pytest.raises(UsageError, match="'cap 4 levels 2: set 2; get 2' states sizes of its buffer that no"):
        observe.decoder_of(case, qwen)
    assert observe.decoder_of(replace(case, compare=Compare.NOTHING), qwen) is not qwen.decoder


class NothingCompiled(CompiledSession):
    """A compiled session that was called, and compiled nothing."""

    def __init__(self, calls: int, *, limit_hit: bool = False) -> None:
        self.calls, self.limit_hit = calls, limit_hit


def test_graphs_that_cannot_be_counted_are_reported_as_that(
    qwen: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_counts, "graph_facts", not_measured)
    facts = {calls: observe._graph_facts(NothingCompiled(calls), GuardPolicy.DROP_ALL) for calls in (0, 1)}
    assert facts == {0: (None, None), 1: (None, "no graph was seen")}
    eager = EagerSession(ArmSpec(), qwen.decoder, qwen.profile(4))
    assert observe._graph_facts(eager, GuardPolicy.DROP_ALL) == (None, None)


def test_a_shared_session_at_its_recompile_limit_is_closed_and_its_graphs_are_not_reported(
    qwen: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited: list[object] = []

    class AtItsLimit(NothingCompiled):
        """A compiled session that has reached the limit."""

        def __init__(self, *_: object) -> None:
            super().__init__(1, limit_hit=True)

        def forget_failures(self) -> None:
            """Forget nothing: nothing was compiled."""

        def close(self) -> None:
            limited.append(self)

    monkeypatch.setattr(observe, "open_inner", AtItsLimit)
    monkeypatch.setattr(graph_counts, "graph_facts", not_measured)
    shared = SharedSession()
    case = replace(case_of(TRACE, "reference"), arm=COMPILED, compare=Compare.NOTHING)
    seen = shared.play(case, ReferenceBuffer)
    assert (seen.graphs, seen.error) == (None, "no graph was seen")
    assert shared._session is None
    assert len(limited) == 1


def test_an_arm_is_played_on_a_session_of_its_kind(qwen: Model) -> None:
    for arm, kind in (("eager", EagerSession), ("eager/drop_all", CompiledSession)):
        with closing(open_inner(ArmSpec.parse(arm), qwen.decoder, qwen.profile(4))) as session:
            assert type(session) is kind
    with pytest.raises(MachineError, match="TRITON_INTERPRET=1"):
        open_inner(ArmSpec.parse("h200/drop_all"), qwen.decoder, qwen.profile(4))


def test_ctrl_c_in_a_splitter_is_not_a_fact_of_its_ranks() -> None:
    class Interrupted:
        def rows(self, *_: object) -> Sequence[torch.Tensor]:
            raise KeyboardInterrupt

    case = replace(case_of("cap 4: set 4; forward 4", "reference"), arm=ArmSpec.parse("eager/tp2"))
    with pytest.raises(KeyboardInterrupt):
        observe_split(case, cast(PayloadSplitter, Interrupted()))
