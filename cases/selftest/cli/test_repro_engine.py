"""`repro` where no revision of ours plays a trace: what it refuses, and what it prints of a text model."""

from argparse import Namespace
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from deepstack_harness.audit import classes as argument_classes
from deepstack_harness.audit import source_worker
from deepstack_harness.audit.source_worker import AuditedClass
from deepstack_harness.catalogue.incidents import EngineRun, find
from deepstack_harness.cli import repro_engine
from deepstack_harness.cli.output import Output
from deepstack_harness.contract.arm import EAGER
from deepstack_harness.contract.case import Case, PlannedCase, registered
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.oracles.judge import JudgedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.engines.cut_model import ModelCut
from deepstack_harness.engines.discover import ArgumentCut, DeepstackCut
from deepstack_harness.errors import Reason, UsageError
from deepstack_harness.play.case_worker import ClassWays
from deepstack_harness.sources.source import Source

Capture = pytest.CaptureFixture[str]
INCIDENT = find("33726")
RUN = EngineRun("sglang", ("cap 4: set 2; get 2",), (Rule.R2,))
SOURCE = cast(Source, SimpleNamespace(label="sglang 0.5.4", package="sglang"))
_NOT_CUT = Reason("it was not cut")
RUNNER = ArgumentCut(
    cast(ModelCut, None), None, None, _NOT_CUT, "input_deepstack_embeds", replayed_at="runner.py:3-5"
)
WAYS = ClassWays(methods=True, replays=True)
FOUND = AuditedClass(DeepstackCut("Qwen3LLMModel", "qwen3_vl.py", RUNNER, _NOT_CUT), WAYS)


def judged(verdict: Verdict) -> JudgedCase:
    case = Case("qwen3_vl", registered("reference"), Trace.parse(RUN.traces[0]), EAGER)
    seen = Observation("float32", "cpu", 3, 8, "2.13.0", ())
    return JudgedCase(PlannedCase(case, None), seen, (Judgement(Rule.R2, verdict, detail="2 rows"),))


@pytest.mark.parametrize(
    ("verdict", "free", "said"),
    [
        (Verdict.PASS, True, "sglang 0.5.4, Qwen3LLMModel: free of incident 33726"),
        (Verdict.ERROR, False, "sglang 0.5.4, Qwen3LLMModel: incident 33726 could not be judged"),
    ],
)
def test_a_model_is_free_only_where_it_could_be_judged(
    verdict: Verdict, said: str, capsys: Capture, *, free: bool
) -> None:
    output = Output(None, quiet=False)
    assert repro_engine._print_verdict(FOUND, [judged(verdict)], RUN, INCIDENT, SOURCE, output) is free
    lines = capsys.readouterr().out.splitlines()
    assert (lines[-1], lines[-2]) == (said, "asked: runner.py:3-5")


def test_the_options_that_lead_there_and_what_is_known_of_the_runner_are_told(capsys: Capture) -> None:
    runner = replace(RUNNER, replay_settings="--graphs", replay_note="of text alone")
    told = AuditedClass(replace(FOUND.cut, methods=runner), replace(WAYS, lost="it is left out"))
    repro_engine._print_place(told, Output(None, quiet=False), broken=True)
    assert capsys.readouterr().out.splitlines() == [
        "where: runner.py:3-5",
        "why: it is left out",
        "reached with: --graphs",
        "note: of text alone",
    ]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({}, "unknown text model of sglang 0.5.4 'Qwen3LLMModel'"),
        (
            {"Qwen3LLMModel": replace(FOUND, ways=ClassWays(refusals=(Reason("no"), Reason("no forward"))))},
            "Qwen3LLMModel of sglang 0.5.4 is not driven: no forward$",
        ),
        (
            {"Qwen3LLMModel": replace(FOUND, ways=ClassWays(methods=True, not_driven=Reason("no runner")))},
            "Qwen3LLMModel of sglang 0.5.4: its graphs are not driven: no runner$",
        ),
    ],
)
def test_a_model_that_cannot_be_driven_is_refused(found: dict[str, AuditedClass], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        repro_engine._driven_class("Qwen3LLMModel", found, SOURCE)


def test_a_family_without_a_text_model_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(UsageError, match=r"^sglang 0\.5\.4 has a text model of qwen3_vl, .* alone$"):
        repro_engine._text_models(SOURCE, ["granite4_vision"])


def test_a_source_that_changed_what_measures_it_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = SimpleNamespace(classes=lambda: [FOUND], failed_control=lambda: "a right buffer broke R2")
    monkeypatch.setattr(source_worker, "SourceWorker", lambda _: nullcontext(worker))
    monkeypatch.setattr(argument_classes, "judge_replayed", lambda *_: [judged(Verdict.PASS)])
    asked = Namespace(**dict.fromkeys(repro_engine._OPTIONS_OF_OURS), source="TREE")
    with pytest.raises(UsageError, match=r"sglang 0\.5\.4 cannot be judged: a right buffer broke R2"):
        repro_engine.reproduce_in_engine(INCIDENT, ["qwen3_vl"], SOURCE, asked, Output(None, quiet=True))
