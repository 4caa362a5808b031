"""The table of several engines: a cell for each source and rule, and why a rule cannot be asked."""

from dataclasses import replace

import pytest

from cases.selftest.audit.written_verdicts import audited, row
from deepstack_harness.cli.audit_table import NOT_READ, cell_of, show_engine_rules
from deepstack_harness.cli.output import Output
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Row, Verdict

LIVE = row(Rule.R1, Verdict.PASS)
ARGUMENT = replace(row(Rule.R6, Verdict.SKIP), detail="the payload is an argument")


def regime(verdict: Verdict, regime: Regime) -> Row:
    return replace(row(Rule.R2, verdict), regime=regime)


@pytest.mark.parametrize(
    ("rows", "cell"),
    [
        ([], "-"),
        ([regime(Verdict.SKIP, Regime.LIVE)], "-"),
        ([regime(Verdict.PASS, Regime.LIVE), regime(Verdict.SKIP, Regime.CAPTURED)], "K"),
        ([regime(Verdict.IMPROVED, Regime.LIVE)], "K"),
        ([regime(Verdict.PASS, Regime.LIVE), regime(Verdict.ERROR, Regime.CAPTURED)], "?"),
        ([regime(Verdict.PASS, Regime.LIVE), regime(Verdict.FAIL, Regime.CAPTURED)], "Bc"),
        ([regime(Verdict.XFAIL, Regime.LIVE), regime(Verdict.FAIL, Regime.CAPTURED)], "B"),
        ([regime(Verdict.XFAIL, Regime.NONE)], "B"),
    ],
)
def test_a_cell_tells_the_worst_of_all_classes(rows: list[Row], cell: str) -> None:
    assert cell_of(rows) == cell


def shown(capsys: pytest.CaptureFixture[str], other: str) -> list[str]:
    both = [audited(LIVE, ARGUMENT), replace(audited(LIVE), label="other 1", package=other)]
    show_engine_rules(Output(None, quiet=False), both)
    return capsys.readouterr().out.splitlines()


def test_reasons_stand_below_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    _, *lines = shown(capsys, "other")
    assert [line.split() for line in lines[:3]] == [
        ["source", "R1", "R6"], ["vllm", "0.22.1", "K", "-"], ["other", "1", "K", "-"],
    ]  # fmt: skip
    told = [line.strip() for line in lines[3:] if line]
    assert told == [
        "- R6 (vllm 0.22.1): the payload is an argument",
        f"- R6 (other 1): {NOT_READ}",
    ]
    assert max(map(len, lines[:3])) <= 80


def test_one_engine_needs_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "vllm") == []
