"""Findings of an audit as GitHub shows them: annotations, Markdown and SARIF are the same findings."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Sarif

from cases.selftest.audit.test_gates import SLICED, repository
from cases.selftest.audit.written_verdicts import MEMBER, audited, base_with, class_verdicts, row
from cases.selftest.engines.synthetic_vllm import HANDS_ON, ModelFile, Vllm
from deepstack_harness.audit.account import Account, UnjudgedCarrier
from deepstack_harness.audit.audited_source import AuditedSource
from deepstack_harness.audit.findings import audit_findings, folder_of, input_findings
from deepstack_harness.audit.gate import Gate, judge_gate
from deepstack_harness.audit.inputs import InputStanding, Standing
from deepstack_harness.cli.main import main
from deepstack_harness.contract.rules import Promise, Rule
from deepstack_harness.contract.verdicts import BROKEN, Effect, FaultKind, Row, Verdict
from deepstack_harness.document.findings import (
    MOST_MARKDOWN_BYTES,
    ReportedRow,
    annotations_of,
    markdown_of,
    sarif_text,
)
from deepstack_harness.document.shown import problem_of
from deepstack_harness.errors import ExitCode, UsageError
from deepstack_harness.sources.folder import revision_of

KNOWN = row(Rule.STRUCTURE, Verdict.XFAIL, "default")
LATENT = row(Rule.REJECTION, Verdict.XFAIL, "latent", shape=FaultKind.ACCEPTED)
NEW = row(Rule.FRESHNESS, Verdict.FAIL, "latent")
MENDED = row(Rule.BOUNDARY, Verdict.IMPROVED)
UNJUDGED = row(Rule.ADDRESS, Verdict.ERROR)
KEPT = row(Rule.PLACEMENT, Verdict.PASS)
CARRIERS = (
    UnjudgedCarrier("Fresh", "vllm/fresh.py", 7, "it was not called"),
    UnjudgedCarrier("Old", "vllm/old.py", None, "it was not called", "no encoder writes it"),
)


def source_of(*rows: Row, carriers: tuple[UnjudgedCarrier, ...] = ()) -> AuditedSource:
    return replace(audited(*rows), account=Account(unjudged=carriers))


def found(
    *rows: Row, gate: Gate = Gate.FLAG, base: tuple[Row, ...] | None = None,
    carriers: tuple[UnjudgedCarrier, ...] = (),
) -> list[ReportedRow]:  # fmt: skip
    source = source_of(*rows, carriers=carriers)
    result = judge_gate([source], gate, None if base is None else base_with(*base))
    return audit_findings([source], result)


# A workflow command as GitHub reads it: `::name key=value,key=value::data`.
COMMAND = re.compile(r"::(?P<kind>error|warning|notice) (?P<properties>[^\n]*?)::(?P<data>[^\n]*)")


def read(line: str) -> tuple[str, dict[str, str], str]:
    """Read a workflow command as the runner does, escapes undone."""
    match = COMMAND.fullmatch(line)
    assert match is not None, line
    assert not re.search(r"%(?!25|0D|0A|3A|2C)", line), line

    def plain(text: str) -> str:
        for code, sign in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
            text = text.replace(code, sign)
        return text

    pairs = (pair.partition("=")[::2] for pair in match["properties"].split(","))
    return match["kind"], {name: plain(value) for name, value in pairs}, plain(match["data"])


def test_a_level_that_is_dropped_is_named_as_that() -> None:
    dropped = row(Rule.OUTPUT, Verdict.FAIL, "default", effect=Effect.OUTPUT, shape=FaultKind.NO_EFFECT)
    assert problem_of(dropped).startswith("the text model leaves out levels of the image features, the out")
    assert problem_of(replace(dropped, shape=FaultKind.OUTPUT)).startswith(
        "compiled, the model computes another"
    )


def test_an_annotation_has_file_lines_rule_and_class() -> None:
    kind, properties, text = read(next(annotations_of(found(KNOWN), "1 class is wrong", good=False)))
    assert kind == "error"
    assert properties == {
        "file": MEMBER, "line": "12", "endLine": "40", "title": "R1 structure: Qwen3VL",
    }  # fmt: skip
    assert text == (
        "Qwen3VL: what the model is given has another structure in some steps, so that a graph that was "
        "compiled without image features ignores them in later steps, with default settings; "
        "'cap 16: get 4': step 1 'get 4' was wrong; known: vllm 43602"
    )


@pytest.mark.parametrize("gate", list(Gate))
@pytest.mark.parametrize("base", [None, (KNOWN, NEW), (KNOWN, LATENT, NEW)])
@pytest.mark.parametrize(
    "rows", [(KEPT,), (KNOWN,), (LATENT,), (NEW,), (MENDED,), (UNJUDGED,), (KNOWN, LATENT, NEW, MENDED, KEPT)]
)
def test_an_error_is_shown_exactly_where_the_audit_fails(
    rows: tuple[Row, ...], base: tuple[Row, ...] | None, gate: Gate
) -> None:
    source = source_of(*rows)
    result = judge_gate([source], gate, None if base is None else base_with(*base))
    findings = audit_findings([source], result)
    *shown, last = annotations_of(findings, "the answer", good=result.holds)
    levels = {result["level"] for result in json.loads(sarif_text(findings))["runs"][0]["results"]}
    assert ("error" in levels) is any(finding.fails and finding.row.verdict in BROKEN for finding in findings)
    assert any(read(line)[0] == "error" for line in shown) is not result.holds
    assert read(last)[0] == ("notice" if result.holds else "error")


def test_what_was_not_judged_is_an_error_and_what_is_known_a_notice() -> None:
    lines = [read(line) for line in annotations_of(found(KEPT, carriers=CARRIERS), "x", good=False)]
    assert [(kind, properties.get("file"), properties.get("line")) for kind, properties, _ in lines] == [
        ("error", "vllm/fresh.py", "7"), ("notice", "vllm/old.py", None), ("error", None, None),
    ]  # fmt: skip
    assert lines[0][2] == "Fresh: it was not judged: it was not called"


def test_findings_of_the_base_are_counted_and_not_shown() -> None:
    findings = found(KNOWN, NEW, gate=Gate.ANY, base=(KNOWN,))
    lines = [read(line) for line in annotations_of(findings, "x", good=False)]
    assert [properties["title"] for _, properties, _ in lines] == ["R3 freshness: Qwen3VL", "deepstack audit"]
    assert lines[-1][2] == "x; 1 finding of the base left out"


def test_classes_that_inherit_the_lines_are_one_entry() -> None:
    names = ("Below", "Qwen3VL", "Other")
    classes = [
        replace(class_verdicts(replace(NEW, model_class=name, reach="default")), model_class=name)
        for name in names
    ]
    source = replace(
        audited(),
        classes=tuple(classes),
        members={"Below": "vllm/b.py", "Qwen3VL": MEMBER, "Other": "vllm/c.py"},
    )
    (one,) = audit_findings([source], judge_gate([source], Gate.FLAG, base_with()))
    assert (one.subject, one.others, one.file_lines) == ("Qwen3VL", ("Below", "Other"), (MEMBER, (12, 40)))
    assert "also in Below, Other" in next(annotations_of([one], "x", good=False))
    (result,) = json.loads(sarif_text([one]))["runs"][0]["results"]
    assert [place["name"] for place in result["locations"][0]["logicalLocations"]] == [
        "Qwen3VL",
        "Below",
        "Other",
    ]


def test_changed_files_come_first() -> None:
    elsewhere = replace(row(Rule.STRUCTURE, Verdict.FAIL, "default"), where="vllm/a.py:1-2")
    source = source_of(elsewhere, replace(NEW, reach="default"))
    result = judge_gate([source], Gate.FLAG, base_with())
    orders = [
        [
            finding.file_lines[0]
            for finding in audit_findings([source], result, {"vllm 0.22.1": "x/"}, changed)
        ]
        for changed in ([MEMBER], ["vllm/a.py"])
    ]
    assert orders == [[f"x/{MEMBER}", "x/vllm/a.py"], ["x/vllm/a.py", f"x/{MEMBER}"]]


def test_no_finding_is_stated_and_not_left_out() -> None:
    (line,) = annotations_of([], "no class that was judged is wrong", good=True)
    assert read(line) == ("notice", {"title": "deepstack audit"}, "no class that was judged is wrong")
    assert "No finding." in markdown_of([], "nothing is wrong", good=True)


HOSTILE = "100%\r\n::error file=x::y, a:b %0A <b>|[x](y) @all #1 `z`"


def test_no_text_or_path_of_a_source_ends_its_annotation() -> None:
    bad = replace(NEW, detail=HOSTILE, where="vllm/a,line=1:x%0A.py:3-4", model_class="A:B,C")
    lines = list(annotations_of(found(bad), HOSTILE, good=False))
    assert len(lines) == 2
    _, properties, text = read(lines[0])
    assert properties["file"] == "vllm/a,line=1:x%0A.py"
    assert (properties["line"], properties["endLine"]) == ("3", "4")
    assert properties["title"] == "R3 freshness: A:B,C"
    assert HOSTILE in text
    assert read(lines[1])[2] == HOSTILE


def test_more_than_github_shows_are_counted() -> None:
    many = [
        replace(finding, row=replace(KNOWN, model_class=f"C{n}"))
        for n in range(25)
        for finding in found(KNOWN)
    ]
    lines = [read(line) for line in annotations_of(many, "x", good=False)]
    assert len(lines) == 11
    assert lines[-2][2] == "16 findings more; --sarif has them all"


def test_markdown_is_a_table_of_the_same_findings() -> None:
    findings = found(LATENT, KNOWN, NEW, KEPT, gate=Gate.ANY, base=(LATENT,), carriers=CARRIERS)
    text = markdown_of(findings, "1 class is wrong", good=False)
    head, _, answer, _, *table = text.splitlines()
    assert (head, answer) == ("## ❌ deepstack audit", "1 class is wrong")
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]
    assert {len(line) for line in cells} == {7}
    assert [line[1] for line in cells[2:]] == [
        "R1 structure", "R3 freshness", "not judged", "R8 rejection", "not judged",
    ]  # fmt: skip
    first = cells[2]
    assert first[3] == f"`{MEMBER}:12-40`"
    assert first[5] == "[known, new here](https://github.com/vllm-project/vllm/issues/43602)"
    assert cells[-1][5].endswith("in the base")
    results = json.loads(sarif_text(findings))["runs"][0]["results"]
    assert len(results) == len(cells) - 2


def test_text_of_a_source_becomes_no_markup() -> None:
    text = markdown_of(found(replace(NEW, detail=HOSTILE)), HOSTILE, good=False)
    (line,) = (line for line in text.splitlines() if "freshness" in line)
    assert len(re.split(r"(?<!\\)\|", line)) == 9
    assert "<b>" not in re.sub(r"`+[^`].*?[^`]`+", "", line)


def test_a_comment_is_never_too_long() -> None:
    many = [
        replace(finding, row=replace(KNOWN, model_class=f"C{n}"))
        for n in range(1000)
        for finding in found(KNOWN)
    ]
    text = markdown_of(many, "x", good=False)
    assert MOST_MARKDOWN_BYTES / 2 < len(text.encode()) < 65_536
    shown = text.count("R1 structure")
    assert f"{1000 - shown} findings found no room here" in text


AT_RISK = InputStanding(
    "Sound", "embeds", Standing.AT_RISK, "None in the warm-up", "vllm/a.py:5", member="vllm/a.py", line=3
)


def test_inputs_at_risk_are_findings_too() -> None:
    tested = Row(revision="vllm 1", rule=Promise.SPECIALISATION, verdict=Verdict.PASS, arm="eager/drop_all")
    results = [
        replace(tested, verdict=Verdict.FAIL, detail="4.2 from eager", where="vllm/a.py:9"),
        replace(tested, verdict=Verdict.ERROR, detail="its forward needs a tower", arm=""),
        tested,
    ]
    findings = input_findings([(AT_RISK, result) for result in results], "engine/")
    lines = [read(line) for line in annotations_of(findings, "1 input breaks a promise", good=False)]
    assert [kind for kind, _, _ in lines] == ["error", "error", "error"]
    assert lines[0][1] == {
        "file": "engine/vllm/a.py", "line": "9", "endLine": "9", "title": "I1 specialisation: Sound",
    }  # fmt: skip
    assert lines[0][2] == "Sound: its input embeds: 4.2 from eager"
    assert (lines[1][1]["line"], lines[1][1]["title"]) == ("3", "not judged: Sound")
    run = json.loads(sarif_text(findings))["runs"][0]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["I1", "not-judged"]
    assert [result["level"] for result in run["results"]] == ["error", "error"]
    assert "its input embeds" in markdown_of(findings, "x", good=False)


@pytest.mark.parametrize(("inside", "folder"), [("", ""), ("python", "python/"), ("vllm", "")])
def test_the_files_of_a_tree_are_named_from_the_root_of_the_repository(
    inside: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / (inside if inside != "vllm" else "")
    Vllm().tree(root)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    assert folder_of(str(tmp_path / inside)) == folder
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "elsewhere"))
    assert folder_of(str(tmp_path / inside)) == ""
    source = source_of(NEW)
    findings = audit_findings([source], judge_gate([source], Gate.ANY), {"vllm 0.22.1": "python/"})
    assert findings[0].file_lines == (f"python/{MEMBER}", (12, 40))


def test_a_release_has_no_folder_in_the_repository() -> None:
    assert folder_of("vllm==0.22.1") == ""


# A shallow clone has the files of a commit, and not those of its parents.


def git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A whole repository of two commits, a shallow clone of it, and the commit that is not in the clone."""
    folder = tmp_path_factory.mktemp("clones")
    whole = repository(folder / "whole")
    for key in ("core.fsmonitor", "core.hooksPath", "core.pager", "core.sshCommand"):
        git(whole, "config", "--unset", key)
    first = git(whole, "rev-parse", "HEAD")
    git(whole, "commit", "-q", "-a", "-m", "after")
    git(whole, "branch", "release")
    subprocess.run(
        ["git", "clone", "-q", "--depth", "1", whole.as_uri(), str(folder / "shallow")], check=True
    )
    return whole, folder / "shallow", first


