"""The worker of a source: it may end while a class is judged, and be changed by what it runs."""

from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from cases.selftest.audit import forging
from cases.selftest.engines.in_process_worker import InProcessCases, InProcessWorker
from cases.selftest.engines.synthetic_plugins import VL, ascend_files, over, vllm_files
from cases.selftest.engines.synthetic_splitters import megatron_files
from cases.selftest.engines.synthetic_vllm import (
    GET,
    HANDS_ON,
    INNER_MODEL,
    RANGE_FILE,
    STREAM_FILE,
    ModelFile,
    Vllm,
    write,
    write_driven,
    write_systems,
)
from deepstack_harness.audit.classes import judge_class, judge_split
from deepstack_harness.audit.source_worker import CONTROLS, MOST_ENDS, NO_WAYS, failed_control, judge_plan
from deepstack_harness.audit.systems import DualStreams, PlaceholderRanges
from deepstack_harness.catalogue.buffers import MUTANTS
from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.plans import Where, plan_audit
from deepstack_harness.cli.main import main
from deepstack_harness.contract.case import Case, registered
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.errors import ExitCode
from deepstack_harness.play.case_worker import CaseWorker, SourceClass
from deepstack_harness.workers.outcomes import CallResult, RaisedInWorker, end_of
from deepstack_harness.workers.profiles import CONTRACT_LIMITS

MODULE = "cases.selftest.audit.forging"
PLAYED_FIRST = plan_audit(Where("qwen3_vl"), registered("reference"), [Trace.parse("cap 16: set 9; get 16")])


def test_a_worker_that_measures_passes() -> None:
    with CaseWorker(CONTRACT_LIMITS) as worker:
        assert failed_control(worker) is None
        assert failed_control(worker) is None  # again: the controls change nothing


DAILY = {"see_zeros"}


@pytest.mark.parametrize(
    "forgery",
    [
        pytest.param(name, marks=() if name in DAILY else pytest.mark.slow)
        for name in (forgery.__name__ for forgery in forging.FORGERIES)
    ],
)
def test_a_worker_whose_measuring_was_replaced_is_found_out(forgery: str) -> None:
    with CaseWorker(CONTRACT_LIMITS) as worker:
        assert judge_plan(PLAYED_FIRST, worker)  # it has imported all that can be replaced
        worker.call(f"{MODULE}:{forgery}", {})
        said = failed_control(worker)
    assert said is not None
    assert "after it" in said


def test_only_mutants_find_a_worker_that_sees_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with CaseWorker(CONTRACT_LIMITS) as worker:
        assert judge_plan(PLAYED_FIRST, worker)
        worker.call(f"{MODULE}:play_reference_instead", {})
        said = failed_control(worker)
    assert said is not None
    assert f"'{CONTROLS[0]}', which breaks {MUTANTS[CONTROLS[0]].rule}, is not caught" in said


HOSTILE_GET = GET.replace(
    "    if self.filled == 0:",
    "    import sys\n"
    "    rows = sys.modules['deepstack_harness.play.rows']\n"
    "    zeros = lambda level: (rows._ZERO._replace(rows=level.size(0)),)\n"
    "    rows.RowOwners.runs_of = lambda _, levels: tuple(map(zeros, levels))\n"
    "    if self.filled == 0:",
)


def test_an_audit_of_such_a_source_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    qwen = str(ModelFile(get=HOSTILE_GET, more=HANDS_ON)) + INNER_MODEL
    hostile = Vllm("0.10.0", qwen).tree(tmp_path)
    assert main(["audit", "--source", str(hostile)]) == ExitCode.BROKEN
    shown = capsys.readouterr().out
    assert "tampered: the process measures wrongly after it ran this code" in shown
    assert "Not judged: R0, R1, R2, R3" in shown.splitlines()[-1]


CRASH = end_of(-11, phase="decoder")
SENTENCE = "ended by SIGSEGV in decoder"


def test_a_class_whose_definition_ends_the_worker_is_not_judged(tmp_path: Path) -> None:
    with InProcessWorker(str(write_driven(tmp_path)), "define", CRASH) as worker:
        found, _ = worker.classes()
        verdicts = judge_class(found, worker)
    assert (found.ended, found.ways) == (SENTENCE, NO_WAYS)
    assert {row.verdict for row in verdicts.rows} == {Verdict.ERROR}
    assert all(SENTENCE in row.detail for row in verdicts.rows)
    assert worker.ends == 2  # one for each class: nothing was played


def test_a_splitter_that_ends_the_worker_breaks_r9_and_is_given_up(tmp_path: Path) -> None:
    with InProcessWorker(str(write(tmp_path, megatron_files())), "split", end_of(3)) as worker:
        (found,) = worker.classes()
        (row,) = judge_class(found, worker).rows
    assert (row.rule, row.verdict, row.unit) == (Rule.SHARDING, Verdict.FAIL, "calls")
    assert "step 2 'forward 16' raised exit: exited with 3" in row.detail
    assert worker.ends == MOST_ENDS


def test_ranks_that_end_the_worker_are_not_judged(tmp_path: Path) -> None:
    text = over(tmp_path, ascend_files(), vllm_files(VL))
    with InProcessWorker(text, "play_split", CRASH) as worker:
        (found,) = worker.classes()
        row = judge_split(found, worker, {})
    assert (row.rule, row.verdict) == (Rule.SHARDING, Verdict.ERROR)
    assert SENTENCE in row.detail


@pytest.mark.parametrize(
    ("number", "function", "auditor", "name"),
    [
        ("40143", "observe_range", PlaceholderRanges(), "PlaceholderRange"),
        ("36795", "observe_helpers", DualStreams(), CRASH.phase),
    ],
)
def test_a_system_that_ends_the_worker_is_not_judged(
    tmp_path: Path, number: str, function: str, auditor: PlaceholderRanges | DualStreams, name: str
) -> None:
    incident, root = find(number), str(write_systems(tmp_path, ranges=RANGE_FILE, streams=STREAM_FILE))
    with InProcessWorker(root, function, CRASH) as worker:
        (judged,) = auditor.theirs(incident, worker)
    (row,) = judged.rows
    assert (judged.model_class, row.model_class, row.verdict) == (name, name, Verdict.ERROR)
    assert (row.rule, row.incident, row.engine) == (incident.rules[0], number, "vllm")
    assert SENTENCE in row.detail


class Instead(InProcessCases):
    """A worker that plays another buffer than that of the case."""

    @override
    def play(self, case: Case, source: SourceClass | None = None) -> CallResult:
        return super().play(replace(case, buffer=registered(CONTROLS[2])), source)


RAISED = RaisedInWorker("ValueError", "builtins", "not enough values", exit_code=None)


@pytest.mark.parametrize(
    ("worker", "message"),
    [
        (InProcessCases("play", CRASH), "'reference' cannot be played after it"),
        (
            InProcessCases("play", RAISED),
            "the controls after it could not be played: ValueError: not enough values",
        ),
        (Instead(), "'reference', which keeps every rule, breaks R3 after it"),
    ],
    ids=["ended", "raised", "other"],
)
def test_a_control_that_does_not_pass_is_reported(worker: InProcessCases, message: str) -> None:
    assert (failed_control(worker) or "").endswith(message)
