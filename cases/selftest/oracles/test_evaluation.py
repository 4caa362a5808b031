"""Greedy agreement, deaths and leaks, as figures of an observation."""

import pytest

from cases.selftest.play.playing import case_of
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.mutants.by_name import buffer_named
from deepstack_harness.oracles.evaluation import Evaluation, evaluate
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import play


def evaluation(model: Model, trace: str, revision: str, arm: str = "eager/drop_all") -> Evaluation:
    case = case_of(trace, revision, ArmSpec.parse(arm))
    return evaluate(case, play(case, model, buffer_named(revision)))


def test_a_fixed_revision_agrees_wholly(qwen: Model) -> None:
    found = evaluation(qwen, "cap 32: profile 32; set 30; forward 30; forward 7", "pr43617")
    assert found == Evaluation(agreement=1.0, runs=3, counts=3, died=0, leaked=0)


def test_a_faulty_revision_agrees_only_where_no_payload_takes_part(qwen: Model) -> None:
    found = evaluation(qwen, "cap 32: profile 32; set 32; forward 32", "pr40932")
    assert found.agreement is not None
    assert 0.5 <= found.agreement < 0.8  # the profile run is half of the tokens


def test_runs_that_raise_are_counted(qwen: Model) -> None:
    found = evaluation(qwen, "cap 16: set 9; forward 16; set 9; forward 16", "pr40145", "eager")
    assert found == Evaluation(agreement=None, runs=0, counts=0, died=2, leaked=0)


@pytest.mark.parametrize(
    ("trace", "leaked"),
    [
        ("cap 16: set 9 request=a; set 3 request=b; get 9", 18),
        ("cap 16: set 9 request=a+b; set 3 request=b+c; get 9", 0),
        ("cap 16: set 9 request=a; clear 5; get 9", 12),
        ("cap 16: set 9 request=a; get 9", 0),
    ],
)
def test_rows_of_another_request_are_leaks(qwen: Model, trace: str, leaked: int) -> None:
    assert evaluation(qwen, trace, "pr43617", "eager").leaked == leaked
    assert evaluation(qwen, trace, "reference", "eager").leaked == 0
