"""`repro`: which faults are shown, where a fault is placed, and what is refused and said around the cases."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from deepstack_harness.audit.source_worker import FamilyWorker
from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.plans import Where
from deepstack_harness.cli import repro
from deepstack_harness.cli.main import main
from deepstack_harness.cli.output import Output
from deepstack_harness.cli.repro import _is_as_expected
from deepstack_harness.cli.repro_table import IncidentTitle, ReproTable
from deepstack_harness.contract.arm import EAGER, ArmSpec
from deepstack_harness.contract.case import Case, PlannedCase, registered
from deepstack_harness.contract.observation import Answer, Observation, Raised, StepFacts
from deepstack_harness.contract.oracles.judge import JudgedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.sources.source import Source


@pytest.mark.parametrize(("revision", "faulty"), [("granite_full", True), ("granite_sliced", False)])
@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.FAIL])
def test_a_fault_is_shown_by_a_faulty_revision_under_its_caller(
    revision: str, verdict: Verdict, *, faulty: bool
) -> None:
    trace, arm = Trace.parse("cap 8: profile 8; forward 1"), ArmSpec.parse("h200/drop_all/no_size_asserts")
    case = Case("granite4_vision", registered(revision), trace, arm, caller="static_inputs")
    said = (Judgement(Rule.R10, verdict),)
    judged = JudgedCase(PlannedCase(case, None), Observation("float32", "cpu", 4, 8, "", ()), said)
    assert _is_as_expected(find("40917"), judged) is (faulty == (verdict is Verdict.FAIL))


CASE = Case("qwen3_vl", registered("reference"), Trace.parse("cap 4: get 4; set 2; get 2"), EAGER)


def source(package: str) -> Source:
    return cast(Source, SimpleNamespace(label=f"{package} 1.0", package=package))


@pytest.mark.parametrize(
    ("package", "families", "said"),
    [
        ("ms-swift", ["qwen3_vl"], "ms-swift 1.0 has no buffer: 'audit --source SOURCE' judges its splitter"),
        (
            "vllm-omni",
            ["granite4_vision"],
            "43602 is about granite4_vision, and vllm-omni 1.0 has a class of",
        ),
    ],
)
def test_a_source_without_a_class_for_the_incident_is_refused(
    package: str, families: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        repro._families_of_sources(find("43602"), families, source(package))


@pytest.mark.parametrize(
    ("steps", "where"),
    [
        ((StepFacts("get 4", 4, raised=Raised("ValueError", "no", "get", "vllm.py:7")),), "vllm.py:7"),
        ((StepFacts("get 4", 4, raised=Raised("ValueError", "no", "decoder", "us.py:1")),), "vllm.py"),
        (
            (StepFacts("get 4", 4), StepFacts("set 2", 4), StepFacts("get 2", 4, answer=Answer("none"))),
            "get 2",
        ),
        ((StepFacts("get 4", 4, answer=Answer("tensors")),), "vllm.py"),
    ],
)
def test_a_fault_is_placed_at_its_first_exception_or_empty_answer(
    steps: tuple[StepFacts, ...], where: str
) -> None:
    rest = tuple(StepFacts(str(step), 4) for step in CASE.trace.steps[len(steps) :])
    seen = Observation("float32", "cpu", 3, 8, "", (*steps, *rest))
    worker = SimpleNamespace(filename="vllm.py", where_returned=lambda _case, _seen, tokens: f"get {tokens}")
    found = repro._place_of_first_fault(
        cast(FamilyWorker, worker), [JudgedCase(PlannedCase(CASE, None), seen, ())]
    )
    assert found == where


def test_what_is_known_is_told_before_inductor_starts_and_only_there() -> None:
    arms = ["eager", "inductor/drop_all", "inductor/stock"]
    plan = [PlannedCase(replace(CASE, arm=ArmSpec.parse(arm)), frozenset()) for arm in arms]
    title = IncidentTitle(Output(None, quiet=True), find("43602"))
    told: list[int] = []
    lost = Observation("float32", "cpu", 3, 8, "", (), error="not played")
    repro._play(
        lambda _: lost, plan, ReproTable(title, plan, "qwen3_vl"), lambda done, _: told.append(len(done))
    )
    assert told == [1]


def test_without_options_the_decisive_cases_are_played_and_the_rest_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played: list[str] = []

    def ours(_title: object, where: Where, _asked: object) -> bool:
        played.append(where.family)
        return True

    monkeypatch.setattr(repro, "_play_revisions", ours)
    assert main(["repro", "43602"]) == ExitCode.HOLDS
    assert played == ["qwen3_vl"]
    assert re.match(
        r"all of it, \d+ cases of .*: deepstack-harness repro 43602 --full$", capsys.readouterr().out
    )
    assert main(["repro", "43602", "--full"]) == ExitCode.HOLDS
    assert capsys.readouterr().out == ""
