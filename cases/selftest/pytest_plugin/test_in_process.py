"""Parts of the plugin, called directly: what it stores, refuses and does not touch."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
from torch import Tensor, nn

from cases.selftest.audit.written_verdicts import class_verdicts, row
from cases.selftest.runs import written_results
from deepstack_harness.contract.protocols import Inputs
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.errors import ExitCode, MachineError, UsageError
from deepstack_harness.pytest_plugin.compile_arms import CompileArms, run_eagerly
from deepstack_harness.pytest_plugin.fixtures import _complaints
from deepstack_harness.pytest_plugin.options import quiet_torch
from deepstack_harness.pytest_plugin.report import ReportFolder
from deepstack_harness.runs.case_result import CaseResult
from deepstack_harness.runs.frames import read_run

CPU = torch.device("cpu")


def told(*names: str) -> pytest.TestReport:
    """Return the last report of a test whose fixtures judged these cases, as xdist sends it."""
    results = [
        CaseResult((written_results.row(name, "R2", "PASS"),), replace(written_results.case(name), rows=1))
        for name in names
    ]
    return cast(pytest.TestReport, SimpleNamespace(harness_judged=msgspec.to_builtins(results)))


@pytest.fixture
def report(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[ReportFolder]:
    made = ReportFolder(pytestconfig, str(tmp_path / "out"))
    yield made
    made._writer.close()


def test_judgements_are_stored_as_they_come_and_none_of_them_twice(
    report: ReportFolder, tmp_path: Path
) -> None:
    report.pytest_runtest_logreport(cast(pytest.TestReport, SimpleNamespace()))
    report.pytest_runtest_logreport(told("a", "b"))
    report.pytest_runtest_logreport(told("b"))  # by a plugin that runs tests again
    report.pytest_sessionfinish()
    found = read_run(tmp_path / "out")
    assert list(found.cases["case"]) == list(found.rows["case"]) == ["a", "b"]
    assert found.meta[0]["finished"]
    assert found.meta[0]["planned"] == {"groups": 1, "cases": 2}


def test_a_full_disk_ends_the_session_with_the_code_of_the_machine(
    report: ReportFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MachineError("cannot write: No space left on device")

    monkeypatch.setattr(report._writer, "append", full)
    with pytest.raises(pytest.exit.Exception, match="--deepstack-report: cannot write") as ended:
        report.pytest_runtest_logreport(told("a"))
    assert ended.value.returncode == ExitCode.MACHINE


def test_warnings_of_torch_about_the_machine_are_no_errors() -> None:
    said = "Guards may run slower on Python 3.13.0. Consider upgrading to Python 3.13.1+."
    warnings.warn(said, RuntimeWarning, stacklevel=1)
    for other, kind in ((said, UserWarning), ("Guards may run slower", RuntimeWarning)):
        with pytest.raises(kind, match="slower"):
            warnings.warn(other, kind, stacklevel=1)


def test_a_decoder_whose_output_lies_elsewhere_is_refused_with_what_to_do() -> None:
    inputs = Inputs(torch.ones(2, 4), torch.zeros(3, 2), None)

    def decoder(hidden: Tensor, *_: object) -> Tensor:
        return hidden

    with pytest.raises(
        UsageError, match="returned a tensor on cpu, but device is cuda: .* pass device='cpu'"
    ):
        run_eagerly(decoder, torch.device("cuda"), "Mine", inputs)
    assert run_eagerly(decoder, CPU, "Mine", inputs) is not inputs.hidden


def test_arms_without_a_trace_are_refused(compile_arms: CompileArms) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"compile_arms\(traces=\[\]\): there is nothing to play"):
        compile_arms(nn.Linear(1, 1), cast(Any, None), [], hidden=8, levels=2)


@pytest.mark.parametrize(
    ("verdicts", "named", "said"),
    [
        ((Verdict.SKIP, Verdict.SKIP), False, ["  these traces put no rule to the test"]),
        ((Verdict.SKIP, Verdict.PASS), False, []),
        (
            (Verdict.SKIP, Verdict.PASS),
            True,
            ["  not put to the test: R2 boundary: step 1 'get 4' was wrong"],
        ),
    ],
)
def test_traces_that_put_no_rule_to_the_test_are_complained_of(
    verdicts: tuple[Verdict, Verdict], said: list[str], *, named: bool
) -> None:
    rules = (Rule.BOUNDARY, Rule.FRESHNESS)
    rows = [row(rule, verdict) for rule, verdict in zip(rules, verdicts, strict=True)]
    assert list(_complaints(class_verdicts(*rows), rules, named=named)) == said


@pytest.mark.parametrize("asked", [{"option": "INFO"}, {"ini": "INFO"}, {"plugin": None}])
def test_a_project_that_sets_its_log_level_gets_all_records(asked: Mapping[str, Any]) -> None:
    handler = logging.Handler()
    plugin = asked.get("plugin", SimpleNamespace(report_handler=handler))
    config = SimpleNamespace(
        pluginmanager=SimpleNamespace(get_plugin=lambda _: plugin),
        getoption=lambda _: asked.get("option"),
        getini=lambda _: asked.get("ini", ""),
    )
    quiet_torch(cast(pytest.Config, config))()
    assert handler.filters == []
