"""What `report` writes as text: on the terminal, Markdown, annotations, JUnit XML, and the rerun command."""

import json
import re
import shlex
from collections import Counter
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from markdown_it import MarkdownIt

from cases.selftest.runs.report.written_runs import (
    ATTACK,
    BROKEN,
    UNEXPECTED,
    Found,
    audit_rows,
    planned,
    write_beside,
    write_history,
    write_lines,
    write_run,
)  # fmt: skip
from deepstack_harness.cli.main import build_parser, main
from deepstack_harness.contract.case import Case, PlannedCase, live_buffer
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.document.markdown import plain
from deepstack_harness.runs.case_result import lost_result
from deepstack_harness.runs.execution import Tier, matrix, select
from deepstack_harness.runs.frames import read_run
from deepstack_harness.runs.nights import EndedStage, StageOutcome
from deepstack_harness.runs.records import CaseEnding, CaseRecord
from deepstack_harness.runs.report.junit import render_junit
from deepstack_harness.runs.report.page import render_page
from deepstack_harness.runs.report.run_data import RunData, Summary, load_run, summarise
from deepstack_harness.runs.report.tables import rerun_command, selection_of
from deepstack_harness.runs.report.texts import annotations, render_markdown
from deepstack_harness.text import clean


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_run(tmp_path_factory.mktemp("report") / "run")
    write_beside(path)
    return path


@pytest.fixture(scope="module")
def run_data(folder: Path) -> RunData:
    return load_run(folder)


def many_broken(count: int) -> list[tuple[Case, Found]]:
    (case, _), *_ = planned()
    return [(replace(case, seed=seed), BROKEN) for seed in range(count)]


def test_the_terminal_shows_the_matrix_and_every_unexpected_finding(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(folder)]) == 0
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines()]
    assert [
        "granite4_vision",
        "inductor/drop_all",
        "cpu",
        "FAIL",
        "xf",
        "ok",
        "ok",
        "-",
        "FAIL",
        "ok",
    ] in lines
    assert "FAIL granite4_vision granite_full inductor/drop_all bfloat16 cpu\n  trace: cap 16:" in printed
    assert "R10 work   FAIL     4,096 rows, limit 0     4096 rows were processed for 16" in printed
    assert "diagnosis: step 3 'forward 16': argument 'payload' was None" in printed
    assert printed.rstrip().endswith(f"{UNEXPECTED} unexpected: 3 FAIL, 1 ERROR, 1 IMPROVED")
    assert "\x1b" not in printed


def test_a_stopped_run_claims_nothing_about_what_was_not_played() -> None:
    stopped = Summary(dict.fromkeys(Verdict, 0), cases=3, planned=10, finished=False)
    assert stopped.headline == "stopped before its end, 3 of 10 cases were played; nothing unexpected in them"
    assert replace(stopped, finished=True).headline == "nothing unexpected"


def test_the_annotation_of_a_stopped_run_states_that_first_and_once(tmp_path: Path) -> None:
    *_, last = annotations(load_run(write_run(tmp_path / "run", finished=False)))
    said = "stopped before its end, 33 of 34 cases were played; "
    assert last.startswith(f"::error title=deepstack harness::{said}")
    assert last.count("stopped before its end") == 1


def test_a_killed_run_is_reported_without_what_it_did_not_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = write_run(tmp_path / "run", finished=False)
    assert main(["report", str(killed)]) == 0
    printed = capsys.readouterr().out
    assert "7 rows of a case that did not end are left out" in printed
    assert printed.splitlines()[-1].startswith("stopped before its end, 33 of 34 cases were played; ")
    assert "torch compiled 4 graphs" not in printed  # the finding of the case that did not end


def test_json_gets_the_unexpected_judgements(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), "--json", "-"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert Counter(row["verdict"] for row in rows) == {"FAIL": 3, "ERROR": 1, "IMPROVED": 1}


