"""Runs that cannot be written or read as they should be: a sentence, and what is whole stays."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from cases.selftest.catalogue.declared_packages import declare, forget
from cases.selftest.reporting.written_runs import planned, write_run
from deepstack_harness.catalogue.names import Names
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.reporting import figures
from deepstack_harness.reporting.figures import figures_of
from deepstack_harness.reporting.json_lines import JsonLines
from deepstack_harness.reporting.loading import load_run
from deepstack_harness.reporting.output_lost import OutputLost
from deepstack_harness.reporting.run_data import RunData
from deepstack_harness.results.files import Files
from deepstack_harness.results.frames import read_run
from deepstack_harness.results.history import of_dataset
from deepstack_harness.results.parquet import write_parquet
from deepstack_harness.results.read import read_part


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", found=planned()[:2])


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (None, "is not a dataset of runs: "),
        (pd.DataFrame({"verdict": ["PASS"]}), "its rows have no column 'run'"),
        (
            pd.DataFrame({"run": ["1"], "schema_version": [2]}),
            "does not hold what a run writes: Object missing",
        ),
        (pd.DataFrame({"run": ["1"], "schema_version": [99]}), "has schema_version 99"),
    ],
)
def test_a_dataset_of_something_else_is_no_history(
    frame: "pd.DataFrame | None", said: str, tmp_path: Path
) -> None:
    if frame is not None:
        frame.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(UsageError, match=said):
        list(of_dataset(str(tmp_path)))


def test_a_parquet_file_that_cannot_be_written_leaves_the_lines(folder: Path) -> None:
    (folder / "rows.parquet").mkdir()
    with pytest.raises(MachineError, match=r"rows\.parquet': .*; the JSON lines beside it are whole"):
        write_parquet(read_part(Files(folder)))
    assert len(load_run(folder).cases) == 2


def test_without_pandas_the_line_that_installs_it_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MachineError, match=r"pip install 'deepstack-harness\[reports\]'"):
        read_run(folder)


def test_a_run_that_was_ended_before_its_first_case_reads(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", found=planned()[:1], finished=False)
    for name in ("rows.jsonl", "cases.jsonl"):
        (folder / name).unlink()
    assert (load_run(folder).rows, len(load_run(folder).cases)) == ((), 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_row_that_cannot_be_written_is_said() -> None:
    lines = JsonLines("/dev/full")
    with pytest.raises(MachineError, match="cannot write rows to '/dev/full': No space left on device"):
        lines.write({"a": 1})
    lines.close()


def test_a_reader_that_went_away_is_no_fault_of_the_machine(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    lines = JsonLines(str(tmp_path / "pipe"))
    os.close(reader)
    with pytest.raises(OutputLost):
        lines.write({"a": 1})
    lines.close()


@pytest.mark.parametrize(
    ("changes", "key", "absent"),
    [
        ({"fuzz": ()}, "fuzz", "the fuzzer found nothing"),
        ({"history": ()}, "history", "the folder of earlier runs has none yet"),
    ],
)
def test_a_figure_of_nothing_says_so(
    changes: dict[str, tuple[()]], key: str, absent: str, folder: Path
) -> None:
    run: RunData = replace(load_run(folder), **changes)  # type: ignore[arg-type]
    (figure,) = (one for one in figures_of(run) if one.key == key)
    assert figure.absent == absent


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "figure 'mine' of acme 1.0 raised KeyError: 'rows'"),
        ("text", "figure 'mine' of acme 1.0 returned 'a plot', which is not a Figure"),
    ],
)
def test_a_figure_of_another_package_that_cannot_be_made_is_named(
    name: str, said: str, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, site = load_run(folder), tmp_path / "site"
    site.mkdir()
    (site / "acme_figures.py").write_text(
        "def raises(run):\n    raise KeyError('rows')\ndef text(run):\n    return 'a plot'\n"
    )
    declare(site, "acme", {"figures": {"mine": f"acme_figures:{name}"}})
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(figures, "EXTRA_FIGURES", Names("figure", {}, "figures"))  # ours has been read
    forget()
    try:
        with pytest.raises(UsageError, match=said):
            figures_of(run)
    finally:
        forget()
        sys.modules.pop("acme_figures", None)