@pytest.mark.parametrize("named", ["commit", "HEAD~1", "release", "origin/release"])
def test_a_commit_that_is_not_in_a_shallow_clone_is_reported_with_what_fetches_it(
    named: str, clones: tuple[Path, Path, str]
) -> None:
    _, shallow, first = clones
    revision = first if named == "commit" else named
    with pytest.raises(UsageError) as refused, revision_of(shallow, revision):
        pass
    said = str(refused.value)
    assert f"'{revision}'" in said
    assert "is a shallow clone" in said
    assert "fetch-depth: 0" in said
    assert "git fetch --unshallow" in said


def test_a_commit_that_a_shallow_clone_has_is_read(clones: tuple[Path, Path, str]) -> None:
    _, shallow, _ = clones
    with revision_of(shallow, "HEAD") as folder:
        assert (folder / MEMBER).is_file()


def test_a_misspelt_commit_of_a_whole_clone_is_no_matter_of_depth(clones: tuple[Path, Path, str]) -> None:
    whole, _, first = clones
    with revision_of(whole, first) as folder:
        assert (folder / MEMBER).read_text() == str(ModelFile(get=SLICED, more=HANDS_ON))
    with pytest.raises(UsageError, match="is neither a source nor a commit") as refused:
        revision_of(whole, "HEAD~7").__enter__()
    assert "shallow" not in str(refused.value)