class Rendered(HTMLParser):
    """Markdown as a page: its elements, the texts in code spans, and those outside of them."""

    def __init__(self, sentence: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.texts: list[str] = []
        self.spans: list[str] = []
        self.cells: list[int] = []
        self._in_code = False
        self.feed(MarkdownIt("commonmark").enable("table").render(sentence))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self._in_code |= tag == "code"
        if tag == "tr":
            self.cells.append(0)
        elif tag in ("td", "th"):
            self.cells[-1] += 1

    def handle_endtag(self, tag: str) -> None:
        self._in_code &= tag != "code"

    def handle_data(self, data: str) -> None:
        (self.spans if self._in_code else self.texts).append(data)


def test_nothing_from_outside_comes_alive_in_markdown(run_data: RunData) -> None:
    rendered = Rendered(render_markdown(run_data))
    known = "a code details h2 h3 p summary table tbody td th thead tr"
    assert set(rendered.tags) <= set(known.split())
    attack = str(clean(ATTACK)).strip()
    assert sum(attack in span for span in rendered.spans) >= 2
    assert not [text for text in rendered.texts if "@me" in text or "<script>" in text]
    assert Counter(rendered.cells) == {10: 16, 4: 4 + 5, 5: 3, 8: 7}  # matrix, findings, incidents, releases


def test_markdown_is_short_for_a_clean_run(run_data: RunData) -> None:
    good = tuple(row for row in run_data.rows if row.verdict in {"PASS", "SKIP", "XFAIL"})
    markdown = render_markdown(replace(run_data, rows=good))
    assert markdown.startswith("## ✅ nothing unexpected")
    assert "[43602: a payload" in markdown
    assert "](https://github.com/vllm-project/vllm/issues/43602) |" in markdown
    assert "| original R0 R1 | the same |" in markdown
    assert len(markdown.splitlines()) < 20
    assert "&#" not in markdown


def test_a_bar_in_a_table_is_escaped_in_a_code_span_too() -> None:
    rows = ["| a |", "| --- |", f"| {plain('x | y at https://z', in_table=True)} |"]
    assert Rendered("\n".join(rows)).spans == ["x | y at https://z"]


def test_markdown_is_never_longer_than_github_takes(tmp_path: Path) -> None:
    run_data = load_run(write_run(tmp_path / "run", found=many_broken(3)))
    long = "x" * 2**20
    markdown = render_markdown(replace(run_data, notes=(long, "short")))
    assert len(markdown.encode()) < 2**20
    assert long not in markdown
    assert "> short" in markdown
    assert "1 line found no room here" in markdown


def test_annotations_are_commands_on_one_line_each(run_data: RunData) -> None:
    lines = list(annotations(run_data))
    assert [line.split(" ")[0] for line in lines] == ["::error"] * 3 + ["::warning", "::notice"]
    assert lines[0].startswith(
        "::error title=FAIL granite4_vision granite_full inductor/drop_all bfloat16 cpu::trace: cap 16"
    )
    assert "%0AR10 work FAIL: 4,096 rows" in lines[0]
    assert not any("\n" in line for line in lines)


def test_annotations_are_no_more_than_github_shows(tmp_path: Path) -> None:
    lines = list(annotations(load_run(write_run(tmp_path / "run", found=many_broken(25)))))
    assert len(lines) == 11
    assert lines[-2] == "::error title=and more::16 more cases; the report has them all"


def test_junit_has_one_test_for_each_judgement(folder: Path, run_data: RunData, tmp_path: Path) -> None:
    target = tmp_path / "junit.xml"
    assert main(["report", str(folder), "--junit", str(target)]) == 0
    root = ET.fromstring(target.read_text(encoding="utf-8"))
    counts = Counter(row.verdict for row in run_data.rows)
    assert int(root.attrib["tests"]) == len(run_data.rows) == len(list(root.iter("testcase")))
    assert int(root.attrib["failures"]) == counts[Verdict.FAIL] + counts[Verdict.IMPROVED] == 4
    assert int(root.attrib["errors"]) == counts[Verdict.ERROR] == 1
    assert len(list(root.iter("skipped"))) == counts[Verdict.SKIP] + counts[Verdict.XFAIL]
    assert float(root.attrib["time"]) == pytest.approx(1.25 * len(run_data.cases))
    assert {suite.attrib["name"] for suite in root.iter("testsuite")} == {
        case.group for case in run_data.cases.values()
    }
    failure = next(root.iter("failure"))
    assert failure.text is not None
    assert "cap 16: profile 16" in failure.text


# The schema that Jenkins, GitLab and GitHub actions read (junit-10.xsd of Surefire): the attributes that an
# element needs, those that it may have, and the elements in it. junitparser adds `skipped` to the root.
JUNIT = {
    "testsuites": ("", "name time tests failures errors skipped", "testsuite"),
    "testsuite": ("name tests failures errors", "time skipped timestamp hostname id package", "testcase"),
    "testcase": ("name", "time classname group", "skipped error failure system-out system-err"),
    "failure": ("", "type message", ""),
    "error": ("", "type message", ""),
    "skipped": ("", "type message", ""),
}


def test_junit_is_what_the_schema_allows(run_data: RunData) -> None:
    for element in ET.fromstring(render_junit(run_data)).iter():
        needed, allowed, inside = (set(words.split()) for words in JUNIT[element.tag])
        assert needed <= element.attrib.keys() <= needed | allowed
        assert {child.tag for child in element} <= inside
        assert re.fullmatch(r"\d*(\.\d+)?", element.attrib.get("time", ""))
        numbers = element.attrib.keys() & {"tests", "failures", "errors", "skipped"}
        assert all(element.attrib[name].isdecimal() for name in numbers)


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("a\x1b[31mb", "a\ufffd[31mb"),
        ("\x00\x08\x7f\x9b", "\ufffd" * 4),
        ("a\r\nb\tc", "a\nb\tc"),
        ("a\rb", "a\ufffdb"),
        ("\ud800", "\ufffd"),
        ("\ufffe", "\ufffd"),
        ("漢 é \U0001f600", "漢 é \U0001f600"),
    ],
)
def test_text_from_outside_is_made_harmless(text: str, harmless: str) -> None:
    assert clean({"a": [text, 1, None]}) == {"a": [harmless, 1, None]}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "'nowhere' is not a folder; give one that 'run --out DIR' wrote"),
        (["empty"], "empty"),
        (["run/rows.jsonl"], "'run/rows.jsonl' is not a folder"),
        (["run", "--history", "nowhere"], "'nowhere' is not a folder; --history takes"),
        (["run", "--html", "nowhere/a.html"], "cannot write to 'nowhere/a.html'"),
        (["bad_kernels"], "bad_kernels/kernels.jsonl is not a file of JSON lines"),
        (["bad_verdict"], "bad_verdict/rows.jsonl"),
        (["bad_audit"], "line 1 of 'bad_audit/audit.jsonl' is not what a run writes"),
        (["old_audit"], "'old_audit/audit.jsonl' has schema_version 1, this harness reads 2, 3 and 4"),
    ],
)
def test_what_cannot_be_reported_is_refused_with_a_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    for name in {"run", words[0]} & {"run", "bad_kernels", "bad_verdict", "bad_audit", "old_audit"}:
        write_run(Path(name), found=planned()[:1])
    spoil(words[0])
    assert main(["report", *words]) == 2
    errors = capsys.readouterr().err
    assert sentence in errors
    assert errors.count("\n") == 1


