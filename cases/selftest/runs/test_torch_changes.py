"""What another torch changes: each planted difference is in its line, under its cause, and no other is."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cases.selftest.runs.written_results import case, write
from deepstack_harness.cli.main import main
from deepstack_harness.contract.observation import CompiledCode, DroppedKind
from deepstack_harness.contract.rules import Rule
from deepstack_harness.errors import ExitCode
from deepstack_harness.runs.compare import ChangeKind
from deepstack_harness.runs.records import CaseRecord
from deepstack_harness.runs.store import StoredRun, read_stored
from deepstack_harness.runs.torch_changes import VersionTable, version_table

Capture = pytest.CaptureFixture[str]
VERDICTS = {"a": ("PASS", "PASS"), "b": ("PASS", "PASS")}
KERNELS = ("extern_kernels.mm", "cpp_fused_add", "cpp_fused_add")
CODE = CompiledCode((DroppedKind("TENSOR_MATCH", 5), DroppedKind("HASATTR", 1)), KERNELS, 1000, 2.0)


def compiled(name: str, code: CompiledCode | None = CODE, **changes: Any) -> CaseRecord:
    return replace(case(name), arm="inductor/drop_all", breaks=0, code=code, **changes)


def versions(
    tmp_path: Path,
    torch: str,
    verdicts: Mapping[str, tuple[str, str]] = VERDICTS,
    cases: Sequence[CaseRecord] = (compiled("a"), compiled("b")),
) -> Path:
    folder = write(tmp_path / torch, verdicts, {case.case: case for case in cases})
    about = json.loads((folder / "run.json").read_text())
    about["environment"]["torch"] = torch
    (folder / "run.json").write_text(json.dumps(about))
    return folder


def table(tmp_path: Path, verdicts: Mapping[str, tuple[str, str]] = VERDICTS, **new: Any) -> VersionTable:
    """The table of two versions, of which the second has another case `a`."""
    old = versions(tmp_path, "2.13.0")
    later = versions(tmp_path, "2.15.0", verdicts, [replace(compiled("a"), **new), compiled("b")])
    return version_table([read_stored(old), read_stored(later)])


def lines(made: VersionTable) -> dict[tuple[str, str], tuple[str, ...]]:
    every = {(line.section, line.name.strip()): line.cells for line in made.lines}
    assert len(every) == len(made.lines)
    return every


ARM = "inductor/drop_all, 2 cases"
SAME = {(ARM, "compile time"): ("x1.00", "x1.00")}


def test_equal_runs_have_no_line_but_the_time(tmp_path: Path) -> None:
    made = table(tmp_path)
    assert lines(made) == SAME
    assert made.versions == ("2.13.0", "2.15.0")
    assert made.notes == ()


def test_a_verdict(tmp_path: Path) -> None:
    made = lines(table(tmp_path, {**VERDICTS, "a": ("PASS", "FAIL")}))
    assert made.pop(("regression", f"R2 {Rule.BOUNDARY.word}: broken")) == ("", "1 case")
    assert made.pop((ARM, "rules broken")) == ("0", "1")
    assert made.pop((ARM, "rules kept")) == ("4", "3")
    assert made == SAME


@pytest.mark.parametrize(
    ("new", "section", "cause", "figure", "cells"),
    [
        ({"graphs": 2}, "regression", "graphs grew", "graphs", ("2", "3")),
        ({"recompiles": 1}, "regression", "recompiles grew", "recompiles", ("0", "1")),
        ({"breaks": 1}, "regression", "breaks grew", "graph breaks", ("0", "1")),
        ({"graphs": 0}, "improvement", "graphs shrank", "graphs", ("2", "1")),
        ({"distances": case("a", distance=0.5).distances}, "regression", "distance grew", "largest distance",
         ("0", "0.5")),
        ({"code": replace(CODE, kernels=(*KERNELS[:2], "cpp_fused_mul", "cpp_fused_mul"))},
         "new behaviour", "kernels: cpp .. with mul without add", "kernels", ("6", "7")),
        ({"code": replace(CODE, code_bytes=1500)}, "", "", "bytes of generated code", ("2,000", "2,500")),
    ],
)  # fmt: skip
def test_a_figure(
    tmp_path: Path, new: dict[str, Any], section: str, cause: str, figure: str, cells: tuple[str, str]
) -> None:
    made = lines(table(tmp_path, **new))
    if cause:
        assert made.pop((section, cause)) == ("", "1 case")
    assert made.pop((ARM, figure)) == cells
    assert made == SAME


def test_dropped_guards_are_one_cause_and_a_line_for_each_type(tmp_path: Path) -> None:
    dropped = (DroppedKind("TENSOR_MATCH", 7), DroppedKind("TYPE_MATCH", 1))
    made = lines(table(tmp_path, code=replace(CODE, dropped=dropped)))
    assert made.pop(("new behaviour", "dropped guards: more TENSOR_MATCH, TYPE_MATCH; fewer HASATTR")) == (
        "", "1 case",
    )  # fmt: skip
    assert made.pop((ARM, "dropped guards")) == ("12", "14")
    assert made.pop((ARM, "TENSOR_MATCH")) == ("10", "12")
    assert made.pop((ARM, "TYPE_MATCH")) == ("0", "1")
    assert made.pop((ARM, "HASATTR")) == ("2", "1")
    assert made == SAME


def test_other_kernels_of_another_number_of_graphs_are_its_consequence(tmp_path: Path) -> None:
    made = table(tmp_path, graphs=2, code=replace(CODE, kernels=KERNELS * 2))
    ((cause,),) = made.causes
    assert (cause.kind, cause.title) == (ChangeKind.REGRESSION, "graphs grew")
    assert [change.metric for change in cause.consequences] == ["kernels"]


def test_compile_time_is_the_median_ratio_of_cold_compiles(tmp_path: Path) -> None:
    cases = [compiled(name, replace(CODE, seconds=4.0)) for name in "ab"]
    cases.append(compiled("c", replace(CODE, seconds=None)))  # out of the cache: no time of compiling
    verdicts = {**VERDICTS, "c": ("PASS", "PASS")}
    old = versions(tmp_path, "2.13.0", verdicts, [*map(compiled, "abc")])
    new = versions(tmp_path, "2.15.0", verdicts, cases)
    made = lines(version_table([read_stored(old), read_stored(new)]))
    assert made == {("inductor/drop_all, 3 cases", "compile time"): ("x1.00", "x2.00")}


def test_three_versions_are_each_held_against_the_one_before(tmp_path: Path) -> None:
    runs = [versions(tmp_path, "2.10.0"), versions(tmp_path, "2.13.0")]
    runs.append(versions(tmp_path, "2.15.0", VERDICTS, [compiled("a", graphs=2), compiled("b")]))
    made = lines(version_table([*map(read_stored, runs)]))
    assert made["regression", "graphs grew"] == ("", "-", "1 case")
    assert made[ARM, "graphs"] == ("2", "2", "3")


def unfinished(folder: Path) -> StoredRun:
    about = json.loads((folder / "run.json").read_text())
    about["finished"], about["planned"]["cases"] = None, 3
    (folder / "run.json").write_text(json.dumps(about))
    return read_stored(folder)


def test_cases_that_an_unfinished_old_run_did_not_get_to_are_not_new(tmp_path: Path, capsys: Capture) -> None:
    old = versions(tmp_path, "2.13.0")
    verdicts = {**VERDICTS, "c": ("PASS", "PASS")}
    new = versions(tmp_path, "2.15.0", verdicts, [*map(compiled, "abc")])
    made = version_table([unfinished(old), read_stored(new)])
    assert lines(made) == SAME
    assert made.notes[0] == (
        "torch 2.13.0 did not get to 1 case, which are not compared: 2 of 3 cases have run"
    )
    assert main(["compare", str(old), str(new)]) == ExitCode.HOLDS
    said = " ".join(capsys.readouterr().out.split())
    assert "the old run did not get to 1 case, which are not compared" in said
    assert "cases that are new" not in said


def test_other_differences_than_torch_are_reported(tmp_path: Path) -> None:
    old, new = versions(tmp_path, "2.13.0"), versions(tmp_path, "2.15.0")
    about = json.loads((new / "run.json").read_text())
    about["environment"]["python"] = "3.99.0"
    (new / "run.json").write_text(json.dumps(about))
    (note,) = version_table([read_stored(old), read_stored(new)]).notes
    assert note.startswith("Python differs too, so torch may not be the only cause: ")
    assert note.endswith("3.99.0")


def test_compare_and_report_show_the_table(tmp_path: Path, capsys: Capture) -> None:
    old = versions(tmp_path, "2.13.0")
    new = versions(tmp_path, "2.15.0", VERDICTS, [compiled("a", graphs=2), compiled("b")])
    assert main(["compare", str(old), str(new)]) == ExitCode.BROKEN
    said = capsys.readouterr().out
    assert "What does this torch change?" in said
    assert "OLD  2.13.0: torch 2.13.0" in said
    assert max(map(len, said.splitlines())) <= 80 or "play it" in said
    page, text = tmp_path / "page.html", tmp_path / "page.md"
    words = ["report", str(new), "--against", str(old)]
    assert main(words) == ExitCode.HOLDS
    assert "graphs grew" in capsys.readouterr().out
    assert main([*words, "--html", str(page), "--markdown", str(text)]) == ExitCode.HOLDS
    assert "<td>graphs grew</td>" in page.read_text()
    assert "| graphs grew |  | 1 case |" in text.read_text()


def test_runs_of_one_torch_have_no_such_table(tmp_path: Path, capsys: Capture) -> None:
    old, new = (versions(tmp_path / name, "2.13.0") for name in ("old", "new"))
    assert main(["compare", str(old), str(new)]) == ExitCode.HOLDS
    assert "What does this torch change?" not in capsys.readouterr().out


def test_arms_in_which_nothing_differs_are_one_line(tmp_path: Path) -> None:
    uncompiled = [replace(case(name), arm="eager", graphs=None, recompiles=None) for name in "ab"]
    runs = [versions(tmp_path, torch, VERDICTS, uncompiled) for torch in ("2.13.0", "2.15.0")]
    made = lines(version_table([*map(read_stored, runs)]))
    assert made == {("alike in all versions", "eager (2 cases)"): ("", "")}


@pytest.mark.parametrize(
    ("kernels", "title"),
    [
        ((*KERNELS, "torch.ops.aten.cumsum.default"), "kernels: torch.ops.aten.cumsum.default new"),
        (KERNELS[1:], "kernels: extern_kernels.mm gone"),
        ((KERNELS[0], "cpp_fused_add_view"), "kernels: cpp .. with view"),
    ],
)
def test_kernels_are_named_by_what_differs(tmp_path: Path, kernels: tuple[str, ...], title: str) -> None:
    made = table(tmp_path, code=replace(CODE, kernels=kernels))
    assert ("new behaviour", title) in lines(made)


def test_the_same_other_kernels_in_twice_the_layers_are_one_finding(tmp_path: Path) -> None:
    old = versions(
        tmp_path, "2.13.0", cases=[compiled("a"), compiled("b", replace(CODE, kernels=KERNELS * 2))]
    )
    other = (KERNELS[0], "cpp_fused_add_view", "cpp_fused_add_view")
    cases = [compiled(name, replace(CODE, kernels=other * number)) for name, number in (("a", 1), ("b", 2))]
    new = versions(tmp_path, "2.15.0", cases=cases)
    made = lines(version_table([read_stored(old), read_stored(new)]))
    assert made == {("new behaviour", "kernels: cpp .. with view"): ("", "2 cases"), **SAME}
