"""Inputs at risk that are driven: wrong and right regions, written before the code that drives them.

One worker runs all of them, which takes most of the time.
"""

import json
from pathlib import Path

import pytest
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Sarif

from deepstack_harness.audit.driven_inputs import Driven, DriveResult, drive_inputs
from deepstack_harness.audit.inputs import InputChange, InputKind, InputSeen, InputStanding, Standing
from deepstack_harness.cli.main import main
from deepstack_harness.contract.rules import Promise

SYNTHETIC = Path(__file__).parents[1] / "engines/synthetic/inputs"
ARGUMENTS = "vllm/model_executor/models/arguments.py"
ATTRIBUTES = "vllm/model_executor/models/attributes.py"


def row(
    model_class: str,
    name: str,
    kind: InputKind = InputKind.ARGUMENT,
    warm_up: InputSeen = InputSeen.NONE,
    change: InputChange = InputChange.PRESENCE,
) -> InputStanding:
    member = ATTRIBUTES if kind is InputKind.ATTRIBUTE else ARGUMENTS
    return InputStanding(
        model_class, name, Standing.AT_RISK, "", "", kind, member, 1, warm_up, InputSeen.EITHER, change
    )


ATTRIBUTE, LOST, VALUE, GIVEN = InputKind.ATTRIBUTE, InputChange.LOST, InputChange.VALUE, InputSeen.GIVEN
WRONG = [
    (row("AddsTensor", "extra"), Promise.I1, "L['extra'] is None"),
    (row("AddsByLayer", "by_layer"), Promise.I1, "L['by_layer'] is None"),
    (row("AddsTuple", "levels"), Promise.I1, "L['levels'] is None"),
    (row("Repeats", "times"), Promise.I1, "L['times'] is None"),
    (row("AddsNamed", "named"), Promise.I1, "L['named'] is None"),
    (row("TakesPerLayer", "per_layer"), Promise.I1, "L['per_layer'] is None"),
    (row("Masks", "is_padding"), Promise.I1, "L['is_padding'] is None"),
    (row("EmbedsTypes", "segment_ids"), Promise.I1, "L['segment_ids'] is None"),
    (row("ZerosInside", "bias"), Promise.I1, "L['bias'] is None"),
    (row("GivenFirst", "extra", warm_up=GIVEN), Promise.I1, "check_tensor(L['extra']"),
    (row("Staged", "rows", change=LOST), Promise.I5, ""),
    (row("AddsHeld", "held", ATTRIBUTE), Promise.I1, "L['self'].held is None"),
    (row("Scales", "strength", ATTRIBUTE, change=VALUE), Promise.I1, "L['self'].strength == 0.0"),
    (row("Switches", "is_draft", ATTRIBUTE, change=VALUE), Promise.I1, "L['self'].is_draft == False"),
]
RIGHT = [
    (row("Ignores", "extra"), Driven.UNREAD),
    (row("Refuses", "rows"), Driven.KEPT),
    (row("TimesZero", "extra"), Driven.UNKNOWN),
    (row("Staged", "rows", change=LOST), Driven.KEPT),
    (row("Counts", "steps", ATTRIBUTE), Driven.UNREAD),
]


def drive(folder: str, rows: list[InputStanding]) -> dict[tuple[str, str], DriveResult]:
    return {
        (each.model_class, each.input): result for each, result in drive_inputs(str(SYNTHETIC / folder), rows)
    }


@pytest.fixture(scope="module")
def wrong() -> dict[tuple[str, str], DriveResult]:
    return drive("wrong", [each for each, _, _ in WRONG])


@pytest.fixture(scope="module")
def right() -> dict[tuple[str, str], DriveResult]:
    return drive("right", [each for each, _ in RIGHT])


@pytest.mark.parametrize(
    ("wanted", "promise", "guard"), [pytest.param(*case, id=case[0].model_class) for case in WRONG]
)
def test_a_wrong_region_is_caught(
    wrong: dict[tuple[str, str], DriveResult], wanted: InputStanding, promise: Promise, guard: str
) -> None:
    result = wrong[wanted.model_class, wanted.input]
    assert (result.driven, result.promise) == (Driven.BROKEN, promise), result
    assert guard in result.guard
    assert result.effect
    assert wanted.input in result.detail
    if promise is Promise.I1:
        assert result.steps == (1, 2)
        assert result.where.startswith(f"{wanted.member}:")


@pytest.mark.parametrize(
    ("wanted", "driven"), [pytest.param(*case, id=case[0].model_class) for case in RIGHT]
)
def test_a_right_region_is_never_broken(
    right: dict[tuple[str, str], DriveResult], wanted: InputStanding, driven: Driven
) -> None:
    result = right[wanted.model_class, wanted.input]
    assert result.driven is driven, result
    assert result.promise is (Promise.I5 if wanted.change is LOST else None)


def test_what_cannot_be_driven_is_named_with_its_place() -> None:
    """Neither a class that is not there, nor one whose reader a stand-in replaces, costs a worker."""
    lost = InputStanding("NoSuch", "x", Standing.AT_RISK, "", "", InputKind.ARGUMENT, ARGUMENTS, 3)
    inner = InputStanding(
        "AddsHeld", "held", Standing.AT_RISK, "", "", ATTRIBUTE, ATTRIBUTES, 4, read_by="Layer"
    )
    results = list(drive_inputs(str(SYNTHETIC / "wrong"), [lost, inner]))
    assert [result.driven for _, result in results] == [Driven.UNKNOWN] * 2
    assert "no class NoSuch" in results[0][1].detail
    assert results[1][1].where == f"{ATTRIBUTES}:4"


def test_the_command_tells_what_was_driven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows_file, sarif = tmp_path / "rows.jsonl", tmp_path / "findings.sarif"
    options = ["--json", str(rows_file), "--sarif", str(sarif)]
    code = main(["audit", "--inputs", "--source", str(SYNTHETIC / "right"), *options])
    rows = [json.loads(line) for line in rows_file.read_text().splitlines()]
    driven = {each["model_class"]: each["driven"] for each in rows if each["standing"] == Standing.AT_RISK}
    assert driven["Refuses"]["driven"] == "kept"
    for caller in ("ZerosOutside", "ZerosByMethod"):
        assert driven[caller]["driven"] == "kept"
        assert "the warm-up is given one too" in driven[caller]["detail"]
    assert driven["Ignores"]["driven"] == "not read"
    assert {each["driven"] for each in rows if each["standing"] != Standing.AT_RISK} == {None}
    assert code == 1, "TimesZero could not be put to the test"
    (result,) = Sarif.model_validate_json(sarif.read_text()).runs[0].results or []
    assert result.ruleId == "not-driven"
    assert "TimesZero.extra" in str(result.message)
    lines = capsys.readouterr().out.splitlines()
    assert "could not be driven" in lines[-1]
    assert max(len(line) for line in lines if str(tmp_path) not in line and str(SYNTHETIC) not in line) <= 80
