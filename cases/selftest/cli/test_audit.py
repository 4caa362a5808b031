"""`audit` around the judging: what it prints, writes as JSON and SARIF, and means by `--base`."""

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Sarif

from cases.selftest.audit.written_verdicts import (
    MEMBER,
    audited,
    audited_class,
    base_with,
    class_verdicts,
    row,
)
from cases.selftest.engines.synthetic_vllm import HANDS_ON, ModelFile, Vllm
from deepstack_harness.audit.account import Account, UnjudgedCarrier
from deepstack_harness.audit.audited_source import AuditedSource, located
from deepstack_harness.audit.findings import audit_findings
from deepstack_harness.audit.gate import Base, Gate, judge_gate
from deepstack_harness.cli import audit, audit_table
from deepstack_harness.cli.output import Output
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.document.findings import sarif_text
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import Reason

Capture = pytest.CaptureFixture[str]
NO_FORM = {"sarif": None, "markdown": None, "annotations": False}
BROKEN = row(Rule.FRESHNESS, Verdict.FAIL, "latent")
FOUND = audited(BROKEN)
REFUSED = UnjudgedCarrier("Qwen3Omni", MEMBER, 7, "its forward needs a tower")
KNOWN = replace(REFUSED, name="Known", reason="no encoder writes it")
ACCOUNT = Account(unjudged=(REFUSED, KNOWN))
ARGUMENTS = Namespace(**NO_FORM, source=["vllm==0.22.1"], all=False, bisect=False, fail_on=None, base=None)


