"""Cases whose buffers end the worker, or raise what would excuse them: each ends with its verdict."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Never

import msgspec
import pytest
import torch

from cases.by_day import by_day
from cases.selftest.play.misbehaving_buffers import misbehaving
from deepstack_harness.audit.class_verdicts import sum_up
from deepstack_harness.audit.source_worker import judge_plan
from deepstack_harness.contract.arm import EAGER
from deepstack_harness.contract.case import Case, Compare, PlannedCase, user_buffer
from deepstack_harness.contract.observation import Observation, Raised, StepFacts
from deepstack_harness.contract.oracles.judge import judge_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.errors import UsageError
from deepstack_harness.play import case_worker
from deepstack_harness.play.case_worker import CaseWorker, check_buffers, observation_of
from deepstack_harness.play.loading import Played, check_fit, load_buffer
from deepstack_harness.play.play_case import play_case
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import (
    Answered,
    CallResult,
    EndKind,
    RaisedInWorker,
    WorkerEnd,
    end_of,
    is_end,
)
from deepstack_harness.workers.profiles import InForce

LIMITS = Limits(start_s=300.0, call_s=None, step_s=3.0)
WITHOUT_RESIZE = f"{misbehaving.__module__}:WithoutResize"
TRACE = "cap 16: set 8; get 8; get 9; get 16; clear 8; get 8"


def case_of(behaviour: str, trace: str = TRACE) -> PlannedCase:
    buffer = user_buffer(misbehaving(behaviour, "get 9"))
    return PlannedCase(Case("qwen3_vl", buffer, Trace.parse(trace), EAGER, compare=Compare.NOTHING), None)


@pytest.mark.parametrize("compiles", by_day([True, False]))
def test_one_that_compiles_is_ready_with_dynamo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, compiles: bool
) -> None:
    if not compiles:  # a server of its own, into which no other test imported Dynamo
        monkeypatch.syspath_prepend(tmp_path)
    with CaseWorker(LIMITS) as made:
        made.prepare(environment={}, sandbox=None, compiles=compiles)
        assert made.start() is None
        loaded = made.call("cases.selftest.workers.misbehaving:loaded_modules")
    assert isinstance(loaded, Answered)
    assert ("torch._dynamo" in loaded.value) == compiles


@pytest.fixture(scope="module")
def worker() -> Iterator[CaseWorker]:
    with CaseWorker(LIMITS) as made:
        yield made


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Segfaults", "step 3 'get 9': get raised SIGSEGV: ended by SIGSEGV"),
        ("Leaves", "step 3 'get 9': get raised exit: exited with 0"),
        ("Hangs", "step 3 'get 9': get raised timeout: no answer within 3 s"),
    ],
)
def test_the_end_of_a_process_in_a_method_breaks_the_rule_of_its_step(
    worker: CaseWorker, name: str, message: str
) -> None:
    planned, before = case_of(name), worker.ends
    judged = judge_case(planned, observation_of(planned.case, worker.play(planned.case)))
    assert (judged.broken, worker.ends) == (frozenset({Rule.BOUNDARY}), before + 1)
    by_rule = {judgement.rule: judgement for judgement in judged.judgements}
    assert by_rule[Rule.BOUNDARY].detail == message
    assert by_rule[Rule.STRUCTURE].verdict is Verdict.PASS  # put to the test before
    assert by_rule[Rule.CLEAR].verdict is Verdict.ERROR  # its step was never reached
    assert by_rule[Rule.CLEAR].detail.endswith("in step 3 'get 9'")
    assert [step.unavailable is None for step in judged.observation.steps] == [True] * 3 + [False] * 3
    right = case_of("Behaves")
    assert not judge_case(right, observation_of(right.case, worker.play(right.case))).broken


def test_code_that_breaks_what_measures_it_is_not_judged(worker: CaseWorker) -> None:
    planned, right = case_of("TakesModulesAway"), case_of("Behaves")
    worker.play(planned.case)
    judged = judge_case(planned, observation_of(planned.case, worker.play(planned.case)))
    assert judged.unjudged
    assert (judged.broken, str(judged.observation.error).partition(" raised ")[0]) == (
        frozenset(), "the code that measures",
    )  # fmt: skip
    assert not judge_case(right, observation_of(right.case, worker.play(right.case))).unjudged


OBSERVATION = Observation("float32", "cpu", 3, 8, "2.13.0", ())
BEGUN = msgspec.to_builtins(OBSERVATION)
SET = msgspec.to_builtins(StepFacts("set 8", 16))


def test_a_worker_whose_gpu_does_not_answer_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    works = iter([True, False])
    closed: list[bool] = []
    monkeypatch.setattr(
        CaseWorker, "call", lambda *_: Answered(Played(OBSERVATION, device_works=next(works)))
    )
    monkeypatch.setattr(CaseWorker, "close", lambda _: closed.append(True))
    worker, case = CaseWorker(LIMITS), case_of("Behaves").case
    worker.play(case)
    assert not closed
    worker.play(case)
    assert closed


@pytest.mark.parametrize(
    ("trace", "end", "message"),
    [
        ("set 8", end_of(-9, facts=(BEGUN, SET), phase="the end"), "ended by SIGKILL in the end"),
        (
            "set 8; get 8",
            end_of(-9, facts=(BEGUN, SET), phase="the decoder"),
            "the process ended by SIGKILL in step 2 'get 8'",
        ),
        (
            "set 8; get 8",
            RaisedInWorker("KeyError", "builtins", "no", facts=(BEGUN, SET)),
            "the code that measures raised KeyError: no in step 2 'get 8'",
        ),
        (
            "set 8; get 8",
            WorkerEnd(EndKind.OUT_OF_MEMORY, ("no memory",), facts=(BEGUN, SET), phase="get"),
            "the process no memory in step 2 'get 8'",
        ),
    ],
)
def test_the_steps_before_an_end_stay_and_the_others_have_a_reason(
    trace: str, end: CallResult, message: str
) -> None:
    case = case_of("Behaves", f"cap 16: {trace}").case
    seen = observation_of(case, end)
    assert (seen.ended, seen.steps[0]) == (message, StepFacts("set 8", 16))
    assert [str(step) for step in case.trace] == [facts.step for facts in seen.steps]
    raised = Raised("out of memory", "no memory", "get", "", ends=True)
    expected = [(None, raised)] if is_end(end, EndKind.OUT_OF_MEMORY) else [(message, None)]
    assert [(facts.unavailable, facts.raised) for facts in seen.steps[1:]] == expected[: len(seen.steps) - 1]


def test_an_error_about_the_case_is_raised_again() -> None:
    raised = RaisedInWorker("UsageError", "deepstack_harness.errors", "unknown family 'x'", exit_code=2)
    with pytest.raises(UsageError, match="unknown family 'x'"):
        observation_of(case_of("Behaves").case, raised)


def test_a_class_that_goes_on_ending_its_worker_is_given_up() -> None:
    with CaseWorker(LIMITS) as worker:
        survivor = case_of("Leaves", "cap 16: set 8; get 8; clear 8; get 8")
        cases = judge_plan([survivor, *[case_of("Leaves")] * 4], worker)
        assert worker.ends == 3
    assert [bool(case.broken) for case in cases] == [False, True, True, True, False]
    assert "ended 3 times" in cases[-1].judgements[0].detail
    rows = {row.rule: row.verdict for row in sum_up(cases, "source", "class").rows}
    assert (rows[Rule.BOUNDARY], rows[Rule.CLEAR], rows[Rule.PLACEMENT]) == (
        Verdict.FAIL,
        Verdict.PASS,
        Verdict.PASS,
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("AsksToExit", "get raised SystemExit: 0"),
        ("RaisesOurError", "get raised MachineError: not my machine"),
        ("SaysThatItHasNoStep", "get raised StepUnavailable: skip me"),
        ("SaysThatMemoryIsUsedUp", "get raised OutOfMemory: not my memory"),
        ("NamesItsErrorAsTorchDoes", "get raised OutOfMemoryError: not my memory"),
    ],
)
def test_no_exception_excuses_a_method(name: str, message: str) -> None:
    planned = case_of(name)
    judged = judge_case(planned, play_case(planned.case))
    assert judged.broken == {Rule.BOUNDARY}
    assert (
        next(judgement.detail for judgement in judged.judgements if judgement.rule is Rule.BOUNDARY)
        == f"step 3 'get 9': {message}"
    )
    assert judged.observation.steps[-1].answer is not None  # the trace went on


def test_a_resize_that_a_buffer_has_not_is_no_fault() -> None:
    planned = case_of("Behaves", "cap 16: set 8; resize 20; get 8")
    planned = replace(planned, case=replace(planned.case, buffer=user_buffer(WITHOUT_RESIZE)))
    judged = judge_case(planned, play_case(planned.case))
    assert not judged.broken
    assert judged.observation.steps[1].unavailable == "it has no resize"


def test_an_exit_is_no_way_to_refuse_a_call() -> None:
    planned = case_of("AsksToExit", "cap 4: set 2; get 9")
    judged = judge_case(planned, play_case(planned.case))
    assert judged.broken == {Rule.CAPACITY}


# Classes of the user, loaded in a worker first


def test_classes_that_fit_are_not_refused() -> None:
    fits = ["reference:ReferenceBuffer", "revisions:Pr40932Buffer"]
    check_buffers([f"deepstack_harness.models.{name}" for name in fits])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import time; time.sleep(600)", "no answer within 0.5 s .* in the import of mine:Buffer"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV in the import of mine"),
        ("while True: print('x' * 2**20)", "printed "),
        ("raise SystemExit(0)", "module 'mine' cannot be imported: SystemExit: 0"),
        ("raise ValueError('no')", "module 'mine' cannot be imported: ValueError: no"),
    ],
)
def test_a_class_that_cannot_be_loaded_is_refused(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(case_worker, "_LOAD_TIMEOUT_S", 0.5 if "sleep" in source else 60.0)
    with pytest.raises(UsageError, match=message):
        check_buffers(["mine:Buffer"])


def test_ctrl_c_while_a_class_is_loaded_or_made_is_no_mistake_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "interrupted.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        load_buffer("interrupted:Buffer")

    def interrupted(
        capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> Never:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_fit(interrupted, "mine:Buffer")


@pytest.mark.parametrize(
    ("in_force", "message"),
    [
        (InForce(("files",)), "PermissionError: no; it runs in a sandbox, which --no-sandbox turns off$"),
        (InForce(), "PermissionError: no$"),
    ],
)
def test_what_the_sandbox_refuses_is_reported_with_the_option_that_turns_it_off(
    in_force: InForce, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = RaisedInWorker("UsageError", "deepstack_harness.errors", "PermissionError: no", exit_code=2)
    worker = SimpleNamespace(call=lambda *_: refused, in_force=in_force)
    monkeypatch.setattr(case_worker, "Worker", lambda *_, **__: nullcontext(worker))
    with pytest.raises(UsageError, match=message):
        check_buffers(["mine:Buffer"])
