"""A source that changed the code which measures it is not judged by what that code says."""

from pathlib import Path

import pytest

from cases.selftest.audit import forging
from cases.selftest.engines.synthetic_vllm import GET, HANDS_ON, INNER_MODEL, ModelFile, Vllm
from deepstack_harness.audit import source_worker as controls
from deepstack_harness.audit.source_worker import CONTROLS, failed_control
from deepstack_harness.catalogue.buffers import MUTANTS
from deepstack_harness.cli.main import main
from deepstack_harness.errors import ExitCode
from deepstack_harness.play.case_worker import CaseWorker
from deepstack_harness.workers.profiles import CONTRACT_LIMITS

MODULE = "cases.selftest.audit.forging"


def test_a_worker_that_measures_passes() -> None:
    with CaseWorker(CONTRACT_LIMITS) as worker:
        assert failed_control(worker) is None
        assert failed_control(worker) is None  # again: the controls leave nothing behind


DAILY = {"see_zeros"}


@pytest.mark.parametrize(
    "forgery",
    [
        pytest.param(one, marks=() if one in DAILY else pytest.mark.slow)
        for one in (forgery.__name__ for forgery in forging.FORGERIES)
    ],
)
def test_a_worker_whose_measuring_was_replaced_is_found_out(forgery: str) -> None:
    with CaseWorker(CONTRACT_LIMITS) as worker:
        assert failed_control(worker) is None  # it has imported all that can be replaced
        worker.call(f"{MODULE}:{forgery}", {})
        said = failed_control(worker)
    assert said is not None
    assert "behind it" in said


def test_mutants_alone_find_a_worker_that_sees_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with CaseWorker(CONTRACT_LIMITS) as worker:
        assert failed_control(worker) is None
        worker.call(f"{MODULE}:play_reference_instead", {})
        assert controls._reference_fails(worker) is None
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
    assert "the worker measures wrongly after it ran this source" in shown
    assert "Not judged: R1, R2, R3" in shown.splitlines()[-1]
