"""Short texts of a report where something is missing, damaged, or too much to be shown."""

from dataclasses import replace
from pathlib import Path

import pytest

from cases.selftest.audit.written_verdicts import audited, base_with, row
from cases.selftest.contract.oracles.written_observations import QUIET, RIGHT, answer, observed
from cases.selftest.runs.report.written_runs import planned, write_run
from deepstack_harness.audit.class_verdicts import ClassVerdicts
from deepstack_harness.audit.findings import audit_findings
from deepstack_harness.audit.gate import Base, Gate, judge_gate
from deepstack_harness.catalogue.incidents import find
from deepstack_harness.cli import report, repro_table
from deepstack_harness.cli.audit_table import show_gate, show_groups
from deepstack_harness.cli.fuzz import show_findings
from deepstack_harness.cli.main import main
from deepstack_harness.cli.output import Output
from deepstack_harness.cli.report import show_run
from deepstack_harness.cli.repro_table import ReproTable
from deepstack_harness.cli.run import unexpected
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, PlannedCase, registered
from deepstack_harness.contract.observation import Answer, StepFacts
from deepstack_harness.contract.oracles.judge import JudgedCase, judge_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import UNEXPECTED, Effect, Judgement, Verdict
from deepstack_harness.document.findings import sarif_text
from deepstack_harness.errors import UsageError
from deepstack_harness.runs.case_result import lost_result
from deepstack_harness.runs.causes import ChangeCause
from deepstack_harness.runs.compare import ChangeKind
from deepstack_harness.runs.records import CaseEnding
from deepstack_harness.runs.report import figures, texts
from deepstack_harness.runs.report.run_data import Changes, RunData, load_run
from deepstack_harness.runs.report.tables import Matrix, MatrixLine, case_findings, matrix_table, verdict_of
from deepstack_harness.runs.report.texts import annotations, render_markdown

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return load_run(write_run(tmp_path_factory.mktemp("report") / "run", found=planned()[:2]))


CAUSE = ChangeCause(ChangeKind.REGRESSION, "R0 output: a | b", (), (), (), None, "")


@pytest.mark.parametrize(
    ("count", "sentence", "more"),
    [
        (0, "Since the run night-19: nothing changed.", ""),
        (1, "Since the run night-19: 1 finding.", ""),
        (33, "Since the run night-19: 33 findings.", "3 more findings are in the HTML report."),
    ],
)
def test_changes_are_counted_and_the_first_are_in_a_table(
    run: RunData, count: int, sentence: str, more: str
) -> None:
    text = render_markdown(replace(run, changes=Changes("night-19", (CAUSE,) * count)))
    assert sentence in text
    rows = [line for line in text.splitlines() if line == "| regression | R0 output: a \\| b | 0 |  | 0 |"]
    assert len(rows) == min(count, texts.MOST_CHANGES)
    assert ("more findings" in text) == bool(more)
    assert more in text


def test_a_run_that_played_nothing_states_that(run: RunData, capsys: Capture) -> None:
    empty = replace(run, rows=(), cases={})
    text = render_markdown(empty)
    assert "No case was played." in text
    Output(None, quiet=False).show(show_run(empty))
    assert "R0" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("started", "when"),
    [
        ("2026-11-20T03:00:00+01:00", "2026-11-20 02:00 UTC"),
        ("yesterday", "yesterday"),
        ("", "at an unknown time"),
    ],
)
def test_the_start_of_a_run_is_shown_in_utc_if_it_is_a_time(run: RunData, started: str, when: str) -> None:
    assert replace(run, started=started).when == when


def test_what_no_night_wrote_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", found=planned()[:1])
    (folder / "nightly.json").write_text('[{"stage": 3}]')
    with pytest.raises(UsageError, match=r"nightly\.json' is not what a night writes: Expected `str`"):
        load_run(folder)


@pytest.mark.parametrize(
    ("gate", "base", "sentence"),
    [
        (Gate.NEW, None, "1 finding that no catalogue knows"),
        (Gate.ANY, base_with(), "2 new faults in 1 class compared with 'main'"),
    ],
)
def test_a_gate_names_what_it_counted(gate: Gate, base: Base | None, sentence: str, capsys: Capture) -> None:
    rows = [row(Rule.STRUCTURE, Verdict.XFAIL, "default"), row(Rule.FRESHNESS, Verdict.FAIL, "latent")]
    result = judge_gate([audited(*rows)], gate, base)
    Output(None, quiet=False).show(show_gate(result))
    head, *lines, _ = capsys.readouterr().out.splitlines()
    assert head == sentence
    assert len(lines) == len(result.failing)
    assert lines[-1].split()[:2] == ["R3", "Qwen3VL"]


