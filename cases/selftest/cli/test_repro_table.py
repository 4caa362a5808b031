"""The table of `repro`: the distance of a case is that of its worst step, with a payload or without."""

from dataclasses import replace

import pytest

from cases.selftest.contract.oracles.written_observations import QUIET, RIGHT, answer, observed
from deepstack_harness.catalogue.incidents import find
from deepstack_harness.cli.output import Output
from deepstack_harness.cli.repro_table import IncidentTitle, ReproTable
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, PlannedCase, registered
from deepstack_harness.contract.observation import Answer, Distances, RowRange, StepFacts
from deepstack_harness.contract.oracles.judge import JudgedCase, judge_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace

TRACE = Trace.parse("cap 16: capture 16; set 16; replay 16; replay 16")
PLANNED = PlannedCase(
    Case("qwen3_vl", registered("pr43617"), TRACE, ArmSpec.parse("eager/full")),
    frozenset({Rule.R0, Rule.R5}),
)
STALE = Answer("tensors", ((RowRange(1, 0, 0, 16),),), (8,), ("float32",), ("cpu",), (64,))


def judged(text_only: Distances) -> JudgedCase:
    """A visual step that is right, and behind it a step of text that reads the payload again."""
    visual = StepFacts("replay 16", 16, answer=STALE, distances=replace(RIGHT, no_deepstack=3.0))
    text = StepFacts("replay 16", 16, answer=STALE, distances=text_only)
    capture = StepFacts("capture 16", 16, answer=answer())
    return judge_case(PLANNED, observed(capture, StepFacts("set 16", 16), visual, text, facts=None))


def cells(case: JudgedCase, capsys: pytest.CaptureFixture[str]) -> list[str]:
    title = IncidentTitle(Output(None, quiet=False), find("replayed-clear"))
    ReproTable(title, [PLANNED], "qwen3_vl").add(case)
    return capsys.readouterr().out.splitlines()[-1].split()


def test_a_step_of_text_alone_that_is_wrong_is_the_distance(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = judged(replace(QUIET, eager=4.2, no_deepstack=4.2, zero_deepstack=4.2))
    assert wrong.broken == {Rule.R0, Rule.R5}
    revision, arm, to_eager, to_no_deepstack, *_ = cells(wrong, capsys)
    assert (revision, arm) == ("pr43617", "eager/full")
    assert (to_eager, to_no_deepstack) == ("4.2", "3")


def test_the_table_and_the_judgement_agree(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = judged(replace(QUIET, eager=0.25))
    (said,) = (said for said in wrong.judgements if said.rule is Rule.R0)
    assert cells(wrong, capsys)[2] == f"{said.value:.2g}" == "0.25"
