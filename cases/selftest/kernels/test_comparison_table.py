"""The table of two revisions: totals with their ratio, and the kernels that differ, each once."""

from dataclasses import replace

import pytest

from cases.selftest.kernels.test_command import QWEN, kernel
from deepstack_harness.contract.facts.kernels import GraphCall, Kernel
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.kernels.measurement import Cost, Measurement
from deepstack_harness.reporting.terminal.kernel_table import show_comparison, show_judgement
from deepstack_harness.reporting.terminal.output import Output

OTHER = replace(QWEN, revision="pr49397")
SLICE = kernel(1024, kernel="fused_slice", symbolic_points="8192")


def measured(*kernels: Kernel) -> Measurement:
    call = GraphCall(0, symbolic=True, symbols={"n": 77}, kernels=kernels)
    return Measurement("qwen3_vl:opaque", (call,), 1, "2.13.0", None, "cpu", Cost(1.0, 0.5, 2**30))


def compared(one: Measurement, other: Measurement, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show_comparison(Output(None, quiet=False), [QWEN, OTHER], [one, other])
    return capsys.readouterr().out.splitlines()


def test_kernels_that_differ_stand_once_with_both_figures(capsys: pytest.CaptureFixture[str]) -> None:
    one = measured(kernel(9856), kernel(9856), kernel(256, kernel="equal"), SLICE)
    other = measured(kernel(1280), kernel(1280), kernel(256, kernel="equal"))
    lines = compared(one, other, capsys)
    assert "1 kernels are equal, 3 differ" in lines
    rows = [line.split() for line in lines if line.endswith(("fused_add", "fused_slice"))]
    assert rows[0] == ["2", "9,856", "1,280", "77", "10", "39,424", "5,120", "7.7x", "fused_add"]
    # It has no other side, and so no ratio to it.
    assert rows[1] == ["1", "1,024", "-", "8", "-", "4,096", "-", "fused_slice"]
    assert lines[-1] == "took 2.0 s (1.0 s of processor time), 1.0 GiB at most"


def test_equal_kernels_make_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = compared(measured(kernel(256)), measured(kernel(256)), capsys)
    assert "1 kernels are equal, 0 differ" in lines
    assert not [line for line in lines if line.startswith("times")]


def test_a_rule_is_said_with_its_figure_where_it_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    show_judgement(
        Output(None, quiet=False), QWEN, Judgement(Rule.R10, Verdict.FAIL, 8192, 77, "rows", "a slice")
    )
    show_judgement(Output(None, quiet=False), QWEN, Judgement(Rule.R10, Verdict.SKIP, detail="no kernel"))
    broken, skipped = capsys.readouterr().out.splitlines()
    assert broken.startswith("R10 of pr43617: ")
    assert broken.endswith(", 8,192 rows against 77; a slice")
    assert skipped.endswith("; no kernel")
    assert "against" not in skipped
