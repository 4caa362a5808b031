"""Probes measure what they say, and say so when they measured nothing."""

import math
import weakref
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from cases.selftest.play.playing import case_of, observe
from deepstack_harness.arms.compile import CompiledSession
from deepstack_harness.contract.arm_spec import ArmSpec, GuardPolicy
from deepstack_harness.contract.observation import NOT_FINITE, Answer, RowRange
from deepstack_harness.contract.protocols import Inputs
from deepstack_harness.errors import NotMeasured
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import play
from deepstack_harness.probes.graphs import GraphProbe
from deepstack_harness.probes.numerics import NumericsProbe, distance
from deepstack_harness.probes.rows import RowOwners, join_answers
from deepstack_harness.revisions.reference import ReferenceBuffer

DROP_ALL = ArmSpec.parse("eager/drop_all")


def session(model: Model, arm: ArmSpec = DROP_ALL) -> CompiledSession:
    return CompiledSession(arm, model.decoder, model.profile(16))


def inputs(model: Model, tokens: int) -> Inputs:
    hidden = torch.randn(tokens, model.family.hidden, generator=torch.Generator().manual_seed(0))
    return Inputs(hidden, model.family.positions(tokens, model.device), None)


def test_nothing_compiled_is_not_measured(qwen: Model) -> None:
    opened = session(qwen)
    with GraphProbe(opened, GuardPolicy.DROP_ALL) as probe:
        pass
    with pytest.raises(NotMeasured, match="no graph was built"):
        probe.facts()


def test_a_guard_policy_that_was_not_applied_is_noticed(qwen: Model) -> None:
    kept = session(qwen, ArmSpec.parse("eager/stock"))
    with GraphProbe(kept, GuardPolicy.DROP_ALL) as probe:
        kept.forward(inputs(qwen, 4))
    with pytest.raises(NotMeasured, match="drop_all was not applied"):
        probe.facts()


def test_guards_on_the_payload_are_counted(qwen: Model) -> None:
    opened = session(qwen)
    with GraphProbe(opened, GuardPolicy.DROP_ALL) as probe:
        opened.forward(inputs(qwen, 4))
    facts = probe.facts()
    assert facts.guards > facts.payload_guards == 1
    assert (facts.kept, facts.payload_kept) == (0, 0)


def test_dynamo_does_not_fall_back_to_eager_in_silence(qwen: Model) -> None:
    structures = "; ".join(f"profile {n}" for n in (16, 1, 0))
    with torch._dynamo.config.patch(recompile_limit=1):  # noqa: TID251
        observation = observe(
            qwen, f"cap 16: {structures}; set 16; forward 16", "pr40932", ArmSpec.parse("eager/stock")
        )
    assert observation.graphs is not None
    assert observation.graphs.limit_hit


def test_one_graph_serves_all_counts_without_guards(qwen: Model) -> None:
    counts = (16, 0, 1, 2, 9, 17, 33)
    trace = "cap 64: profile 16; " + "; ".join(f"set {n}; forward {n}" for n in counts)
    observation = observe(qwen, trace, "reference", DROP_ALL)
    assert observation.graphs is not None
    assert observation.graphs.graphs == 1
    measured = [facts.distances for facts in observation.steps if facts.distances]
    assert len(measured) == len(counts)  # 0 tokens have no distance, the profile run has
    assert max(found.eager for found in measured) < 1e-5


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([1.0, math.nan], [1.0, 2.0], NOT_FINITE),
        ([1.0, math.inf], [1.0, 2.0], NOT_FINITE),
        ([1.0], [1.0, 2.0], NOT_FINITE),
    ],
)
def test_distance(one: list[float], other: list[float], expected: float) -> None:
    assert distance(torch.tensor(one), torch.tensor(other)) == expected


def test_comparing_nothing_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="0 tokens"):
        distance(torch.empty(0, 4), torch.empty(0, 4))