def test_a_rule_that_was_not_judged_is_a_notification_and_no_result() -> None:
    source = audited(row(Rule.FRESHNESS, Verdict.ERROR))
    text = sarif_text(audit_findings([source], judge_gate([source], Gate.ANY)))
    assert "Qwen3VL: R3 was not judged; step 1 'get 4' was wrong" in text


TRACE = Trace.parse("cap 16: profile 16; set 16; forward 16")


def repro_case(revision: str, structure: str, must_break: frozenset[Rule]) -> JudgedCase:
    """A case of incident 43602: the profile run breaks `structure`, then all is right."""
    case = Case("qwen3_vl", registered(revision), TRACE, ArmSpec.parse("eager/drop_all"))
    first = answer() if structure == "tensors" else Answer("none", (), (), (), (), ())
    steps = (
        StepFacts("profile 16", 16, answer=first, distances=QUIET),
        StepFacts("set 16", 16),
        StepFacts("forward 16", 16, answer=answer(), distances=RIGHT),
    )
    return judge_case(PlannedCase(case, must_break, incident="43602"), observed(*steps, facts=None))


FREE = repro_case("pr43617", "tensors", frozenset())
HAS = repro_case("pr40932", "none", frozenset({Rule.STRUCTURE}))


@pytest.fixture
def table() -> ReproTable:
    return ReproTable(find("43602"), [FREE.planned])


def test_before_inductor_starts_the_broken_rules_are_shown(table: ReproTable, capsys: Capture) -> None:
    Output(None, quiet=False).show(table.so_far([FREE, HAS], 12.4))
    assert capsys.readouterr().out == ("\nwithout Inductor: pr40932 broke R1; Inductor follows, about 12 s\n")
    Output(None, quiet=False).show(table.so_far([FREE], 12.4))
    assert capsys.readouterr().out == ""
    Output(None, quiet=False).show(table.so_far([FREE], 3, source="vllm 0.22.1"))
    Output(None, quiet=False).show(table.so_far([HAS], 3, source="vllm 0.22.1"))
    assert (
        capsys.readouterr()
        .out.split("\n\n")[-1]
        .startswith(
            "without Inductor: vllm 0.22.1: HAS incident 43602, breaks R1; Inductor follows, about 3 s"
        )
    )


def test_a_source_is_free_has_the_fault_or_was_not_judged(table: ReproTable, capsys: Capture) -> None:
    Output(None, quiet=False).show(table.source_verdict("vllm 0.22.1", "a.py:3", [], []))
    assert capsys.readouterr().out == "vllm 0.22.1: free of incident 43602\n"
    Output(None, quiet=False).show(table.source_verdict("vllm 0.22.1", "a.py:3", [HAS], []))
    assert capsys.readouterr().out == "\nwhere: a.py:3\nvllm 0.22.1: HAS incident 43602, breaks R1\n"
    Output(None, quiet=False).show(table.source_verdict("vllm 0.22.1", "a.py:3", [HAS], [HAS]))
    assert capsys.readouterr().out.splitlines()[-1] == "not as the catalogue expects: 1 case"


def test_an_unexpected_case_shows_both_verdicts(table: ReproTable, capsys: Capture) -> None:
    unexpected = table.unexpected([repro_case("pr43617", "none", frozenset())])
    Output(None, quiet=False).show(unexpected)
    printed = capsys.readouterr().out
    assert "not as expected: pr43617 under eager/drop_all on 'cap 16: " in printed
    assert " broke R1 R2, expected none\n  R1 FAIL: " in printed


