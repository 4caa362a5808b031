"""`show`: an incident in full, at any width; `list` prints why a name of another package cannot be used."""

import json
from pathlib import Path

import pytest

from deepstack_harness.catalogue.incidents import catalogue
from deepstack_harness.cli.list import _refused
from deepstack_harness.cli.main import main
from deepstack_harness.contract.names import Extension
from deepstack_harness.errors import ExitCode

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("incident", [incident.id for incident in catalogue()])
def test_all_of_an_incident_is_shown_within_the_width(
    incident: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["show", incident]) == ExitCode.HOLDS
    out = capsys.readouterr().out
    output = "".join(out.split())
    (entry,) = [entry for entry in catalogue() if entry.id == incident]
    for text in (
        entry.title,
        entry.symptom,
        entry.cause,
        *entry.references,
        *entry.symptoms,
        *entry.errors,
        *(release.in_words for release in entry.affected),
        *(run.note for run in entry.run),
    ):
        assert "".join(text.split()) in output
    assert f"deepstack-harness repro {incident}" in out
    # What has no blank to break at is longer than a narrow terminal, and so are traces and commands.
    prose = [
        line for line in out.splitlines() if not line.startswith(("incident", "trace", "deepstack-harness"))
    ]
    assert all(len(line) <= max(columns, 10 + len(max(line.split(), key=len))) for line in prose if line)


def test_a_program_gets_the_entry_with_links_and_releases(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    assert main(["show", "none-while-profiling", "--json", str(path), "--quiet"]) == ExitCode.HOLDS
    entry = json.loads(path.read_text())
    assert entry["id"] == "43602"
    assert entry["links"]["vllm 43602"] == "https://github.com/vllm-project/vllm/issues/43602"
    assert {failure["reference"] for failure in entry["known_failures"]} == {"vllm 43602"}


def test_a_live_fault_and_the_state_of_a_report_are_shown(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    assert main(["show", "replayed-erase", "--json", str(path)]) == ExitCode.HOLDS
    assert "live      F3, vllm-omni 0.22.0 .. 0.30.0 (run): " in capsys.readouterr().out
    assert [text["id"] for text in json.loads(path.read_text())["live_faults"]] == ["F3"]
    assert main(["show", "129"]) == ExitCode.HOLDS
    text = " ".join(capsys.readouterr().out.split())
    assert "https://github.com/ISEEKYAN/mbridge/issues/129 (pull request, merged in 2026-05)" in text
    assert "live F" not in text


def test_live_faults_are_listed_with_what_became_of_each(capsys: Capture) -> None:
    assert main(["list", "faults"]) == ExitCode.HOLDS
    lines = capsys.readouterr().out.splitlines()
    assert any("F3 " in line and line.endswith("audit --source vllm-omni==0.30.0") for line in lines)
    assert any("F8 " in line and "; unknown: it takes sglang's layer boundary" in line for line in lines)


def test_an_oracle_that_is_named_after_no_rule_is_refused_by_its_name() -> None:
    named = Extension("oracles", "speed", "other:speed", "other 1.0")
    assert _refused(named).startswith("oracle 'speed' of other 1.0 is not called RULE.NAME with a rule")
