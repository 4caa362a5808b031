"""Inputs at risk that are run: wrong and right regions, written before the code that runs them.

Each input is compiled twice, half a second of processor time; a few of each kind are run daily,
in one worker, and the rest at night.
"""

import json
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path

import pytest
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Sarif

from cases.selftest.row_columns import filled_columns, stated_columns
from deepstack_harness.audit.driven_inputs import drive_inputs
from deepstack_harness.audit.inputs import InputChange, InputKind, InputSeen, InputStanding, Place, Standing
from deepstack_harness.cli.main import main
from deepstack_harness.contract.rules import Promise
from deepstack_harness.contract.verdicts import Row, Verdict

SYNTHETIC = Path(__file__).parents[1] / "engines/synthetic/inputs"
MODELS = "vllm/model_executor/models"


def row(
    model_class: str,
    name: str,
    kind: InputKind = InputKind.ARGUMENT,
    warm_up: InputSeen = InputSeen.NONE,
    change: InputChange = InputChange.PRESENCE,
) -> InputStanding:
    member = f"{MODELS}/{kind}s.py"
    return InputStanding(
        model_class, name, Standing.AT_RISK, "", "", kind, member, 1, warm_up, InputSeen.EITHER, change
    )


ATTRIBUTE, LOST, VALUE, GIVEN = InputKind.ATTRIBUTE, InputChange.LOST, InputChange.VALUE, InputSeen.GIVEN
Wrong = tuple[InputStanding, Promise, str]
DAILY: list[Wrong] = [
    (row("AddsNamed", "named"), Promise.SPECIALISATION, "L['named'] is None"),
    (row("GivenFirst", "extra", warm_up=GIVEN), Promise.SPECIALISATION, "check_tensor(L['extra']"),
    (row("Staged", "rows", change=LOST), Promise.OWNERSHIP, ""),
    (row("AddsHeld", "held", ATTRIBUTE), Promise.SPECIALISATION, "L['self'].held is None"),
    (
        replace(row("HoldsReader", "bias", ATTRIBUTE), read_by="Reader"),
        Promise.SPECIALISATION,
        "L['self'].bias is None",
    ),
]
NIGHTLY: list[Wrong] = [
    (row("TakesPerLayer", "per_layer"), Promise.SPECIALISATION, "L['per_layer'] is None"),
    (row("EmbedsTypes", "segment_ids"), Promise.SPECIALISATION, "L['segment_ids'] is None"),
    (row("LooksOnly", "extra"), Promise.SPECIALISATION, "L['extra'] is None"),
    (row("AddsTensor", "extra"), Promise.SPECIALISATION, "L['extra'] is None"),
    (row("AddsByLayer", "by_layer"), Promise.SPECIALISATION, "L['by_layer'] is None"),
    (row("AddsTuple", "levels"), Promise.SPECIALISATION, "L['levels'] is None"),
    (row("Repeats", "times"), Promise.SPECIALISATION, "L['times'] is None"),
    (row("Masks", "is_padding"), Promise.SPECIALISATION, "L['is_padding'] is None"),
    (row("ZerosInside", "bias"), Promise.SPECIALISATION, "L['bias'] is None"),
    (row("ZerosTheWrongWay", "extra"), Promise.SPECIALISATION, "L['extra'] is None"),
    (row("ByNumber", "rows"), Promise.SPECIALISATION, "L['rows'] is None"),
    (row("Scales", "strength", ATTRIBUTE, change=VALUE), Promise.SPECIALISATION, "L['self'].strength == 0.0"),
    (
        row("Switches", "is_draft", ATTRIBUTE, change=VALUE),
        Promise.SPECIALISATION,
        "L['self'].is_draft == False",
    ),
]
RIGHT = [
    (row("Staged", "rows", change=LOST), Verdict.PASS),
    (row("Counts", "steps", ATTRIBUTE), Verdict.ERROR),
]
STORED = row("StoredRows", "levels")
HOSTILE = """
import os
import torch
from torch import nn

from vllm.compilation.decorators import support_torch_compile


@support_torch_compile
class Leaves(nn.Module):
    def forward(self, input_ids, positions, inputs_embeds=None, extra=None):
        if extra is not None:
            os._exit(0)
        return self.layer(positions, inputs_embeds)


@support_torch_compile
class Adds(nn.Module):
    def forward(self, input_ids, positions, inputs_embeds=None, extra: "torch.Tensor | None" = None):
        hidden = self.layer(positions, inputs_embeds)
        return hidden if extra is None else hidden + extra


@support_torch_compile
class Random(nn.Module):
    def forward(self, input_ids, positions, inputs_embeds=None, extra: "torch.Tensor | None" = None):
        hidden = self.layer(positions, inputs_embeds) + int.from_bytes(os.urandom(4), 'big') / 2**32
        return hidden if extra is None else hidden + extra
"""
ROW_COLUMNS = {field.name for field in fields(Row)}
Results = dict[tuple[str, str], Row[Promise]]