def spoil(name: str) -> None:
    folder = Path(name)
    if name == "bad_kernels":
        (folder / "kernels.jsonl").write_text('{"kind": \n{"kind": "graph"}\n')
    if name == "bad_audit":
        write_lines(folder / "audit.jsonl", [{**asdict(row), "rule": "R99"} for row in audit_rows()])
    if name == "old_audit":
        write_lines(folder / "audit.jsonl", [replace(row, schema_version=1) for row in audit_rows()])
    if name == "bad_verdict":
        rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
        write_lines(folder / "rows.jsonl", [{**row, "verdict": "MAYBE"} for row in rows])


def test_a_run_that_does_not_read_is_left_out_of_the_history_by_name(tmp_path: Path) -> None:
    history = write_history(tmp_path / "history")
    (history / "night-16" / "rows.jsonl").write_text("{}\n{}\n")
    (history / "no-run").mkdir()
    run_data = load_run(history / "night-19", history)
    assert [run.name for run in run_data.history or ()] == ["night-15", "night-17", "night-18"]
    (note,) = run_data.notes
    assert "night-16" in note
    assert note.startswith("not in the history: ")


LOG = "\n".join(["what was printed before", "x" * 290, "FAILED cases/test_a.py", "1 failed\x1b"])
NIGHT = [EndedStage("tests", StageOutcome.BROKEN, 1, 60.4, LOG), EndedStage("run", StageOutcome.HELD, 0, 3.0)]


