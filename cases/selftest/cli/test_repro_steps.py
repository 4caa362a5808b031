"""`repro`, `show` and `list` of incidents of steps: what a user reads who knows none of our words."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from cases.selftest.row_columns import filled_columns, stated_columns
from deepstack_harness.catalogue.incidents import STEPS, Incident, catalogue, find
from deepstack_harness.cli import repro_steps
from deepstack_harness.cli.main import main
from deepstack_harness.errors import ExitCode

pytestmark = pytest.mark.xdist_group("eager")
INCIDENTS = [incident for incident in catalogue() if incident.system == STEPS]


def beside(shown: str) -> set[str]:
    """Return the words that only somebody who knows deepstack's buffer needs."""
    named = shown.replace("deepstack-harness", "").replace("deepstack_harness", "").lower()
    words = ("deepstack", "payload", "revision", "trace", "family", "regime", "ledger")
    return {word for word in words if re.search(rf"\b{word}\b", named)}


def test_the_broken_row_the_right_twin_and_the_guard_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    assert main(["repro", "35917", "--json", str(file)]) == ExitCode.HOLDS
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines()]
    assert ["ids_in_the_first_run", "eager/drop_all", "1.3", "I1"] in rows
    assert ["embeddings_in_every_run", "eager/drop_all", "0", "none"] in rows
    assert ["ids_in_the_first_run", "eager/stock", "0", "none"] in rows
    assert "the dropped guard L['inputs_embeds'] is None" in shown
    assert shown.endswith(
        "shown: promise I1 broken by ids_in_the_first_run, kept by embeddings_in_every_run\n"
    )
    assert not beside(shown)
    (row, *_) = (row for row in map(json.loads, file.read_text().splitlines()) if row["verdict"] == "FAIL")
    assert (row["incident"], row["system"], row["rule"], row["promise"]) == ("35917", "steps", "I1", "I1")
    assert filled_columns([row]) == stated_columns("steps")
    assert (row["revision"], row["arm"], row["steps"]) == ("ids_in_the_first_run", "eager/drop_all", [2])


def test_an_arm_narrows_the_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repro", "30351", "--arm", "eager/full"]) == ExitCode.HOLDS
    shown = capsys.readouterr().out
    assert "promise I2 broken by new_cache_per_prompt, kept by cache_reset_in_place" in shown
    assert "write_index" not in shown
    assert main(["repro", "35917", "--arm", "eager/stock"]) == ExitCode.HOLDS
    assert "shown: no promise is broken by ids_in_the_first_run, emb" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"broken": {"token_types_or_none": ()}},
            "token_types_or_none under eager/drop_all was to break nothing: step 2: answer differs",
        ),
        (
            {"broken": {"token_types_or_none": ("I4",)}},
            "token_types_or_none under eager/drop_all was to break I4 and to name token_type_ids: step 2",
        ),
        (
            {"input": "hidden"},
            "token_types_or_none under eager/drop_all was to break I1 and to name hidden: step 2: answer",
        ),
        (
            {"broken": {"token_types_or_none": ("I1",), "token_types_always": ("I1",)}},
            "token_types_always under eager/drop_all was to break I1 and to name token_type_ids: nothing is",
        ),
    ],
)
def test_what_the_catalogue_does_not_expect_is_reported(
    change: dict[str, object],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry = msgspec.to_builtins(find("21985"))
    entry |= {"region": [entry["region"][0] | change], "script": None}
    changed = msgspec.convert(entry, Incident)
    monkeypatch.setattr("deepstack_harness.cli.repro.find_or_search", lambda _text: changed)
    assert main(["repro", "21985"]) == ExitCode.BROKEN
    shown = capsys.readouterr().out
    assert f"not as expected: {sentence}" in shown
    assert shown.endswith("not as the catalogue expects: 1 case\n")


def test_a_program_that_tests_nothing_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = [
        program
        for program in repro_steps.judge_programs(find("53915"))
        if program.name == "op_writes_into_a_buffer"
    ]
    assert program.as_expected
    skipped = repro_steps.JudgedProgram(
        program.name, "aot_eager/drop_all", program.judged, program.run
    )  # no finding has that arm
    assert not skipped.as_expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--source", "vllm==0.33.0"], "which play no trace and are in no source: leave --source out"),
        (["--trace", "cap 4: get 4", "--family", "qwen3_vl"], "leave --trace, --family out"),
        (["--upstream-test", "t.py"], "leave --upstream-test out"),
        (["--dtype", "bfloat16"], "leave --dtype out"),
        (["--full"], "leave --full out"),
        (["--arm", "inductor/stock"], "has no arm 'inductor/stock'; it has eager/drop_all"),
        (["--arm", "eager/nothing"], "unknown arm 'eager/nothing'"),
    ],
)
def test_options_of_decoders_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["repro", "35917", *words]) == ExitCode.USAGE
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "incident",
    [incident for incident in catalogue() if incident.system == STEPS],
    ids=lambda incident: incident.id,
)
def test_a_page_has_the_promises_the_programs_and_the_commands(
    incident: Incident, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", incident.name]) == ExitCode.HOLDS
    shown = capsys.readouterr().out
    assert not beside(shown)
    for promise in incident.promises:
        assert f"{promise} {promise.word}:" in shown
    for name in incident.revisions:
        assert f"{name}: " in shown
    assert f"deepstack-harness repro {incident.id} --script FILE" in shown
    assert "--source" not in shown


def test_a_list_has_promises_and_faults_that_nothing_here_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "incidents", "--json", "-"]) == ExitCode.HOLDS
    items = {item["id"]: item for item in map(json.loads, capsys.readouterr().out.splitlines())}
    assert (items["30351"]["promises"], items["30351"]["rules"]) == (["I1", "I2"], [])
    assert "[I1, I2]" in items["30351"]["summary"]
    assert main(["list", "faults"]) == ExitCode.HOLDS
    assert "not covered: to compile again is right by the five promises" in capsys.readouterr().out
