"""Tables of engines: of sources by rule, of a running engine and of a workload; lines about kernels."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cases.selftest.audit.written_verdicts import audited, row
from cases.selftest.contract.oracles.written_observations import ONE_GRAPH, RIGHT, observed
from deepstack_harness.cli.audit_table import NOT_READ, cell_of, show_engine_rules
from deepstack_harness.cli.engine import show_result, sum_up
from deepstack_harness.cli.output import Output
from deepstack_harness.cli.repro_table import access_lines, evaluation_columns, show_evaluation
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, PlannedCase, Regime, registered
from deepstack_harness.contract.facts import AccessFacts, KernelAccess
from deepstack_harness.contract.observation import StepFacts
from deepstack_harness.contract.oracles.judge import judge_case
from deepstack_harness.contract.oracles.outputs import Evaluation
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Row, Verdict
from deepstack_harness.document.blocks import all_of
from deepstack_harness.engines.live.judge import EngineResult
from deepstack_harness.engines.live.models import MODELS
from deepstack_harness.engines.live.schedules import REPLAY_MODES
from deepstack_harness.engines.live.session import StartOrder

ORDER = StartOrder(MODELS["qwen3_vl"], Path("folder"))
NEAR = replace(row(Rule.OUTPUT, Verdict.PASS), value=0.001, limit=0.5)
FAR = replace(row(Rule.OUTPUT, Verdict.FAIL, "default"), value=0.0005, limit=0.0001)
FIRST_MODE = next(iter(REPLAY_MODES.values()))


def result(*rows: Row, **changes: object) -> EngineResult:
    return replace(EngineResult("three images", ORDER, rows, 1.25, steps=7, replayed=3), **changes)  # type: ignore[arg-type]


def table(
    results: Sequence[EngineResult], capsys: pytest.CaptureFixture[str], regime: str
) -> tuple[bool, str]:
    output = Output(None, quiet=False)
    output.show(all_of(map(show_result, results)))
    good = output.show(sum_up(results, regime, 9.0))
    return good, capsys.readouterr().out


def test_a_result_has_its_worst_distance_and_the_rules_that_it_breaks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unmeasured = replace(row(Rule.OUTPUT, Verdict.SKIP), value=None)
    results = [result(NEAR, FAR, unmeasured, replay=FIRST_MODE), result(row(Rule.BOUNDARY, Verdict.PASS))]
    good, output = table(results, capsys, "live")
    lines = [line for line in output.splitlines() if "three images" in line]
    assert [line.split()[-1] for line in lines] == ["R0", "none"]
    assert lines[0].split()[-6:-1] == ["7", "3", "0.0005", "0.0001", "1.2"]
    assert lines[1].split()[-4:-1] == ["-", "-", "1.2"]
    assert FIRST_MODE.name in output
    assert "R0 output: step 1 'get 4' was wrong (default)" in output
    assert not good


CAPTURED = replace(row(Rule.BOUNDARY, Verdict.FAIL), regime=Regime.CAPTURED)
BOTH = "live: keeps R2; emulated replays: breaks R2"
UNJUDGED = row(Rule.FRESHNESS, Verdict.ERROR)


@pytest.mark.parametrize(
    ("rows", "regime", "good", "sentence"),
    [
        ([row(Rule.BOUNDARY, Verdict.PASS)], "live", True, "live: keeps R2"),
        ([row(Rule.BOUNDARY, Verdict.PASS), CAPTURED], "live", True, BOTH),
        ([row(Rule.BOUNDARY, Verdict.PASS), CAPTURED], "captured", False, BOTH),
        ([row(Rule.BOUNDARY, Verdict.PASS), CAPTURED], "both", False, BOTH),
        ([row(Rule.BOUNDARY, Verdict.PASS), UNJUDGED], "live", False, "live: keeps R2, not judged R3"),
        (
            [row(Rule.BOUNDARY, Verdict.PASS), row(Rule.BOUNDARY, Verdict.XFAIL)],
            "live",
            False,
            "live: breaks R2",
        ),
    ],
)
def test_the_verdict_of_a_class_is_that_of_the_requested_regime(
    capsys: pytest.CaptureFixture[str], rows: list[Row], regime: str, good: bool, sentence: str
) -> None:
    met = frozenset({("eager", "text"), ("graph", "image")})
    held, output = table([result(*rows, met=met), result(met=met)], capsys, regime)
    assert held == good
    assert f"vllm 0.22.1, Qwen3VL: {sentence}" in output
    assert "met 2 distinct pairs of dispatch and visual state" in output
    assert output.splitlines()[-1] == "2 results in 9 s"


def test_an_engine_that_gave_no_row_is_not_good(capsys: pytest.CaptureFixture[str]) -> None:
    assert table([result()], capsys, "live")[0] is False


CASE = Case(
    "qwen3_vl", registered("pr40932"), Trace.parse("cap 16: set 16; forward 16"), ArmSpec.parse("eager")
)


@pytest.mark.parametrize(
    ("graphs", "evaluation", "cells"),
    [
        (None, Evaluation(None, 0, 0, 2, 0), ["-", "0", "0", "-", "2", "0"]),
        (2, Evaluation(0.98765, 30, 7, 0, 5), ["0.9877", "30", "7", "2", "0", "5"]),
    ],
)
def test_a_workload_has_the_figures_of_an_evaluation(
    capsys: pytest.CaptureFixture[str], graphs: int | None, evaluation: Evaluation, cells: list[str]
) -> None:
    columns = evaluation_columns([("pr40932", "eager")])
    facts = None if graphs is None else replace(ONE_GRAPH, graphs=graphs)
    Output(None, quiet=False).show(show_evaluation(columns, CASE, facts, evaluation))
    (line,) = capsys.readouterr().out.splitlines()
    assert [column.head for column in columns[:3]] == ["revision", "arm", "greedy as eager"]
    assert line.split() == ["pr40932", "eager", *cells]


LEVEL = KernelAccess(
    "triton_add_0", "payload[0]", 32, 0, 32, argument="in_ptr1", shape=(4, 2), itemsize=4, read=((0, 4),),
    elements_read=8,
)  # fmt: skip


@pytest.mark.parametrize(
    ("accesses", "sentence"),
    [
        ((LEVEL,), "1 launches touched payload rows 0..3 ("),
        (
            (replace(LEVEL, read=(), wild=((4, 6),), end=48),),
            "payload rows 4..5, 1 accesses outside of their ",
        ),
        ((replace(LEVEL, tensor="buffer 0"),), "1 launches touched no row of a payload ("),
    ],
)
def test_payload_rows_that_kernels_touched_are_shown(
    accesses: tuple[KernelAccess, ...], sentence: str
) -> None:
    facts = AccessFacts(accesses, programs=3)
    steps = [
        StepFacts("set 16", 16, accesses=facts),
        StepFacts("forward 16", 16, accesses=facts, distances=replace(RIGHT, effect=0.0)),
        StepFacts("forward 16", 16, accesses=facts, distances=RIGHT),
    ]
    judged_case = judge_case(
        PlannedCase(CASE, None), observed(StepFacts("set 16", 16), StepFacts("forward 16", 16), facts=None)
    )
    judged_case = replace(judged_case, observation=replace(judged_case.observation, steps=tuple(steps)))
    (line,) = access_lines(judged_case)
    assert line.startswith("pr40932, 'forward 16': ")
    assert sentence in line
    assert f"effect {RIGHT.effect:.1e}" in line


LIVE = row(Rule.STRUCTURE, Verdict.PASS)
ARGUMENT = replace(row(Rule.ADDRESS, Verdict.SKIP), detail="the payload is an argument")


def regime(verdict: Verdict, regime: Regime) -> Row:
    return replace(row(Rule.BOUNDARY, verdict), regime=regime)


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
def test_a_cell_shows_the_worst_of_all_classes(rows: list[Row], cell: str) -> None:
    assert cell_of(rows) == cell


def shown(capsys: pytest.CaptureFixture[str], other: str) -> list[str]:
    both = [audited(LIVE, ARGUMENT), replace(audited(LIVE), label="other 1", package=other)]
    Output(None, quiet=False).show(show_engine_rules(both))
    return capsys.readouterr().out.splitlines()


def test_reasons_are_listed_below_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    _, *lines = shown(capsys, "other")
    assert [line.split() for line in lines[:3]] == [
        ["source", "R1", "R6"], ["vllm", "0.22.1", "K", "-"], ["other", "1", "K", "-"],
    ]  # fmt: skip
    reasons = [line.strip() for line in lines[3:] if line]
    assert reasons == [
        "- R6 (vllm 0.22.1): the payload is an argument",
        f"- R6 (other 1): {NOT_READ}",
    ]
    assert max(map(len, lines[:3])) <= 80


def test_one_engine_needs_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "vllm") == []
