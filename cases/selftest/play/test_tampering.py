"""Code under test that changes the harness's records or functions is reported as such, and passes no rule."""

from collections.abc import Iterator

import pytest

from cases.by_day import by_day
from cases.selftest.play import tampering_buffers
from cases.selftest.play.tampering_buffers import TAMPERINGS, LooksAround
from deepstack_harness.audit.source_worker import judge_plan
from deepstack_harness.catalogue.plans import Where, plan_check
from deepstack_harness.cli.main import main
from deepstack_harness.contract.case import user_buffer
from deepstack_harness.contract.oracles.judge import JudgedCase
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.errors import ExitCode
from deepstack_harness.play.case_worker import CaseWorker
from deepstack_harness.play.rows import RowOwners
from deepstack_harness.pytest_plugin.fixtures import DeepstackContract
from deepstack_harness.workers.profiles import COMPILE, CONTRACT_LIMITS

TRACES = ["cap 16: set 9; get 9; clear 9; get 9", "cap 16: get 4; set 3; get 16; clear 16; get 3"]
WHERE = Where("qwen3_vl")
MODULE = tampering_buffers.__name__


def in_worker(name: str) -> list[JudgedCase]:
    with CaseWorker(CONTRACT_LIMITS, sandbox=COMPILE) as worker:
        return judge_plan(plan_check(WHERE, user_buffer(f"{MODULE}:{name}"), TRACES), worker)


@pytest.mark.parametrize("name", TAMPERINGS)
def test_it_is_reported_and_no_rule_passes(name: str) -> None:
    first, *_ = in_worker(name)
    assert {judgement.verdict for judgement in first.judgements} == {Verdict.ERROR}
    said = {judgement.detail for judgement in first.judgements}
    assert all(detail.startswith("tampered: ") for detail in said), said


def test_a_right_buffer_that_looks_around_is_judged() -> None:
    for judged in in_worker("LooksAround"):
        assert not judged.broken | judged.unjudged
        assert judged.kept


def test_a_control_after_the_class_finds_what_was_replaced_before_its_first_case(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", f"{MODULE}:PatchesAtItsStart"]) == ExitCode.BROKEN
    out = capsys.readouterr().out
    assert "tampered: the process measures wrongly after it ran this code" in out
    assert "keeps" not in out.splitlines()[-1]


@pytest.fixture
def restored() -> Iterator[None]:
    """Put the patched method back: a test of a live class shares its process with all others."""
    before = RowOwners.runs_of
    yield
    RowOwners.runs_of = before  # type: ignore[method-assign]


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("name", by_day(["Class", "PatchesAtItsStart", "Collector", "Frames"], count=2))
def test_a_live_class_that_tampers_fails_its_test(deepstack_contract: DeepstackContract, name: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="tampered: "):
        deepstack_contract(getattr(tampering_buffers, name), traces=TRACES)


def test_a_live_class_that_looks_around_passes(deepstack_contract: DeepstackContract) -> None:
    assert deepstack_contract(LooksAround, traces=TRACES).kept