def test_rows_find_their_owners() -> None:
    owners = RowOwners()
    first, second = torch.randn(2, 5, 4), torch.randn(2, 3, 4)
    owners.remember(1, first)
    owners.remember(2, second)
    owners.remember(-2, torch.full_like(second, 7.0))
    unknown = torch.full((1, 4), 3.0)
    rows = torch.cat(
        [second[1], first[0, 3:5], torch.zeros(2, 4), -torch.zeros(1, 4), torch.full((2, 4), 7.0), unknown]
    )
    assert owners.runs(rows) == (
        RowRange(2, 1, 0, 3),
        RowRange(1, 0, 3, 2),
        RowRange(0, 0, 0, 3),
        RowRange(-2, 0, 0, 2),
        RowRange(None, 0, 0, 1),
    )


def test_rows_find_their_owners_in_another_dtype() -> None:
    owners = RowOwners()
    payload = torch.randn(1, 5, 4)
    owners.remember(1, payload)
    assert owners.runs(payload[0].to(torch.bfloat16)) == (RowRange(1, 0, 0, 5),)


def test_rows_out_of_order_are_separate_runs() -> None:
    owners = RowOwners()
    payload = torch.randn(1, 3, 4)
    owners.remember(1, payload)
    assert owners.runs(payload[0].flip(0)) == (
        RowRange(1, 0, 2, 1),
        RowRange(1, 0, 1, 1),
        RowRange(1, 0, 0, 1),
    )


def test_every_arm_of_the_backend_eager_runs(qwen: Model) -> None:
    case = case_of("cap 16: profile 16; set 9; forward 16", "reference", ArmSpec.parse("eager/keep_tensor"))
    observation = observe(qwen, str(case.trace), "reference", case.arm)
    assert observation.graphs is not None
    assert 0 < observation.graphs.kept < observation.graphs.guards


def test_answers_outlive_their_step_so_that_no_address_is_handed_out_twice(qwen: Model) -> None:
    alive: list[bool] = []

    class Watching(ReferenceBuffer):
        answers: ClassVar[list[weakref.ref[torch.Tensor]]] = []

        def get(self, tokens: int) -> tuple[torch.Tensor, ...] | None:
            alive.extend(ref() is not None for ref in self.answers)
            answer = tuple(torch.zeros(tokens, qwen.family.hidden) for _ in range(3))
            self.answers.append(weakref.ref(answer[0]))
            return answer

    play(case_of("cap 16: get 4; get 4; get 4", "watching"), qwen, Watching)
    # Three gets: one answer kept, then two, then three, seen from the later gets of both lanes.
    assert alive.count(True) >= 9


def test_outputs_of_other_shapes_agree_on_no_word() -> None:
    probe = NumericsProbe(torch.nn.Linear(1, 1), 2, 8)
    out = torch.ones(2, 8)
    assert (probe._agreement(out, out), probe._agreement(out, torch.ones(3, 8))) == (1.0, 0.0)


def test_rows_of_micro_batches_that_follow_each_other_are_one_run() -> None:
    first = Answer(
        "tensors", ((RowRange(1, 0, 0, 2),), (RowRange(0, 0, 0, 2),)), (8,), ("float32",), ("cpu",), (64,)
    )
    second = replace(first, rows=((RowRange(1, 0, 2, 3),), (RowRange(0, 0, 0, 1), RowRange(1, 1, 4, 1))))
    joined = join_answers([first, second])
    assert joined is not None
    assert joined.rows == (
        (RowRange(1, 0, 0, 5),), (RowRange(0, 0, 0, 3), RowRange(1, 1, 4, 1)),
    )  # fmt: skip
    again = join_answers([first, replace(second, rows=first.rows)])  # the same rows, not those behind them
    assert again is not None
    assert again.rows[0] == (RowRange(1, 0, 0, 2), RowRange(1, 0, 0, 2))