def test_graphs_that_were_not_run_and_refused_classes_are_listed_below_the_table(capsys: Capture) -> None:
    source = replace(FOUND, account=ACCOUNT, no_graphs=(Reason("no replay was found"),))
    result = judge_gate([source], Gate.FLAG)
    Output(None, quiet=False).show(audit._show(ARGUMENTS, [source], result, None, ["a note"]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == audit_table.answer_of(source)
    assert lines[3] == "a note"
    assert f"  Qwen3Omni, {MEMBER}:7 (vllm 0.22.1): its forward needs a tower" in lines
    assert "  vllm 0.22.1, no encoder writes it: Known" in lines
    assert "1 finding in 1 class under calls no engine makes today: --all shows them" in lines
    assert any(line.strip() == "graphs (vllm 0.22.1): no replay was found" for line in lines), lines


def test_all_shows_latent_findings_and_places(capsys: Capture) -> None:
    source = replace(FOUND, account=ACCOUNT)
    result = judge_gate([source], Gate.FLAG)
    Output(None, quiet=False).show(
        audit._show(Namespace(**{**vars(ARGUMENTS), "all": True}), [source], result)
    )
    lines = capsys.readouterr().out.splitlines()
    assert f"  no encoder writes it: Known, {MEMBER}:7 (vllm 0.22.1)" in lines
    assert "wrong under calls no engine makes today" in lines
    assert not any("--all shows them" in line for line in lines)


@pytest.mark.parametrize(
    ("options", "base", "told"),
    [
        ({}, None, "exit code 1: 1 finding"),
        ({"fail_on": "new"}, None, "1 finding that no catalogue knows"),
        ({"fail_on": "new", "bisect": True}, None, "--bisect every fault counts: --fail-on new is not used"),
        ({"base": "main"}, base_with(BROKEN), "1 finding that 'main' has too: audit without --base shows"),
    ],
)
def test_the_output_names_what_counted(
    options: dict[str, object], base: Base | None, told: str, capsys: Capture
) -> None:
    args = Namespace(**{**vars(ARGUMENTS), "fail_on": "any", **options})
    gate = Gate.ANY if args.bisect else Gate(args.fail_on)
    result = judge_gate([FOUND], gate, base)
    Output(None, quiet=False).show(audit._show(args, [FOUND], result, base))
    out = capsys.readouterr().out
    assert told in out
    assert f"xit code {int(not result.holds)}: " in out.splitlines()[-1]


def test_sarif_is_written_with_what_was_not_run(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "found.sarif"
    args = Namespace(**{**vars(ARGUMENTS), "sarif": str(path)})
    source = replace(FOUND, account=ACCOUNT)
    result = judge_gate([source], Gate.ANY)
    Output(None, quiet=False).show(audit._show(args, [source], result))
    assert f"wrote {path}\n" in capsys.readouterr().out
    assert path.read_text() == sarif_text(audit_findings([source], result))
    (run,) = json.loads(path.read_text())["runs"]
    results = [
        (
            result["level"],
            result["message"]["text"],
            result["locations"][0]["physicalLocation"]["region"]["startLine"],
        )
        for result in run["results"]
        if result["ruleId"] == "not-judged"
    ]
    assert results == [
        ("error", "Qwen3Omni: it was not judged: its forward needs a tower", 7),
        ("note", "Known: it was not judged: its forward needs a tower; known: no encoder writes it", 7),
    ]
    assert run["tool"]["driver"]["rules"][run["results"][-1]["ruleIndex"]]["id"] == "not-judged"


@pytest.mark.parametrize(
    ("options", "gate"),
    [
        ({}, Gate.FLAG),
        ({"base": "main"}, Gate.FLAG),
        ({"bisect": True}, Gate.ANY),
        ({"fail_on": "default", "base": "main"}, Gate.DEFAULT),
        ({"fail_on": "new", "bisect": True}, Gate.ANY),
        ({"fail_on": "any"}, Gate.ANY),
    ],
)
def test_the_gate_of_an_audit_is_the_one_that_was_named(options: dict[str, object], gate: Gate) -> None:
    assert audit._gate(Namespace(**{"bisect": False, "fail_on": None, "base": None, **options})) is gate


def test_a_base_that_a_plugin_changes_becomes_its_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "open_source", lambda _: None)
    monkeypatch.setattr(audit, "_package", lambda text: text.partition("==")[0])
    monkeypatch.setattr(audit, "_changed_by", lambda text: "vllm" if text.startswith("tpu") else None)
    sources = ["tpu-inference==0.22", "sglang==0.5.4"]
    assert audit.with_base(sources, "vllm==0.22.1") == (
        ["tpu-inference==0.22 over vllm==0.22.1", "sglang==0.5.4"], None,
    )  # fmt: skip
    assert audit.with_base(sources[1:], "sglang==0.5.3") == (sources[1:], "sglang==0.5.3")


KNOWN_ROW = row(Rule.STRUCTURE, Verdict.XFAIL, "default")
NEW = row(Rule.FRESHNESS, Verdict.FAIL, "latent")


def sarif_of(source: AuditedSource, gate: Gate = Gate.FLAG, base: Base | None = None) -> str:
    return sarif_text(audit_findings([source], judge_gate([source], gate, base)))


def test_findings_have_rule_file_lines_and_link() -> None:
    text = sarif_of(audited(KNOWN_ROW, row(Rule.BOUNDARY, Verdict.PASS), NEW))
    (run,) = Sarif.model_validate_json(text).runs
    first, second = run.results or []
    assert [rule.id for rule in run.tool.driver.rules or []] == ["R1", "R3"]
    assert (first.ruleId, first.ruleIndex, first.level.value) == ("R1", 0, "error")
    assert [str(uri) for uri in first.workItemUris or []] == [
        "https://github.com/vllm-project/vllm/issues/43602"
    ]
    assert (second.ruleId, second.ruleIndex, second.level.value) == ("R3", 1, "warning")
    assert [result["properties"]["promise"] for result in json.loads(text)["runs"][0]["results"]] == [
        "I1",
        "I3",
    ]
    place = (second.locations or [])[0].physicalLocation
    assert (place.artifactLocation.uri, place.region.startLine, place.region.endLine) == (MEMBER, 12, 40)


def test_a_base_separates_new_from_unchanged() -> None:
    text = sarif_of(audited(KNOWN_ROW, NEW), Gate.ANY, base_with(KNOWN_ROW))
    (run,) = Sarif.model_validate_json(text).runs
    assert [(result.baselineState.value, result.level.value) for result in run.results or []] == [
        ("new", "error"), ("unchanged", "note"),
    ]  # fmt: skip


def test_what_was_not_judged_is_a_notification() -> None:
    text = sarif_of(audited(row(Rule.ADDRESS, Verdict.ERROR)))
    (run,) = Sarif.model_validate_json(text).runs
    (invocation,) = run.invocations or []
    assert not invocation.executionSuccessful
    assert "Qwen3VL: R6 was not judged" in text
    assert run.results == []


def test_a_fingerprint_outlives_moved_lines() -> None:
    texts = [sarif_of(audited(replace(NEW, where=where))) for where in (f"{MEMBER}:1-2", MEMBER)]
    prints = [Sarif.model_validate_json(text).runs[0].results[0].partialFingerprints for text in texts]
    assert prints[0] == prints[1]
    assert "region" not in texts[1]


def test_the_lines_are_those_of_the_method_that_the_rule_is_about(tmp_path: Path) -> None:
    root = Vllm("0.10.0", str(ModelFile(more=HANDS_ON))).tree(tmp_path)
    qwen = audited_class("Qwen3VLForConditionalGeneration")
    rows = [row(rule, Verdict.FAIL) for rule in (Rule.STRUCTURE, Rule.FRESHNESS, Rule.CLEAR)]
    placed = located(
        class_verdicts(*rows, row(Rule.BOUNDARY, Verdict.PASS)), open_source(str(root)), qwen
    ).rows
    lines = (root / MEMBER).read_text().splitlines()
    firsts = [int((result.where or "").partition(":")[2].partition("-")[0]) for result in placed[:3]]
    assert [lines[first - 1].split("(")[0].strip() for first in firsts] == [
        "def _get_deepstack_input_embeds", "def _set_deepstack_input_embeds",
        "def _clear_deepstack_input_embeds",
    ]  # fmt: skip