def test_findings_that_are_not_shown_are_counted(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_data = load_run(write_run(tmp_path / "run"))
    cases = case_findings(run_data)
    unexpected = sum(verdict_of(rows) in UNEXPECTED for rows in cases)
    monkeypatch.setattr(report, "MOST_EXPECTED", 1)
    Output(None, quiet=False).show(show_run(run_data))
    more = f"and {len(cases) - unexpected - 1} more cases broken as expected; --html FILE shows them"
    assert more in capsys.readouterr().out.splitlines()
    monkeypatch.setattr(texts, "MOST_FINDINGS", 1)
    assert f"\n{unexpected - 1} more cases are in the HTML report.\n" in render_markdown(run_data)


def test_a_rule_that_a_line_does_not_have_is_an_empty_cell() -> None:
    matrix = Matrix(("family",), (Rule.OUTPUT,), (MatrixLine(("qwen3_vl",), (None,)),))
    assert matrix_table(matrix, texts._cell).rows == [(["qwen3_vl", ""], "")]


def test_arms_that_were_wrong_without_an_error_are_named(table: ReproTable, capsys: Capture) -> None:
    off = replace(HAS, judgements=(Judgement(Rule.OUTPUT, Verdict.FAIL, effect=Effect.OUTPUT),))
    Output(None, quiet=False).show(table.shown([FREE, off, off]))
    assert capsys.readouterr().out.splitlines()[:2] == ["", "wrong without an error under: eager/drop_all"]
    raised = replace(HAS, judgements=(Judgement(Rule.OUTPUT, Verdict.FAIL, effect=Effect.CRASH),))
    Output(None, quiet=False).show(table.shown([FREE, raised]))
    assert "wrong without" not in capsys.readouterr().out


def test_a_case_that_could_not_be_judged_has_the_colour_of_an_error() -> None:
    lost = replace(
        FREE, judgements=(Judgement(Rule.OUTPUT, Verdict.ERROR), Judgement(Rule.STRUCTURE, Verdict.FAIL))
    )
    assert repro_table._style(lost) == Verdict.ERROR.style
    broken = replace(FREE, judgements=(Judgement(Rule.STRUCTURE, Verdict.FAIL),))
    kept = replace(FREE, judgements=(Judgement(Rule.STRUCTURE, Verdict.PASS),))
    assert (repro_table._style(broken), repro_table._style(kept)) == (Verdict.FAIL.style, "")


def test_what_kernels_touched_is_under_the_block_once(
    table: ReproTable, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        repro_table, "access_lines", lambda judged_case: [f"{judged_case.case.subject} touched row 3"]
    )
    Output(None, quiet=False).show(table.add(FREE))
    capsys.readouterr()
    Output(None, quiet=False).show(table.end_block())
    assert capsys.readouterr().out == "pr43617 touched row 3\n"
    Output(None, quiet=False).show(table.end_block())
    assert capsys.readouterr().out == ""


def test_a_case_that_did_not_end_is_one_line_of_a_run() -> None:
    ended = lost_result(FREE.planned, CaseEnding.CRASHED, "ended by SIGSEGV", "", 0.1)
    (line,) = unexpected([ended])
    assert line.startswith("ERROR pr43617 float32 'cap 16: profile 16; set 16; forward 16': crashed: ")


def test_nothing_found_has_no_table(capsys: Capture) -> None:
    Output(None, quiet=False).show(show_findings([]))
    assert capsys.readouterr().out == ""


def test_cases_without_steps_have_no_plot_of_graphs(tmp_path: Path) -> None:
    case, judgements = planned()[2]  # compiled
    run = load_run(write_run(tmp_path / "run", found=[(case, judgements)]))
    (whole,) = run.cases.values()
    assert whole.graphs
    assert figures.figure_graphs(run).svg is not None
    without = figures.figure_graphs(replace(run, cases={whole.case: replace(whole, steps=())}))
    assert (without.svg, without.absent) == (None, "")
    assert without.table is not None


def test_the_classes_of_a_group_are_in_a_line_below_the_table(capsys: Capture) -> None:
    broken = row(Rule.FRESHNESS, Verdict.FAIL)
    Output(None, quiet=False).show(
        show_groups(
            [
                ClassVerdicts("vllm 0.22.1", "Qwen3VL", (broken,)),
                ClassVerdicts("vllm 0.22.2", "Qwen3VL", (broken,)),
            ],
            [],
        )
    )
    head, group, classes, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["group", "broken", "live", "broken", "captured", "kept"]
    assert group.split()[0] == "A"
    assert classes.split(maxsplit=1) == ["A", "vllm 0.22.1: Qwen3VL; vllm 0.22.2: Qwen3VL"]


def test_the_command_prints_annotations_and_no_other_report(tmp_path: Path, capsys: Capture) -> None:
    run = write_run(tmp_path / "run", found=planned()[:2])
    assert main(["report", str(run), "--annotations"]) == 0
    assert capsys.readouterr().out.splitlines() == list(annotations(load_run(run)))
