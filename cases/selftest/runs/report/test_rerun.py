"""The command beside a finding plays that case, and no other."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from cases.selftest.runs.report.written_runs import BROKEN, planned, write_run
from deepstack_harness.cli.main import build_parser, main
from deepstack_harness.contract.case import PlannedCase, live_buffer
from deepstack_harness.runs.case_result import lost_result
from deepstack_harness.runs.execution import Tier, matrix, select
from deepstack_harness.runs.frames import read_run
from deepstack_harness.runs.records import CaseEnding, CaseRecord
from deepstack_harness.runs.report.page import render_page
from deepstack_harness.runs.report.run_data import load_run
from deepstack_harness.runs.report.tables import rerun_command, selection_of
from deepstack_harness.runs.report.texts import render_markdown

EVERY = matrix(Tier.NIGHTLY, ["cpu"])
OWN = "deepstack_harness.models.revisions:Pr40932Buffer"


def recorded(planned: PlannedCase) -> CaseRecord:
    return lost_result(planned, CaseEnding.CRASHED, "", "", 0.0).case


@pytest.mark.parametrize("one", EVERY[::60], ids=lambda one: one.id)
def test_the_selection_takes_one_case_of_the_whole_matrix(one: PlannedCase) -> None:
    assert {found.id for found in select(EVERY, selection_of(recorded(one)))} == {one.id}


def test_the_command_is_one_that_the_parser_takes() -> None:
    case = recorded(next(one for one in EVERY if one.case.caller == "micro_batches"))
    python, _, harness, *words = shlex.split(rerun_command(case))
    parsed = build_parser(words).parse_args(words)
    assert (python, harness, parsed.command, parsed.tier) == ("python", "deepstack_harness", "run", "nightly")
    assert (parsed.device, parsed.selection) == (["cpu"], selection_of(case))


@pytest.mark.slow  # 9 s; the command itself is parsed daily
def test_a_case_of_ones_own_buffer_is_played_again(tmp_path: Path) -> None:
    words = ["--buffer", OWN, "--quiet"]
    assert main(["run", "trace == 'cap 16: set 9; get 16'", *words, "--out", str(tmp_path / "one")]) == 0
    case = load_run(tmp_path / "one").cases
    (command,) = map(rerun_command, case.values())
    assert main([*shlex.split(command)[3:], "--quiet", "--out", str(tmp_path / "two")]) == 0
    assert list(read_run(tmp_path / "two").cases["case"]) == list(case)


def test_a_case_of_a_test_has_none() -> None:
    case = EVERY[0].case
    for other in (replace(case, family="MyDecoder"), replace(case, buffer=live_buffer("mine:Buffer"))):
        assert not rerun_command(recorded(PlannedCase(other, None)))


def test_it_stands_beside_what_is_unexpected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run")
    (broken,) = [case for case, what in planned() if what is BROKEN]
    run = load_run(folder)
    (command,) = [rerun_command(one) for one in run.cases.values() if one.case == broken.id]
    main(["report", str(folder)])
    assert f"  rerun      {command}\n" in capsys.readouterr().out
    assert "revision == &#34;granite_full&#34; and caller == &#34;engine&#34;" in render_page(run)
    assert f"rerun: `{command}`" in render_markdown(run)
