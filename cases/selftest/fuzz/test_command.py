"""`python -m deepstack_harness fuzz`: what it prints, writes and exits with."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cases.by_day import by_day
from cases.selftest.catalogue.written_scripts import run_python
from cases.selftest.play import tampering_buffers
from cases.selftest.row_columns import filled_columns, stated_columns
from deepstack_harness.cli import fuzz as command
from deepstack_harness.cli.main import main
from deepstack_harness.cli.output import Output
from deepstack_harness.contract.verdicts import Row
from deepstack_harness.errors import ExitCode
from deepstack_harness.fuzz.campaign import Campaign, Hunted, read_journal
from deepstack_harness.fuzz.faults import FuzzRequest, Progress

pytestmark = pytest.mark.xdist_group("fuzz command")  # its fixtures are played once


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a hunt leaves that finds one fault: most of its time goes into the shortest trace of each."""
    out = tmp_path_factory.mktemp("fuzz")
    words = ["--buffer", "deepstack_harness.models.mutants.r3:StaleAfterShorterSet", "--examples", "6"]
    assert main(["fuzz", *words, "--out", str(out), "--json", str(out / "rows")]) == ExitCode.BROKEN
    return out


def test_findings_are_written_as_rows_lines_and_programs(folder: Path) -> None:
    found = read_journal(folder)
    rows = [json.loads(line) for line in (folder / "rows").read_text().splitlines()]
    assert {(row["rule"], row["promise"]) for row in rows} == {("R3", "I3")}
    assert [row["trace"] for row in rows] == [finding.trace for finding in found]
    assert all(list(row)[: len(fields(Row))] == [field.name for field in fields(Row)] for row in rows)
    assert filled_columns(rows) <= stated_columns("finding")
    assert rows[0].keys() - {field.name for field in fields(Row)} == stated_columns("finding") - {
        field.name for field in fields(Row)
    }
    assert {row["effect"] for row in rows} <= {"padding", "output"}
    assert {row["regime"] for row in rows} == {"live"}
    assert (folder / "findings.txt").read_text().splitlines() == [finding.line for finding in found]


@pytest.mark.slow  # programs by day in catalogue/test_scripts_run.py
def test_there_is_a_program_for_each_and_it_shows_its_fault(folder: Path) -> None:
    programs = sorted(folder.glob("R*.py"))
    assert len(programs) == len(read_journal(folder))
    assert run_python(folder, "-I", programs[0].name).returncode == 1


def test_the_cases_are_red_while_the_faults_are_there(folder: Path) -> None:
    cases: dict[str, Any] = {}
    exec((folder / "test_found.py").read_text(), cases)
    assert len(cases["FOUND"]) == len(read_journal(folder))
    for rule, trace in cases["FOUND"]:
        with pytest.raises(AssertionError):
            cases["test_the_rule_is_kept"](rule, trace)


@pytest.mark.slow
def test_a_compiled_decoder_is_named_by_backend_and_arm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--arm", "eager/drop_all", "--examples", "6", "--out", str(tmp_path)]
    assert main(["fuzz", "--revision", "reference", *words]) == ExitCode.HOLDS
    output = capsys.readouterr().out
    assert "6 of 6 examples" in output
    assert "1 graph of 1" in output
    assert "reference [eager/drop_all]: nothing found" in output


@pytest.mark.parametrize(
    ("hunted", "said"),
    [
        (Hunted(), None),
        (
            Hunted(progress=Progress(examples=40), resumed=1),
            "continuing an interrupted run after 40 examples",
        ),
    ],
)
def test_a_run_that_goes_on_prints_after_what(
    hunted: Hunted, said: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Output(None, quiet=False).show(command._print_folder(Campaign(FuzzRequest(), tmp_path, 100), hunted))
    first, *more = capsys.readouterr().out.splitlines()
    assert first.startswith(f"findings are stored in {tmp_path}; ")
    assert more == ([f"{said} and 1 finding"] if said else [])


@pytest.mark.parametrize(
    ("name", "why"),
    by_day(
        [
            ("PatchesAtItsStart", "tampered: the process measures wrongly .* is not caught after it"),
            ("Collector", "6 of 6 examples could not be measured: tampered: get changed"),
            (
                "Function",
                "6 of 6 examples could not be measured: tampered: the code that measures raised Attr",
            ),
        ]
    ),
)
def test_nothing_is_proved_in_a_worker_that_was_tampered_with(
    name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--buffer", f"{tampering_buffers.__name__}:{name}", "--examples", "6", "--out", str(tmp_path)]
    assert main(["fuzz", *words]) == ExitCode.BROKEN
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(why, said), said
    assert said.endswith(f"{name} [eager]: nothing found, which proves nothing")


@pytest.mark.slow  # 3 s
def test_an_exception_without_a_text_is_no_fault_of_the_harness(tmp_path: Path) -> None:
    buffer = "cases.selftest.play.misbehaving_buffers:RejectsWithoutText"
    words = ["fuzz", "--buffer", buffer, "--examples", "40", "--out", str(tmp_path)]
    assert main(words) == ExitCode.HOLDS
    assert read_journal(tmp_path) == []
