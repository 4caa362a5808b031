"""`audit --sarif`: valid SARIF 2.1.0, with file and lines that a code host can show."""

from pathlib import Path

import pytest
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Sarif

from cases.selftest.audit.written_verdicts import MEMBER, audited, audited_class, class_verdicts, row
from cases.selftest.engines.synthetic_vllm import HANDS_ON, ModelFile, Vllm
from deepstack_harness.audit.audited_source import keys_of, located
from deepstack_harness.cli.audit import sarif_text
from deepstack_harness.cli.main import main
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.engines.known import open_source
from deepstack_harness.errors import ExitCode

KNOWN = row(Rule.R1, Verdict.XFAIL, "default")
NEW = row(Rule.R3, Verdict.FAIL, "latent")


def test_findings_have_rule_file_lines_and_link() -> None:
    text = sarif_text([audited(KNOWN, row(Rule.R2, Verdict.PASS), NEW)], None)
    (run,) = Sarif.model_validate_json(text).runs
    first, second = run.results or []
    assert [rule.id for rule in run.tool.driver.rules or []] == ["R1", "R3"]
    assert (first.ruleId, first.ruleIndex, first.level.value) == ("R1", 0, "error")
    assert [str(uri) for uri in first.workItemUris or []] == [
        "https://github.com/vllm-project/vllm/issues/43602"
    ]
    assert (second.ruleId, second.ruleIndex, second.level.value) == ("R3", 1, "warning")
    place = (second.locations or [])[0].physicalLocation
    assert (place.artifactLocation.uri, place.region.startLine, place.region.endLine) == (MEMBER, 12, 40)


def test_a_base_tells_new_from_unchanged() -> None:
    text = sarif_text([audited(KNOWN, NEW)], keys_of([class_verdicts(KNOWN)]))
    (run,) = Sarif.model_validate_json(text).runs
    assert [one.baselineState.value for one in run.results or []] == ["unchanged", "new"]


def test_what_was_not_judged_is_a_notification() -> None:
    text = sarif_text([audited(row(Rule.R6, Verdict.ERROR))], None)
    (run,) = Sarif.model_validate_json(text).runs
    (invocation,) = run.invocations or []
    assert not invocation.executionSuccessful
    assert "R6 of Qwen3VL was not judged" in text
    assert run.results == []


def test_a_fingerprint_outlives_moved_lines() -> None:
    from dataclasses import replace

    texts = [sarif_text([audited(replace(NEW, where=where))], None) for where in (f"{MEMBER}:1-2", MEMBER)]
    prints = [Sarif.model_validate_json(text).runs[0].results[0].partialFingerprints for text in texts]
    assert prints[0] == prints[1]
    assert "region" not in texts[1]


def test_the_lines_are_those_of_the_method_that_the_rule_is_about(tmp_path: Path) -> None:
    root = Vllm("0.10.0", str(ModelFile(more=HANDS_ON))).tree(tmp_path)
    found = audited_class("Qwen3VLForConditionalGeneration")
    rows = [row(rule, Verdict.FAIL) for rule in (Rule.R1, Rule.R3, Rule.R5)]
    placed = located(class_verdicts(*rows, row(Rule.R2, Verdict.PASS)), open_source(str(root)), found).rows
    lines = (root / MEMBER).read_text().splitlines()
    firsts = [int((one.where or "").partition(":")[2].partition("-")[0]) for one in placed[:3]]
    assert [lines[first - 1].split("(")[0].strip() for first in firsts] == [
        "def _get_deepstack_input_embeds", "def _set_deepstack_input_embeds",
        "def _clear_deepstack_input_embeds",
    ]  # fmt: skip


@pytest.mark.slow  # a whole audit, 5 s
def test_audit_writes_a_valid_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = Vllm("0.10.0", str(ModelFile(more=HANDS_ON))).tree(tmp_path)
    path = tmp_path / "found.sarif"
    assert main(["audit", "--source", str(root), "--sarif", str(path)]) == ExitCode.BROKEN
    assert f"wrote {path}\n" in capsys.readouterr().out
    (run,) = Sarif.model_validate_json(path.read_text()).runs
    assert {"R1", "R3"} <= {one.ruleId for one in run.results or []}