def test_the_command_reports_a_shallow_clone(
    clones: tuple[Path, Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, shallow, first = clones
    assert main(["audit", "--source", str(shallow), "--base", first]) == ExitCode.USAGE
    assert "fetch-depth: 0" in capsys.readouterr().err


@pytest.mark.slow  # a whole audit, 5 s
def test_an_audit_writes_all_three_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = Vllm("0.10.0", str(ModelFile(more=HANDS_ON)), omni="").tree(tmp_path)
    forms = ["--sarif", str(tmp_path / "a.sarif"), "--markdown", str(tmp_path / "a.md"), "--annotations"]
    assert main(["audit", "--source", str(root), *forms]) == ExitCode.BROKEN
    out = capsys.readouterr().out
    shown = [read(line) for line in out.splitlines() if line.startswith("::")]
    assert {properties["title"].partition(":")[0] for kind, properties, _ in shown if kind == "error"} >= {
        "R1 structure",
    }
    assert f"wrote {tmp_path}/a.sarif\n" in out
    (run,) = Sarif.model_validate_json((tmp_path / "a.sarif").read_text()).runs
    results = run.results or []
    assert {"R1", "R3"} <= {result.ruleId for result in results}
    table = [line for line in (tmp_path / "a.md").read_text().splitlines() if line.startswith("|")]
    assert len(table) - 2 >= len(results) > 0
