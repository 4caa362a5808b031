"""The HTML page as a text: what it holds, that it holds no more, and that nothing from outside is markup."""

import base64
import hashlib
import html
import json
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cases.selftest.runs.report.written_runs import (
    ATTACK,
    BROKEN,
    SCRIPT,
    UNEXPECTED,
    planned,
    write_beside,
    write_history,
    write_run,
)  # fmt: skip
from deepstack_harness.cli.main import main
from deepstack_harness.contract.facts import Measured
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict, worst
from deepstack_harness.runs.nights import EndedStage, StageOutcome, write_summary
from deepstack_harness.runs.records import CaseRecord
from deepstack_harness.runs.report.figures import figures_of
from deepstack_harness.runs.report.page import duration, render_page
from deepstack_harness.runs.report.run_data import Figure, RunData, load_run, summarise
from deepstack_harness.runs.report.tables import incident_groups, release_matrix, run_matrix
from deepstack_harness.text import clean, number

MOST = 2_000_000  # bytes of a page


class Elements(HTMLParser):
    """Every element with its attributes, and every text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def run_data(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    history = write_history(tmp_path_factory.mktemp("report") / "history")
    write_beside(write_run(history / "night-20"))
    return load_run(history / "night-20", history)


@pytest.fixture(scope="module")
def page(run_data: RunData) -> str:
    return render_page(run_data)


@pytest.fixture(scope="module")
def figures(run_data: RunData) -> dict[str, Figure]:
    return {figure.key: figure for figure in figures_of(run_data)}


def test_the_page_is_small_and_the_same_every_time(run_data: RunData, page: str) -> None:
    assert len(page.encode()) < MOST / 5
    assert render_page(run_data) == page


def test_nothing_from_outside_is_an_element_or_an_attribute(page: str) -> None:
    elements = Elements(page)
    assert [tag for tag, _ in elements.elements].count("script") == 1
    assert "img" not in {tag for tag, _ in elements.elements}
    assert not [attrs for _, attrs in elements.elements if any(name.startswith("on") for name in attrs)]
    assert clean(SCRIPT) in elements.texts
    assert sum(str(clean(ATTACK)) in text for text in elements.texts) > 5


def test_what_comes_from_outside_is_text_in_a_plot_too(page: str) -> None:
    labels = [text for text in Elements(page).texts if text.startswith("granite4_vision\N{NO-BREAK SPACE}")]
    assert any("<script>document" in text for text in labels)


def test_every_address_is_in_the_page(page: str) -> None:
    elements = Elements(page).elements
    places = {attrs["id"] for _, attrs in elements if "id" in attrs}
    ids = [attrs["id"] for _, attrs in elements if "id" in attrs]
    assert len(ids) == len(places)
    for tag, attrs in elements:
        assert "src" not in attrs
        if tag != "link" and "href" in attrs:
            upstream = attrs["href"].startswith("https://github.com/")
            assert upstream or (attrs["href"][:1] == "#" and attrs["href"][1:] in places)
        for key in attrs.get("data-open", "").split():
            assert key in places
    known = r'http-equiv|http://www\.w3\.org/2000/svg|href="https://github\.com/[\w-]+/[\w-]+/issues/\d+"'
    assert "http" not in re.sub(known, "", page)


def test_the_policy_lets_our_script_run_and_no_other(page: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page


def test_plots_keep_text_as_text_and_take_the_colours_of_the_page(figures: dict[str, Figure]) -> None:
    plots = [figure.svg for figure in figures.values() if figure.svg]
    assert len(plots) == 5
    for plot in plots:
        assert plot.count("<text") > 3
        assert set(re.findall(r"#[0-9a-f]{6}\b", plot)) == set()
        assert "var(--ink)" in plot
        assert "font-family" not in plot


def test_the_matrix_has_the_worst_verdict_of_each_place(run_data: RunData) -> None:
    matrix = run_matrix(run_data)
    line = next(
        line for line in matrix.lines if line.names == ("granite4_vision", "inductor/drop_all", "cpu")
    )
    shown = {cell.rule: (cell.verdict, cell.times, len(cell.rows)) for cell in line.cells if cell}
    assert shown[Rule.OUTPUT] == (Verdict.FAIL, 1, 3)
    assert shown[Rule.STRUCTURE] == (Verdict.XFAIL, 1, 3)
    assert shown[Rule.BOUNDARY] == (Verdict.PASS, 3, 3)
    assert len(matrix.lines) == 15


@pytest.mark.parametrize(
    ("verdicts", "shown"),
    [
        ("PASS SKIP", Verdict.PASS),
        ("SKIP", Verdict.SKIP),
        ("XFAIL PASS", Verdict.XFAIL),
        ("XFAIL IMPROVED", Verdict.IMPROVED),
        ("IMPROVED ERROR", Verdict.ERROR),
        ("ERROR FAIL", Verdict.FAIL),
        ("MISSING XFAIL", Verdict.MISSING),
    ],
)
def test_what_somebody_has_to_look_at_comes_first(verdicts: str, shown: Verdict) -> None:
    assert worst(map(Verdict, verdicts.split())) is shown


def test_the_summary_is_red_for_a_run_that_did_not_end(run_data: RunData) -> None:
    assert summarise(run_data).unexpected == UNEXPECTED
    good = tuple(row for row in run_data.rows if row.verdict in {"PASS", "SKIP", "XFAIL"})
    whole = replace(run_data, rows=good)
    assert summarise(whole).good
    (about,) = run_data.about
    assert not summarise(replace(whole, about=(replace(about, finished=None),))).good
    assert not summarise(replace(whole, rows=(), cases={})).good


def test_the_matrix_has_releases_against_rules(run_data: RunData) -> None:
    matrix = release_matrix(run_data)
    assert matrix
    assert [line.names[0] for line in matrix.lines] == [
        f"vllm {name}" for name in ("0.20.0", "0.22.1", "0.33.0") for _ in "ab"
    ]
    assert [cell.verdict for cell in matrix.lines[2].cells if cell] == [
        "PASS",
        "PASS",
        "FAIL",
        "FAIL",
        "PASS",
    ]


def test_the_figures_are_those_of_the_run(figures: dict[str, Figure]) -> None:
    tables = {key: figure.table.rows for key, figure in figures.items() if figure.table}
    distances, work, kernels = tables["distances"], tables["work"], tables["kernels"]
    assert distances[0][4:7] == (1.1, 6e-07, 0.71)
    assert distances[0][9] == "XFAIL"
    assert distances[-1][4] == 3e-07
    assert work[0] == ("granite4_vision", "granite_full", "inductor/drop_all", 8, 4096, 512.0, 1)
    assert {row[3:6] for row in work[2:]} == {(16, 16, 1.0), (8, 8, 1.0)}
    assert len(kernels) == 3
    assert kernels[0][:2] == ("granite4_vision", "granite_full")
    assert kernels[0][-3:] == (8192 * 4096, 77 * 4096, 106.39)
    assert tables["graphs"][0][3:7] == (4, 1, 3, "1 1 2 3 4")
    assert [row[5] for row in tables["history"]] == [5, 4, 4, 4, 3, 3]
    assert tables["fuzz"] == [("R3-finding.py",)]


def test_figures_without_data_name_what_is_missing(tmp_path: Path) -> None:
    case, _ = planned()[0]
    run_data = load_run(write_run(tmp_path / "run", found=[(replace(case, family="none"), {})]))
    missing = {figure.key: figure.absent for figure in figures_of(run_data) if figure.table is None}
    assert set(missing) == {"distances", "kernels", "graphs", "measured", "history", "fuzz"}
    assert all(missing.values())


def test_what_a_night_measured_is_on_its_page(tmp_path: Path) -> None:
    case, _ = planned()[0]
    folder = write_run(tmp_path / "run", found=[(case, {})])
    figure = Measured("payload", 409.0, "us", 400.0, {"model": "8b", "arm": "eager/full"}, "<spread>")
    alone = Measured("repetitions", 3.0, "times")
    measured = EndedStage("payload", StageOutcome.TIMED_OUT, measured=(figure, alone))
    write_summary(folder, [EndedStage("graphs", StageOutcome.HELD), measured])
    run_data = load_run(folder)
    (shown,) = [figure for figure in figures_of(run_data) if figure.key == "measured"]
    assert shown.table is not None
    assert shown.table.rows == [
        ("payload", "payload", 409.0, 400.0, "us", 1.022, "model 8b, arm eager/full", "<spread>"),
        ("payload", "repetitions", 3.0, None, "times", None, "", ""),
    ]
    page = render_page(run_data)
    assert "Measured on this machine" in page
    assert "&lt;spread&gt;" in page


def test_sections_without_content_are_left_out(tmp_path: Path) -> None:
    case, _ = planned()[0]
    run_data = load_run(write_run(tmp_path / "run", found=[(replace(case, family="none"), {})]))
    sections = (attrs for tag, attrs in Elements(render_page(run_data)).elements if tag == "section")
    ids = {attrs["id"] for attrs in sections if "id" in attrs}
    assert ids == {"incidents", "verdicts", "figures", "work", "about"}


def test_incidents_show_what_was_expected_and_what_was_seen(run_data: RunData) -> None:
    groups = {group.key: group for group in incident_groups(run_data)}
    known, others = groups["43602"], groups[""]
    assert [group.key for group in incident_groups(run_data)] == ["", "43602"]  # the unexpected one is first
    assert known.links[0] == ("vllm 43602", "https://github.com/vllm-project/vllm/issues/43602")
    (line,) = known.subjects
    assert (line.subject, line.cases, line.verdict) == ("original", 9, Verdict.XFAIL)
    assert line.expected == line.seen == (Rule.OUTPUT, Rule.STRUCTURE)
    (wrong,) = (line for line in others.subjects if line.subject == "granite_full")
    assert (wrong.seen, wrong.expected) == ((Rule.OUTPUT, Rule.WORK, Rule.GRAPHS), ())
    assert (wrong.cases, wrong.verdict, wrong.unexpected) == (3, Verdict.FAIL, True)
    assert sum(len(group.cases) for group in groups.values()) == len(run_data.cases)


def test_findings_have_the_same_place_in_every_run(run_data: RunData, tmp_path: Path) -> None:
    def places(run: RunData) -> set[str]:
        return set(re.findall(r'id="(case-[^"]+)"', render_page(run)))

    again = load_run(write_run(tmp_path / "run", found=list(reversed(planned()))[1:]))
    assert len(places(run_data)) == 13
    assert places(again) == places(run_data) - {f"case-{planned()[-1][0].id}"}


def test_what_changed_since_the_last_run_is_shown(run_data: RunData) -> None:
    assert run_data.changes
    assert run_data.changes.since == "night-19"
    assert {str(cause.kind) for cause in run_data.changes.findings} == {"new"}
    assert "Since the run night-19" in render_page(run_data)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (200, "3 min 20 s"), (3900, "1 h 5 min")]
)
def test_times_are_written_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_only_outputs_that_were_judged_have_a_distance(run_data: RunData) -> None:
    rows = tuple(
        replace(row, verdict=Verdict.SKIP) if row.rule is Rule.OUTPUT and row.verdict is Verdict.PASS else row
        for row in run_data.rows
    )
    (figure,) = (figure for figure in figures_of(replace(run_data, rows=rows)) if figure.key == "distances")
    assert figure.table
    assert {row[9] for row in figure.table.rows} == {"XFAIL", "FAIL"}


def test_distances_that_a_log_scale_cannot_show_are_drawn_at_its_ends(run_data: RunData) -> None:
    def with_distance(case: CaseRecord, eager: float) -> CaseRecord:
        assert case.distances
        return replace(case, distances=replace(case.distances, eager=eager, rounding=0.0))

    compiled = list({case.arm: case for case in run_data.cases.values() if case.distances}.values())[:2]
    cases = {
        case.case: with_distance(case, far) for case, far in zip(compiled, (0.0, 1.797e308), strict=True)
    }
    (figure,) = (figure for figure in figures_of(replace(run_data, cases=cases)) if figure.key == "distances")
    assert figure.svg
    assert ">0<" in figure.svg
    assert ">not finite<" in figure.svg


@pytest.mark.slow  # 4 s
def test_a_page_of_thousands_of_cases_stays_small_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    (case, _), *_ = planned()
    (short, *_), known = planned()[-2], planned()[3][1]
    many = [(replace(case, seed=seed), known) for seed in range(1500)]
    run_data = load_run(write_run(tmp_path / "run", found=[*many, (short, BROKEN)]))
    long = {key: replace(case, script=SCRIPT * 50) for key, case in run_data.cases.items()}
    page = render_page(replace(run_data, cases=long))
    assert len(page.encode()) < MOST
    assert "the first 300 of 1501 are here" in " ".join(page.split())
    assert "Its script found no room in this page" in page
    assert page.index('class="badge FAIL">FAIL</span> <span class="title"') < page.index(
        'class="badge XFAIL">XFAIL</span> <span class="title"'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0, "0"),
        (4096, "4,096"),
        (3e-7, "3e-07"),
        (1.23456, "1.235"),
        (1.797e308, "not finite"),
        (-2.0, "-2"),
    ],
)
def test_figures_have_no_more_digits_than_matter(value: float | None, text: str) -> None:
    assert number(value) == text


def test_the_command_of_a_run_is_on_the_page_as_it_was_typed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", found=planned()[:2])
    record = json.loads((run / "run.json").read_text())
    record["command"] = ["deepstack-harness", "run", "incident=43602"]
    record["environment"]["device"] = ["NVIDIA H200", "NVIDIA H200"]
    (run / "run.json").write_text(json.dumps(record))
    page = html.unescape(render_page(load_run(run)))
    assert f"<td>{shlex.join(record['command'])}</td>" in page
    assert "<td>NVIDIA H200, NVIDIA H200</td>" in page
    assert "('" not in page.partition('id="about"')[2]


def test_the_command_writes_every_requested_file_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", found=planned()[:2])
    before = {path: path.read_bytes() for path in run.iterdir()}
    files = {option: tmp_path / option.strip("-") for option in ("--html", "--markdown", "--junit")}
    words = [word for option, path in files.items() for word in (option, str(path))]
    assert main(["report", str(run), *words]) == 0
    page, *others = capsys.readouterr().out.splitlines()
    assert page.startswith(f"wrote {files['--html']}, a page for a browser: ")
    assert others == [f"wrote {files[option]}" for option in ("--markdown", "--junit")]
    assert [path.read_text(encoding="utf-8")[:2] for path in files.values()] == ["<!", "##", "<?"]
    assert {path: path.read_bytes() for path in run.iterdir()} == before
