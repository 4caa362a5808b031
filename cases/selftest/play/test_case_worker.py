"""Cases whose buffers end the worker, or raise what would excuse them: each ends with its verdict."""

from collections.abc import Iterator

import msgspec
import pytest

from cases.selftest.play import misbehaving_buffers
from deepstack_harness.auditing.judged_plan import judge_plan
from deepstack_harness.auditing.standing import sum_up
from deepstack_harness.contract.arm_spec import EAGER
from deepstack_harness.contract.buffer_ref import user_buffer
from deepstack_harness.contract.case import Case, Compare, PlannedCase
from deepstack_harness.contract.observation import Observation, Raised, StepFacts
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.errors import UsageError
from deepstack_harness.oracles.judged_case import judge_case
from deepstack_harness.play.case_worker import CaseWorker, observation_of
from deepstack_harness.play.play_case import play_case
from deepstack_harness.workers.limits import Limits
from deepstack_harness.workers.outcomes import Answered, CallResult, RaisedInWorker, RanOutOfMemory, Signalled

LIMITS = Limits(start_s=300.0, call_s=None, step_s=3.0)
TRACE = "cap 16: set 8; get 8; get 9; get 16; clear 8; get 8"


def case_of(name: str, trace: str = TRACE) -> PlannedCase:
    buffer = user_buffer(f"{misbehaving_buffers.__name__}:{name}")
    return PlannedCase(Case("qwen3_vl", buffer, Trace.parse(trace), EAGER, compare=Compare.NOTHING), None)


@pytest.mark.parametrize("compiles", [False, True])
def test_one_that_compiles_is_ready_with_dynamo(*, compiles: bool) -> None:
    with CaseWorker(LIMITS, compiles=compiles) as made:
        assert made.start() is None
        loaded = made.call("cases.selftest.workers.misbehaving:loaded_modules", {})
    assert isinstance(loaded, Answered)
    assert ("torch._dynamo" in loaded.value) == compiles


@pytest.fixture(scope="module")
def worker() -> Iterator[CaseWorker]:
    with CaseWorker(LIMITS) as made:
        yield made


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Segfaults", "step 3 'get 9': get raised SIGSEGV: ended by SIGSEGV"),
        ("Leaves", "step 3 'get 9': get raised exit: exited with 0"),
        ("Hangs", "step 3 'get 9': get raised timeout: no answer within 3 s"),
    ],
)
def test_the_end_of_a_process_in_a_method_breaks_the_rule_of_its_step(
    worker: CaseWorker, name: str, said: str
) -> None:
    planned, before = case_of(name), worker.ends
    judged = judge_case(planned, observation_of(planned.case, worker.play(planned.case)))
    assert (judged.broken, worker.ends) == (frozenset({Rule.R2}), before + 1)
    by_rule = {one.rule: one for one in judged.judgements}
    assert by_rule[Rule.R2].detail == said
    assert by_rule[Rule.R1].verdict is Verdict.PASS  # put to the test before
    assert by_rule[Rule.R5].verdict is Verdict.ERROR  # its step was never reached
    assert by_rule[Rule.R5].detail.endswith("in step 3 'get 9'")
    assert [step.unavailable is None for step in judged.observation.steps] == [True] * 3 + [False] * 3
    right = case_of("Buffer")
    assert not judge_case(right, observation_of(right.case, worker.play(right.case))).broken


def test_code_that_breaks_what_measures_it_is_not_judged(worker: CaseWorker) -> None:
    planned, right = case_of("TakesModulesAway"), case_of("Buffer")
    worker.play(planned.case)
    judged = judge_case(planned, observation_of(planned.case, worker.play(planned.case)))
    assert judged.unjudged
    assert (judged.broken, str(judged.observation.error).partition(" raised ")[0]) == (
        frozenset(), "the code that measures",
    )  # fmt: skip
    assert not judge_case(right, observation_of(right.case, worker.play(right.case))).unjudged


BEGUN = msgspec.to_builtins(Observation("float32", "cpu", 3, 8, "2.13.0", ()))
SET = msgspec.to_builtins(StepFacts("set 8", 16))


