"""`compare` finds causes: one planted fault is one finding, two are two, and all else follows from them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cases.by_day import by_day
from cases.selftest.runs.planted import (
    PAIRS,
    SINGLE,
    ClearsNothing,
    NoneWhenEmpty,
    OneRowLess,
    TakesNegativeGet,
    play,
    stored,
)
from deepstack_harness.cli.main import main
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import FaultKind, Row, Verdict
from deepstack_harness.errors import ExitCode
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.runs.case_result import CaseResult
from deepstack_harness.runs.causes import ChangeCause, ObservedFault, findings
from deepstack_harness.runs.compare import ChangeKind, compare
from deepstack_harness.runs.store import read_stored

Results = tuple[CaseResult, ...]
Between = Callable[[Results, Results], list[ChangeCause]]


@pytest.fixture
def between(tmp_path: Path) -> Between:
    """Findings between two runs; every change is in one of them, once."""

    def judge(before: Results, after: Results) -> list[ChangeCause]:
        old = read_stored(stored(tmp_path / "old", *before))
        new = read_stored(stored(tmp_path / "new", *after))
        changes = compare(old, new)
        causes = findings(changes, old, new)
        marked = [
            replace(change, cause="", consequence=False) for finding in causes for change in finding.marked
        ]
        assert sorted(marked, key=str) == sorted(changes, key=str)
        return causes

    return judge


def with_rows(results: Results, edit: Callable[[Row], Row]) -> Results:
    """The results as they would be if the rows were these."""
    return tuple(replace(result, rows=tuple(map(edit, result.rows))) for result in results)


@pytest.mark.parametrize("planted", by_day(SINGLE, count=2), ids=lambda planted: planted.__name__)
def test_one_fault_is_one_finding(planted: type[ReferenceBuffer], between: Between) -> None:
    (finding,) = between(play(ReferenceBuffer), play(planted))
    assert finding.kind is ChangeKind.REGRESSION
    assert finding.title.startswith(f"{SINGLE[planted]} ")
    assert finding.subjects == {"reference": len(finding.cases)}
    assert finding.detail


@pytest.mark.parametrize("planted", by_day(PAIRS), ids=lambda planted: planted.__name__)
def test_two_faults_are_two_findings(planted: type[ReferenceBuffer], between: Between) -> None:
    causes = between(play(ReferenceBuffer), play(planted))
    assert sorted(finding.title.partition(" ")[0] for finding in causes) == sorted(PAIRS[planted])
    assert {finding.kind for finding in causes} == {ChangeKind.REGRESSION}


@pytest.mark.slow  # 8 s
def test_what_a_fault_does_to_a_compiled_decoder_follows_from_it(between: Between) -> None:
    """As vLLM issue 43602: None while nothing is set, so a graph without the payload."""
    before, after = ((*play(made), *play(made, compiled=True)) for made in (ReferenceBuffer, NoneWhenEmpty))
    (finding,) = between(before, after)
    assert finding.title == "R1 structure: none in get"
    assert {"R0"} <= finding.counted()[ChangeKind.REGRESSION].keys()
    assert {"R5", "R11"} <= finding.counted()[ChangeKind.MISSING].keys()
    assert finding.shortest is not None
    assert finding.shortest.trace == "cap 16: get 4"


@pytest.mark.slow  # 2 s
def test_the_same_fault_in_two_revisions_is_one_finding_that_names_both(between: Between) -> None:
    names = ("reference", "pr49397")
    before, after = (
        tuple(result for name in names for result in play(made, name))
        for made in (ReferenceBuffer, ClearsNothing)
    )
    (finding,) = between(before, after)
    assert finding.subjects == dict.fromkeys(names, len(finding.cases) // 2)


@pytest.mark.slow  # 2 s
def test_another_fault_in_another_revision_is_another_finding(between: Between) -> None:
    before = (*play(ReferenceBuffer), *play(ReferenceBuffer, "pr49397"))
    causes = between(before, (*play(ClearsNothing), *play(TakesNegativeGet, "pr49397")))
    assert [(finding.title.partition(" ")[0], list(finding.subjects)) for finding in causes] == [
        ("R5", ["reference"]), ("R8", ["pr49397"]),
    ]  # fmt: skip


def test_a_fault_that_is_mended_is_one_improvement(between: Between) -> None:
    (finding,) = between(play(NoneWhenEmpty), play(ReferenceBuffer))
    assert finding.kind is ChangeKind.IMPROVEMENT
    assert finding.title == "kept now, R1 structure: none in get before"
    assert ChangeKind.NEW in finding.counted()


def test_a_fault_is_not_hidden_by_another_one_of_its_rule(between: Between) -> None:
    def raising(row: Row) -> Row:
        broken = row.rule is Rule.REJECTION and row.verdict is Verdict.FAIL
        return replace(row, shape=FaultKind.RAISED, exception="IndexError") if broken else row

    before = play(TakesNegativeGet)
    (finding,) = between(before, with_rows(before, raising))
    assert finding.title == "R8 rejection: raised IndexError in get"
    assert {change.before for change in finding.changes} == {"broken: accepted"}
    assert {change.after for change in finding.changes} == {"broken: raised IndexError"}


def test_rows_that_vanish_with_a_fault_follow_from_it_and_elsewhere_do_not(between: Between) -> None:
    def unjudged(row: Row) -> Row:
        return replace(row, verdict=Verdict.SKIP) if row.rule is Rule.PLACEMENT else row

    first, second = between(play(ReferenceBuffer), with_rows(play(ClearsNothing), unjudged))
    assert first.title.startswith("R5 ")
    assert first.counted()[ChangeKind.MISSING].keys() == {"R7"}
    assert second.title == "R7: no longer put to the test"
    assert not {change.case for change in first.changes} & {change.case for change in second.changes}


OUTPUT = (Rule.OUTPUT, "", FaultKind.OUTPUT)
NONE = (Rule.STRUCTURE, "get", FaultKind.NONE)
ZEROS = (Rule.BOUNDARY, "get", FaultKind.ZEROS)
Cause = tuple[Rule, str, FaultKind]


@pytest.mark.parametrize(
    ("cause", "effect", "follows"),
    [
        (NONE, OUTPUT, True),
        (OUTPUT, NONE, False),
        (OUTPUT, (Rule.GRAPHS, "", FaultKind.GRAPHS), False),
        ((Rule.FRESHNESS, "set", FaultKind.ARGUMENT_CHANGED), ZEROS, False),
        ((Rule.ADDRESS, "get", FaultKind.MOVED), (Rule.FRESHNESS, "get", FaultKind.REPLACED), True),
        (ZEROS, (Rule.CLEAR, "get", FaultKind.CLEARED), False),
        ((Rule.GRAPHS, "get", FaultKind.STRIDES), (Rule.ADDRESS, "get", FaultKind.ALLOCATED), True),
    ],
)
def test_what_can_follow_from_what(cause: Cause, effect: Cause, *, follows: bool) -> None:
    assert ObservedFault(*cause, "").explains(ObservedFault(*effect, "")) is follows


def test_the_command_shows_the_cause_first_and_folds_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    old = stored(tmp_path / "old", *play(ReferenceBuffer))
    new = stored(tmp_path / "new", *play(OneRowLess))
    assert main(["compare", str(old), str(new)]) == ExitCode.BROKEN
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1 regression (")
    assert sum(line.startswith("regression: ") for line in lines) == 1
    assert len(lines) < 20
    assert all(len(line) <= 80 for line in lines if not line.startswith("  play it"))
    assert main(["compare", str(old), str(new), "--all"]) == ExitCode.BROKEN
    assert len(capsys.readouterr().out.splitlines()) > len(lines) + 20
