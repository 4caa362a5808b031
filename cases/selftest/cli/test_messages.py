"""Sentences of commands about what is refused, left over or broken, without a run of the compiler."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cases.selftest.contract.oracles.written_observations import RIGHT, answer, observed
from cases.selftest.engines.synthetic_vllm import Vllm
from deepstack_harness.catalogue.incidents import catalogue, find
from deepstack_harness.catalogue.plans import Where, plan_workload
from deepstack_harness.cli import fuzz, nightly, repro
from deepstack_harness.cli.main import main
from deepstack_harness.cli.output import Output
from deepstack_harness.contract.arm import EAGER
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation, StepFacts
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import ExitCode, MachineError, UsageError
from deepstack_harness.fuzz.campaign import Hunted
from deepstack_harness.fuzz.faults import Finding
from deepstack_harness.fuzz.player import FindingKind

Capture = pytest.CaptureFixture[str]
AROUND = next(
    incident for incident in catalogue() if not incident.about_sources and incident.system == "deepstack"
)


def refused(words: Sequence[str], capsys: Capture) -> tuple[int, str]:
    code = main(list(words))
    seen = capsys.readouterr()
    assert seen.err.count("\n") == 1, seen.err
    return code, seen.err


def test_a_fault_around_the_class_is_in_no_source(tmp_path: Path, capsys: Capture) -> None:
    tree = Vllm().tree(tmp_path)
    code, output = refused(["repro", AROUND.id, "--source", str(tree)], capsys)
    assert code == ExitCode.USAGE
    assert f"incident {AROUND.id} is a fault of the code around the model class" in output


def test_a_family_whose_class_has_no_methods_is_left_out_or_refused(tmp_path: Path) -> None:
    source = open_source(str(Vllm().tree(tmp_path)))
    actual = repro._families_of_sources(find("43602"), ["granite4_vision", "qwen3_vl:opaque"], source)
    assert actual == ["qwen3_vl:opaque"]
    with pytest.raises(UsageError, match="is about granite4_vision, whose class has no get, set and clear"):
        repro._families_of_sources(find("43602"), ["granite4_vision"], source)


@pytest.mark.parametrize(("families", "more"), [(1, ""), (2, " and 2 families")])
def test_the_rest_of_a_reproduction_is_named_by_its_command(
    families: int, more: str, capsys: Capture
) -> None:
    Output(None, quiet=False).show(repro._print_full_command(find("43602"), [Where("qwen3_vl")] * families))
    printed = capsys.readouterr().out
    match = re.fullmatch(r"all of it, (\d+) cases of (\d+) revisions(.*): deepstack-harness (.*)\n", printed)
    assert match, printed
    assert int(match[1]) % families == 0
    assert match[2] == str(len(find("43602").revisions))
    assert (match[3], match[4]) == (more, "repro 43602 --full")


FINDING = Finding(
    kind=FindingKind.RULE, rule=Rule.CLEAR, verdict=Verdict.FAIL, trace="cap 16: get 4",
    shape="rows", detail="row 0 was read", revision="reference", family="qwen3_vl", examples=3, seconds=0.5,
    seed=0, **EAGER.columns,
)  # fmt: skip


@pytest.mark.parametrize(
    ("hunted", "code", "sentence"),
    [
        (Hunted(complete=True), ExitCode.HOLDS, "a buffer: nothing found\n"),
        (Hunted(), ExitCode.HOLDS, "nothing found; examples are left, the same command continues\n"),
        (Hunted([FINDING, FINDING]), ExitCode.BROKEN, "a buffer: R5\n"),
    ],
)
def test_a_hunt_ends_with_what_it_found_or_left(
    hunted: Hunted, code: ExitCode, sentence: str, capsys: Capture
) -> None:
    assert Output(None, quiet=False).show(fuzz._print_verdict(hunted, "a buffer")) == code
    assert capsys.readouterr().out.endswith(sentence)


def test_a_night_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is not empty: choose another --out folder"):
        nightly._make_folder(tmp_path)
    with pytest.raises(MachineError, match="cannot write to .*/file/night': Not a directory"):
        nightly._make_folder(tmp_path / "file" / "night")


def test_a_summary_that_cannot_be_written_is_reported_and_ends_nothing(tmp_path: Path) -> None:
    problem = nightly._write_summary(tmp_path / "gone", [])
    assert problem == f"cannot write '{tmp_path / 'gone' / 'nightly.json'}': No such file or directory"


TRACE = Trace.parse("cap 16: set 16; forward 16; clear 16")


def played(case: Case, *, share: float) -> Observation:
    """What eager agrees with in a share of the tokens; the text of the steps is the trace's."""
    distances = replace(RIGHT, greedy=share)
    steps = [
        StepFacts(str(step), 16, answer=answer(), distances=distances if step.op == "forward" else None)
        for step in case.trace
    ]
    return observed(*steps, facts=None)


def test_a_workload_is_planned_over_all_revisions_and_with_guards_over_the_faulty_ones() -> None:
    incident = find("43602")
    plan = plan_workload(incident, Where("qwen3_vl"), TRACE)
    assert [(planned.case.buffer.name, planned.case.arm.name) for planned in plan] == [
        *((name, "eager/drop_all") for name in incident.revisions),
        *((name, "eager/stock") for name in incident.faulty),
    ]
    assert {planned.case.trace for planned in plan} == {TRACE}


@pytest.mark.parametrize("as_known", [True, False])
def test_a_workload_must_show_the_faulty_revisions_and_no_other(as_known: bool, capsys: Capture) -> None:
    incident = find("43602")
    plan = plan_workload(incident, Where("qwen3_vl"), TRACE)

    def play(case: Case) -> Observation:
        wrong = case.buffer.name in incident.faulty and case.arm.guards == "drop_all"
        return played(case, share=0.5 if wrong and as_known else 1.0)

    held = Output(None, quiet=False).show(repro._evaluate(incident, plan, play))
    lines = capsys.readouterr().out.splitlines()
    assert held == as_known
    assert lines[-1] == ("as the catalogue expects" if as_known else "not as the catalogue expects")
    assert len([line for line in lines if "0.5000" in line]) == (len(incident.faulty) if as_known else 0)


@pytest.mark.parametrize(
    ("share", "sentence"), [(1.0, "agrees with eager"), (0.9, "does not agree with eager")]
)
def test_a_source_agrees_with_eager_or_not(share: float, sentence: str, capsys: Capture) -> None:
    incident = find("43602")
    plan = plan_workload(incident, Where("qwen3_vl"), TRACE)
    plan = [planned for planned in plan if planned.case.buffer.name == incident.fixed[0]]

    def play(case: Case) -> Observation:
        return played(case, share=share)

    Output(None, quiet=False).show(repro._evaluate(incident, plan, play, source=True))
    assert capsys.readouterr().out.splitlines()[-1] == sentence


def test_a_workload_is_described_in_numbers_before_it_is_served(tmp_path: Path, capsys: Capture) -> None:
    trace = Output(None, quiet=False).show(repro._workload_trace(None))
    printed = capsys.readouterr().out
    match = re.match(r"200 requests, (\d+) steps \((\d+) with visual tokens\), (\d+) token counts; ", printed)
    assert match, printed
    assert 0 < int(match[2]) <= int(match[1])
    assert int(match[3]) == len({step.tokens for step in trace if step.op == "forward"})