def drive(source: Path, rows: Iterable[InputStanding]) -> Results:
    return {(row.member, row.model_class): result for row, result in drive_inputs(str(source), rows)}


def in_file(wanted: InputStanding, name: str) -> InputStanding:
    """Return the row of a class that lies in another file."""
    return replace(wanted, member=f"{MODELS}/{name}.py")


@pytest.fixture(scope="module")
def daily(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The verdicts of one worker on wrong, right and hostile classes, which lie in one source."""
    tree = tmp_path_factory.mktemp("source")
    models = tree / MODELS
    models.mkdir(parents=True)
    (tree / "vllm/__init__.py").write_text("")
    for folder in ("wrong", "right"):
        for kind in ("arguments", "attributes"):
            text = (SYNTHETIC / folder / MODELS / f"{kind}.py").read_text()
            (models / f"{folder}_{kind}.py").write_text(text)
    (models / "hostile.py").write_text(HOSTILE)
    lines = (models / "right_arguments.py").read_text().splitlines()
    call = "input_ids, positions, intermediate_tensors, inputs_embeds=inputs_embeds, levels=levels"
    (line,) = (number for number, text in enumerate(lines, 1) if text.strip() == call)
    rows = [
        replace(
            in_file(STORED, "right_arguments"),
            writers=(
                Place(f"{MODELS}/right_arguments.py", line, "StoredRowsForConditionalGeneration", "forward"),
            ),
        ),
        *(in_file(row(name, "extra"), "hostile") for name in ("Leaves", "Adds", "Random")),
        *(in_file(wanted, f"wrong_{wanted.kind}s") for wanted, _, _ in DAILY),
        *(in_file(wanted, f"right_{wanted.kind}s") for wanted, _ in RIGHT),
    ]
    return drive(tree, rows)


@pytest.fixture(scope="module")
def nightly() -> Results:
    return drive(SYNTHETIC / "wrong", [wanted for wanted, _, _ in NIGHTLY])


def check_broken(result: Row[Promise], wanted: InputStanding, promise: Promise, guard: str) -> None:
    assert (result.verdict, result.rule) == (Verdict.FAIL, promise), result
    assert guard in " ".join(result.guards)
    assert result.influence
    assert wanted.input in result.detail
    if promise is Promise.SPECIALISATION:
        assert (result.step, result.steps) == (2, (2,))
        assert str(result.where).startswith(f"{wanted.member}:")


@pytest.mark.parametrize(
    ("wanted", "promise", "guard"), [pytest.param(*case, id=case[0].model_class) for case in DAILY]
)
def test_a_wrong_region_is_caught(
    daily: Results, wanted: InputStanding, promise: Promise, guard: str
) -> None:
    moved = in_file(wanted, f"wrong_{wanted.kind}s")
    check_broken(daily[moved.member, wanted.model_class], moved, promise, guard)


def test_the_page_states_the_columns_of_a_row(daily: Results) -> None:
    filled = filled_columns(daily.values())
    assert filled == stated_columns("input") & ROW_COLUMNS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wanted", "promise", "guard"), [pytest.param(*case, id=case[0].model_class) for case in NIGHTLY]
)
def test_more_wrong_regions_are_caught(
    nightly: Results, wanted: InputStanding, promise: Promise, guard: str
) -> None:
    check_broken(nightly[wanted.member, wanted.model_class], wanted, promise, guard)


@pytest.mark.parametrize(
    ("wanted", "driven"), [pytest.param(*case, id=case[0].model_class) for case in RIGHT]
)
def test_a_right_region_is_never_broken(daily: Results, wanted: InputStanding, driven: Verdict) -> None:
    result = daily[f"{MODELS}/right_{wanted.kind}s.py", wanted.model_class]
    assert result.verdict is driven, result
    assert result.rule is wanted.promise
    assert bool(result.arm) == (wanted.change is LOST)  # the other one was not judged under any


def test_a_profile_run_of_the_caller_decides_what_the_warm_up_sees(daily: Results) -> None:
    """The caller allocates in its `__init__`, which is run as far as its storage needs it."""
    result = daily[f"{MODELS}/right_arguments.py", STORED.model_class]
    assert result.verdict is Verdict.PASS, result
    assert "the warm-up is given one too" in result.detail
    assert result.influence


def test_code_that_ends_its_process_is_reported_and_the_next_input_is_run(daily: Results) -> None:
    leaves, adds, unstable = (daily[f"{MODELS}/hostile.py", name] for name in ("Leaves", "Adds", "Random"))
    assert leaves.verdict is Verdict.ERROR
    assert "exit" in leaves.detail
    assert leaves.where == f"{MODELS}/hostile.py:1"
    assert adds.verdict is Verdict.FAIL
    assert unstable.verdict is Verdict.ERROR
    assert "between two uncompiled runs" in unstable.detail


def test_what_cannot_be_run_is_named_with_its_place() -> None:
    inner = replace(row("AddsHeld", "held", ATTRIBUTE), line=4, read_by="Layer")
    results = [result for _, result in drive_inputs(str(SYNTHETIC / "wrong"), [row("NoSuch", "x"), inner])]
    assert [result.verdict for result in results] == [Verdict.ERROR] * 2
    assert "no class NoSuch" in results[0].detail
    assert "makes no part of class Layer" in results[1].detail
    assert str(results[1].where).startswith(f"{MODELS}/attributes.py:")


@pytest.mark.slow  # 5 s
def test_the_command_prints_what_was_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows_file, sarif = tmp_path / "rows.jsonl", tmp_path / "findings.sarif"
    options = ["--json", str(rows_file), "--sarif", str(sarif)]
    code = main(["audit", "--inputs", "--source", str(SYNTHETIC / "right"), *options])
    rows = [json.loads(line) for line in rows_file.read_text().splitlines()]
    judged = {row["model_class"]: row for row in rows if row["standing"] == Standing.AT_RISK}
    assert judged["Refuses"]["verdict"] == "PASS"
    for caller in ("ZerosOutside", "ZerosByMethod", "TupleOfZeros"):
        assert judged[caller]["verdict"] == "PASS"
        assert "the warm-up is given one too" in judged[caller]["detail"]
    assert judged["Ignores"]["verdict"] == "SKIP"
    others = [row for row in rows if row["standing"] != Standing.AT_RISK]
    assert {(row["verdict"], row["arm"]) for row in others} == {("SKIP", "")}
    assert all(row["detail"] == row["why"] for row in others)
    assert {(row["evidence"], row["seen"]) for row in rows} == {("read", "")}
    assert filled_columns(rows) <= stated_columns("input")
    assert all(row.keys() <= {*stated_columns("input"), *ROW_COLUMNS} for row in rows)
    assert code == 1, "TimesZero could not be put to the test"
    (result,) = Sarif.model_validate_json(sarif.read_text()).runs[0].results or []
    assert result.ruleId == "not-judged"
    assert "TimesZero: its input extra" in str(result.message)
    lines = capsys.readouterr().out.splitlines()
    assert any("could not be judged" in line for line in lines)
    assert "  evidence    read: in no running engine yet" in lines
    assert max(len(line) for line in lines if str(tmp_path) not in line and str(SYNTHETIC) not in line) <= 80