def test_a_worker_whose_gpu_does_not_answer_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    works = iter([True, False])
    closed: list[bool] = []
    monkeypatch.setattr(
        CaseWorker, "call", lambda *_: Answered({"observation": BEGUN, "device_works": next(works)})
    )
    monkeypatch.setattr(CaseWorker, "close", lambda _: closed.append(True))
    worker, case = CaseWorker(LIMITS), case_of("Buffer").case
    worker.play(case)
    assert not closed
    worker.play(case)
    assert closed


@pytest.mark.parametrize(
    ("trace", "end", "said"),
    [
        ("set 8", Signalled(9, facts=(BEGUN, SET), phase="the end"), "ended by SIGKILL in the end"),
        (
            "set 8; get 8",
            Signalled(9, facts=(BEGUN, SET), phase="the decoder"),
            "the process ended by SIGKILL in step 2 'get 8'",
        ),
        (
            "set 8; get 8",
            RaisedInWorker("KeyError", "builtins", "no", facts=(BEGUN, SET)),
            "the code that measures raised KeyError: no in step 2 'get 8'",
        ),
        (
            "set 8; get 8",
            RanOutOfMemory("no memory", facts=(BEGUN, SET), phase="get"),
            "the process no memory in step 2 'get 8'",
        ),
    ],
)
def test_the_steps_before_an_end_stay_and_the_others_say_why(trace: str, end: CallResult, said: str) -> None:
    case = case_of("Buffer", f"cap 16: {trace}").case
    seen = observation_of(case, end)
    assert (seen.ended, seen.steps[0]) == (said, StepFacts("set 8", 16))
    assert [str(step) for step in case.trace] == [one.step for one in seen.steps]
    raised = Raised("out of memory", "no memory", "get", "", ends=True)
    expected = [(None, raised)] if isinstance(end, RanOutOfMemory) else [(said, None)]
    assert [(one.unavailable, one.raised) for one in seen.steps[1:]] == expected[: len(seen.steps) - 1]


def test_an_error_about_the_case_is_raised_again() -> None:
    told = RaisedInWorker("UsageError", "deepstack_harness.errors", "unknown family 'x'", exit_code=2)
    with pytest.raises(UsageError, match="unknown family 'x'"):
        observation_of(case_of("Buffer").case, told)


def test_a_class_that_goes_on_ending_its_worker_is_given_up() -> None:
    with CaseWorker(LIMITS) as worker:
        kept = case_of("Leaves", "cap 16: set 8; get 8; clear 8; get 8")
        cases = judge_plan([kept, *[case_of("Leaves")] * 4], worker)
        assert worker.ends == 3
    assert [bool(one.broken) for one in cases] == [False, True, True, True, False]
    assert "ended 3 times" in cases[-1].judgements[0].detail
    rows = {row.rule: row.verdict for row in sum_up(cases, "source", "class").rows}
    assert (rows[Rule.R2], rows[Rule.R5], rows[Rule.R7]) == (Verdict.FAIL, Verdict.PASS, Verdict.PASS)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("AsksToExit", "get raised SystemExit: 0"),
        ("RaisesOurError", "get raised MachineError: not my machine"),
        ("SaysThatItHasNoStep", "get raised StepUnavailable: skip me"),
        ("SaysThatMemoryIsUsedUp", "get raised OutOfMemory: not my memory"),
        ("NamesItsErrorAsTorchDoes", "get raised OutOfMemoryError: not my memory"),
    ],
)
def test_no_exception_excuses_a_method(name: str, said: str) -> None:
    planned = case_of(name)
    judged = judge_case(planned, play_case(planned.case))
    assert judged.broken == {Rule.R2}
    assert next(one.detail for one in judged.judgements if one.rule is Rule.R2) == f"step 3 'get 9': {said}"
    assert judged.observation.steps[-1].answer is not None  # the trace went on


def test_a_resize_that_a_buffer_has_not_is_no_fault() -> None:
    planned = case_of("Buffer", "cap 16: set 8; resize 20; get 8")
    judged = judge_case(planned, play_case(planned.case))
    assert not judged.broken
    assert judged.observation.steps[1].unavailable == "it has no resize"


def test_an_exit_is_no_way_to_refuse_a_call() -> None:
    planned = case_of("AsksToExit", "cap 4: set 2; get 9")
    judged = judge_case(planned, play_case(planned.case))
    assert judged.broken == {Rule.R4}