def of_a_night(folder: Path) -> Path:
    write_run(folder, found=planned()[:1])
    (folder / "nightly.json").write_bytes(msgspec.json.encode(NIGHT))
    return folder


def test_a_stage_of_the_night_that_did_not_hold_is_named_with_its_last_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = of_a_night(tmp_path / "run")
    assert main(["report", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "note: stage tests of the night: broken; FAILED cases/test_a.py\n1 failed\ufffd\n" in printed
    assert printed.splitlines()[-1] == "the night: tests broken; the run: nothing unexpected"


def test_a_night_whose_tests_broke_is_not_good_because_its_run_was(tmp_path: Path) -> None:
    run = load_run(of_a_night(tmp_path / "run"))
    assert not summarise(run).good
    assert summarise(replace(run, stages=run.stages[1:] if run.stages else None)).good
    assert render_markdown(run).startswith("## ❌ the night")
    *_, last = annotations(run)
    assert last.startswith("::error title=deepstack harness::the night: tests broken; the run: nothing")
    assert '<td class="figure">broken</td>' in render_page(run)


def test_the_order_in_which_cases_ended_changes_nothing(tmp_path: Path) -> None:
    first = load_run(write_run(tmp_path / "one" / "run"))
    other = load_run(write_run(tmp_path / "other" / "run", found=planned()[::-1]))
    assert (first.rows, list(first.cases)) == (other.rows, list(other.cases))


def test_a_torn_last_line_is_no_reason_to_refuse_a_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", found=planned()[:1])
    (folder / "kernels.jsonl").write_text('{"kind": "graph"}\n{"kind": "gra')
    assert load_run(folder).kernels == ({"kind": "graph"},)


EVERY = matrix(Tier.NIGHTLY, ["cpu"])
OWN = "deepstack_harness.models.revisions:Pr40932Buffer"


def recorded(planned: PlannedCase) -> CaseRecord:
    return lost_result(planned, CaseEnding.CRASHED, "", "", 0.0).case


@pytest.mark.parametrize("planned", EVERY[::60], ids=lambda planned: planned.id)
def test_the_selection_takes_one_case_of_the_whole_matrix(planned: PlannedCase) -> None:
    assert {cases.id for cases in select(EVERY, selection_of(recorded(planned)))} == {planned.id}


def test_the_command_is_one_that_the_parser_takes() -> None:
    case = recorded(next(result for result in EVERY if result.case.caller == "micro_batches"))
    python, _, harness, *words = shlex.split(rerun_command(case))
    parsed = build_parser(words).parse_args(words)
    assert (python, harness, parsed.command, parsed.tier) == ("python", "deepstack_harness", "run", "nightly")
    assert (parsed.devices, parsed.selection) == (["cpu"], selection_of(case))


@pytest.mark.slow  # 9 s; the command itself is parsed daily
def test_a_case_of_ones_own_buffer_is_played_again(tmp_path: Path) -> None:
    words = ["--buffer", OWN, "--quiet"]
    assert main(["run", "trace=cap 16: set 9; get 16", *words, "--out", str(tmp_path / "one")]) == 0
    case = load_run(tmp_path / "one").cases
    (command,) = map(rerun_command, case.values())
    assert main([*shlex.split(command)[3:], "--quiet", "--out", str(tmp_path / "two")]) == 0
    assert list(read_run(tmp_path / "two").cases["case"]) == list(case)


def test_a_case_of_a_test_has_none() -> None:
    case = EVERY[0].case
    for other in (replace(case, family="MyDecoder"), replace(case, buffer=live_buffer("mine:Buffer"))):
        assert not rerun_command(recorded(PlannedCase(other, None)))


def test_the_rerun_command_is_in_every_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run")
    (broken,) = [case for case, what in planned() if what is BROKEN]
    run = load_run(folder)
    (command,) = [rerun_command(case) for case in run.cases.values() if case.case == broken.id]
    main(["report", str(folder)])
    assert f"  rerun: {command}\n" in capsys.readouterr().out
    assert "revision=granite_full caller=engine" in render_page(run)
    assert f"rerun: `{command}`" in render_markdown(run)
