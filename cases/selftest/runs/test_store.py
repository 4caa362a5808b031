"""The folder of a run: written, read back, resumed, damaged, of an earlier version, and as tables."""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from cases.by_day import by_day
from cases.selftest.catalogue.declared_packages import declare, forget
from cases.selftest.row_columns import KINDS, filled_columns, stated_columns
from cases.selftest.runs.report.written_runs import planned, write_run
from cases.selftest.runs.test_command import group_on
from cases.selftest.runs.written_results import about, case, row, write
from deepstack_harness.cli import run as command
from deepstack_harness.cli.main import main
from deepstack_harness.cli.output import JsonLines, Output, OutputLost
from deepstack_harness.contract.names import Names
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import SCHEMA_VERSION, FaultKind, Row, Verdict
from deepstack_harness.errors import ExitCode, MachineError, UsageError
from deepstack_harness.runs import frames
from deepstack_harness.runs.execution import Execution
from deepstack_harness.runs.frames import read_dataset, read_history, read_run, write_parquet
from deepstack_harness.runs.newest import AuditedPackage, changes
from deepstack_harness.runs.records import Files, Shard
from deepstack_harness.runs.report import figures
from deepstack_harness.runs.report.figures import figures_of
from deepstack_harness.runs.report.run_data import RunData, load_run
from deepstack_harness.runs.store import RunPart, RunWriter, read_about, read_part, read_stored

GOOD = {"a": ("PASS", "SKIP"), "b": ("PASS", "XFAIL")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "run", GOOD)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_was_written_is_read(folder: Path) -> None:
    run = read_run(folder)
    assert list(run.cases["case"]) == ["a", "b"]
    assert list(zip(run.rows["case"], run.rows["verdict"], strict=True)) == [
        ("a", "PASS"), ("a", "SKIP"), ("b", "PASS"), ("b", "XFAIL"),
    ]  # fmt: skip
    assert run.cases["distances"][0]["effect"] == 4.0
    assert run.meta[0]["finished"] > run.meta[0]["started"]
    assert run.meta[0]["environment"]["torch"]
    assert run.notes == []


def test_a_run_that_was_killed_is_read_without_its_last_torn_lines(tmp_path: Path) -> None:
    files = Files(tmp_path)
    writer = RunWriter(files, about(3), resume=False)
    writer.append((row("a", "R0", "PASS"), row("a", "R2", "PASS")), case("a"))
    writer.close()
    with files.rows.open("a") as stream:
        stream.write(
            files.rows.read_text().splitlines()[0].replace('"case":"a"', '"case":"b"') + "\n" + '{"inci'
        )
    with files.cases.open("a") as stream:
        stream.write('{"case":"b"')
    run = read_run(tmp_path)
    assert list(run.cases["case"]) == ["a"]
    assert set(run.rows["case"]) == {"a"}
    assert len(run.notes) == 3
    assert "cases.jsonl: the last line was cut off" in run.notes[0]

    again = RunWriter(files, about(3), resume=True)
    again.append((row("b", "R0", "FAIL"), row("b", "R2", "PASS")), case("b"))
    again.close()
    run = read_run(tmp_path)
    assert list(run.rows["case"]) == ["a", "a", "b", "b"]
    assert run.notes == []


def test_a_folder_with_a_run_is_not_written_again(folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(UsageError, match=r"run\.json' exists already.*--resume"):
        RunWriter(Files(folder), about(2), resume=False)
    assert contents(folder) == before


def test_a_run_of_other_cases_is_not_resumed(folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(UsageError, match="holds a run of other cases"):
        RunWriter(Files(folder), about(2, plan="another"), resume=True)
    with pytest.raises(UsageError, match="in 1 shards"):
        RunWriter(Files(folder, Shard(1, 2)), about(2, Shard(1, 2)), resume=True)
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("name", "version", "sentence"),
    [
        # No one has these versions: a run with those of the machine is its own.
        ("torch", "99.0.0", "torch 99.0.0"), ("triton", None, "no triton"),
        ("python", "99.0.0", "Python 99.0.0"),
        ("harness", "0.0.1", "deepstack-harness 0.0.1"),
    ],
)  # fmt: skip
def test_a_run_is_not_resumed_in_another_environment(
    folder: Path, name: str, version: str | None, sentence: str
) -> None:
    before, here = contents(folder), about(2)
    other = (
        replace(here, harness=version or "")
        if name == "harness"
        else replace(here, environment=replace(here.environment, **{name: version}))  # type: ignore[arg-type]
    )
    with pytest.raises(UsageError) as error:
        RunWriter(Files(folder), other, resume=True)
    assert f"holds a run with {', '.join(here.versions)}; this is" in str(error.value)
    assert sentence in str(error.value).partition("; this is")[2]
    assert contents(folder) == before


def test_rows_of_two_versions_of_torch_are_not_one_run(tmp_path: Path) -> None:
    """As `run --resume` on another torch once left them."""
    folder = write(tmp_path / "mixed", {"a": ("PASS", "PASS"), "b": ("PASS", "PASS"), "c": ("PASS", "PASS")})
    path = Files(folder).rows
    path.write_text(path.read_text().replace('"torch":"2.13.0"', '"torch":"2.15.0"', 2))
    run = read_stored(folder)
    assert run.mixed == "its rows were measured 4 with torch 2.13.0 and 2 with torch 2.15.0"
    assert run.notes == (f"not one environment, so not one run: {run.mixed}",)


def test_shards_of_two_environments_are_not_one_run(tmp_path: Path) -> None:
    for index, name in enumerate("ab", 1):
        write(tmp_path, {name: ("PASS", "PASS")}, shard=Shard(index, 2))
    path = Files(tmp_path, Shard(2, 2)).about
    record = json.loads(path.read_text())
    record["environment"]["torch"] = "99.0.0"
    path.write_text(json.dumps(record))
    run = read_stored(tmp_path)
    assert run.mixed.startswith(f"its shards ran with {', '.join(about(2).versions)} and with torch 99.0.0, ")


def test_two_processes_do_not_write_one_run(tmp_path: Path) -> None:
    first = RunWriter(Files(tmp_path), about(2), resume=False)
    with pytest.raises(UsageError, match="another process"):
        RunWriter(Files(tmp_path), about(2), resume=True)
    first.close()


@pytest.mark.parametrize("name", ["run.json", "rows.jsonl", "cases.jsonl"])
def test_somebody_elses_file_is_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    for resume in (False, True):
        with pytest.raises(UsageError, match=name.replace(".", r"\.")):
            RunWriter(Files(tmp_path), about(2), resume=resume)
    assert contents(tmp_path) == {name: b"mine"}


def test_shards_are_one_run(tmp_path: Path) -> None:
    write(tmp_path, {"a": GOOD["a"]}, shard=Shard(1, 2))
    assert read_run(tmp_path).notes == ["shard 2/2 is not here"]
    write(tmp_path, {"b": GOOD["b"]}, shard=Shard(2, 2))
    run = read_run(tmp_path)
    assert sorted(run.cases["case"]) == ["a", "b"]
    assert run.notes == []
    assert len(run.meta) == 2


def damaged(path: Path, how: str) -> None:
    lines = path.read_text().splitlines(keepends=True)
    changed = {
        "corrupt": [lines[0].replace(":", "", 1), *lines[1:]],
        "binary": ["\x00\x01\n", *lines],
        "torn": [*lines[:-1], lines[-1][:-9]],
        "cut": lines[:-1],
        "twice": [*lines, lines[-1]],
        "old": [line.replace(f'"schema_version":{SCHEMA_VERSION}', '"schema_version":1') for line in lines],
        "new": [line.replace(f'"schema_version":{SCHEMA_VERSION}', '"schema_version":5') for line in lines],
        "foreign": ['{"hello": "world"}\n'],
        "other fields": ['{"schema_version":3, "hello": "world"}\n'],
        "list": ["[1]\n"],
    }
    path.write_text("".join(changed[how]))


@pytest.mark.parametrize("name", by_day(["rows.jsonl", "cases.jsonl"], count=6))
@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("corrupt", "line 1 of"), ("binary", "line 1 of"), ("torn", "middle of a line"), ("cut", "has"),
        ("twice", "has"), ("old", "schema_version 1, this harness reads 2, 3 and 4"),
        ("new", "schema_version 5"),
        ("foreign", "not what a run writes"), ("other fields", "not what a run writes"),
        ("list", "line 1 of"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_by_name(folder: Path, name: str, how: str, sentence: str) -> None:
    damaged(folder / name, how)
    before = contents(folder)
    with pytest.raises(UsageError) as error:
        read_run(folder)
    assert name in str(error.value)
    assert sentence in str(error.value)
    with pytest.raises(UsageError, match=name.replace(".", r"\.")):
        RunWriter(Files(folder), about(2), resume=True)
    assert contents(folder) == before


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema_version": 1}', '{"schema_version": 3}'])
def test_a_damaged_run_json_is_refused_by_name(folder: Path, text: str) -> None:
    (folder / "run.json").write_text(text)
    with pytest.raises(UsageError, match=r"run\.json"):
        read_run(folder)


@pytest.mark.parametrize("name", ["rows.jsonl", "cases.jsonl"])
def test_a_file_that_is_gone_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(UsageError, match=name.replace(".", r"\.")):
        read_run(folder)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match=r"holds no run: it has no run\.json"):
            read_run(folder)


def test_shards_of_different_runs_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a": GOOD["a"]}, shard=Shard(1, 2))
    path = tmp_path / "run-1of2.json"
    (tmp_path / "run-2of2.json").write_text(path.read_text().replace('"plan": "plan"', '"plan": "other"'))
    for kind in ("rows", "cases"):
        (tmp_path / f"{kind}-2of2.jsonl").write_bytes((tmp_path / f"{kind}-1of2.jsonl").read_bytes())
    with pytest.raises(UsageError, match="different runs"):
        read_run(tmp_path)


def test_a_full_disk_is_reported_with_advice(tmp_path: Path) -> None:
    writer = RunWriter(Files(tmp_path), about(2), resume=False)
    full = Path("/dev/full").open("ab")  # noqa: SIM115  # the writer closes it
    writer._rows.close()
    writer._rows = full
    with pytest.raises(MachineError, match="No space left on device.*--resume"):
        writer.append((row("a", "R0", "PASS"),), case("a", rows=1))
    with pytest.raises(OSError, match="No space"):
        full.close()
    writer.close()


def test_parquet_has_the_same_and_is_a_history(tmp_path: Path) -> None:
    """As a dataset on the hub would: runs in folders, distinguished by their start."""
    starts = ["2026-01-01T00:00:00.000+00:00", "2026-01-02T00:00:00.000+00:00"]
    for number, started in enumerate(starts):
        folder = write(tmp_path / "data" / str(number), GOOD, started=started)
        write_parquet(read_part(Files(folder)))
        frame = pd.read_parquet(folder / "rows.parquet")
        assert list(frame["verdict"]) == list(read_run(folder).rows["verdict"])
        assert set(frame["run"]) == {started}
    runs = list(read_dataset("mine", tmp_path / "data"))
    assert [run.started for run in runs] == starts
    for run in runs:
        ours = read_stored(tmp_path / "data" / "0")
        assert (run.rows, run.cases) == (ours.rows, ours.cases)


def test_a_hub_dataset_that_was_fetched_before_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    dataset, commit = tmp_path / "datasets--mine--runs", "0" * 40
    (dataset / "refs").mkdir(parents=True)
    (dataset / "refs" / "main").write_text(commit)
    for number, started in enumerate(("2026-01-02", "2026-01-01")):
        folder = write(dataset / "snapshots" / commit / str(number), GOOD, started=started)
        write_parquet(read_part(Files(folder)))
    runs, _ = read_history("mine/runs")
    assert [run.name for run in runs] == ["mine/runs 2026-01-01", "mine/runs 2026-01-02"]
    assert runs[0].rows == runs[1].rows == read_stored(folder).rows


def test_a_history_is_read_oldest_first_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    for name, started in (("x", "2026-03-01"), ("y", "2026-01-01"), ("z", "2026-02-01")):
        write(tmp_path / name, GOOD, started=started)
    (tmp_path / "empty").mkdir()
    (tmp_path / "z" / "rows.jsonl").write_text("damaged")
    runs, notes = read_history(str(tmp_path))
    assert [run.name for run in runs] == ["y", "x"]
    assert len(notes) == 1
    assert "rows.jsonl" in notes[0]


@pytest.mark.parametrize("source", ["nowhere", "/no/such/folder"])
def test_a_history_that_is_none_is_quoted(source: str) -> None:
    with pytest.raises(UsageError, match=source):
        read_history(source)


def test_a_hub_dataset_without_a_network_is_the_machines_fault() -> None:
    with pytest.raises(MachineError, match="nobody/nothing"):
        read_history("nobody/nothing")


def test_a_shard_is_read_as_it_is_written() -> None:
    assert (Shard.parse("2/3"), str(Shard.parse("2/3"))) == (Shard(2, 3), "2/3")


@pytest.fixture
def two_cases(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", found=planned()[:2])


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (None, r"is not a dataset of runs: it has no rows\*\.parquet"),
        (pd.DataFrame({"verdict": ["PASS"]}), "its rows have no column 'run'"),
        (
            pd.DataFrame({"run": ["1"], "schema_version": [2]}),
            "does not hold what a run writes: Object missing required field",
        ),
        (pd.DataFrame({"run": ["1"], "schema_version": [99]}), "has schema_version 99"),
    ],
)
def test_a_dataset_of_something_else_is_no_history(
    frame: "pd.DataFrame | None", sentence: str, tmp_path: Path
) -> None:
    if frame is not None:
        frame.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(UsageError, match=sentence):
        list(read_dataset("mine", tmp_path))


def test_a_parquet_file_that_cannot_be_written_leaves_the_lines(two_cases: Path) -> None:
    (two_cases / "rows.parquet").mkdir()
    with pytest.raises(MachineError, match=r"rows\.parquet': .*; the JSON lines beside it are whole"):
        write_parquet(read_part(Files(two_cases)))
    assert len(load_run(two_cases).cases) == 2


def test_without_pandas_the_line_that_installs_it_is_shown(
    two_cases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MachineError, match=r"pip install 'deepstack-harness\[reports\]'"):
        read_run(two_cases)


def test_a_run_that_was_ended_before_its_first_case_reads(tmp_path: Path) -> None:
    two_cases = write_run(tmp_path / "run", found=planned()[:1], finished=False)
    for name in ("rows.jsonl", "cases.jsonl"):
        (two_cases / name).unlink()
    assert (load_run(two_cases).rows, len(load_run(two_cases).cases)) == ((), 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_row_that_cannot_be_written_is_reported() -> None:
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
def test_a_figure_of_nothing_states_that(
    changes: dict[str, tuple[()]], key: str, absent: str, two_cases: Path
) -> None:
    run: RunData = replace(load_run(two_cases), **changes)  # type: ignore[arg-type]
    (figure,) = (figure for figure in figures_of(run) if figure.key == key)
    assert figure.absent == absent


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("raises", "figure 'mine' of acme 1.0 raised KeyError: 'rows'"),
        ("text", "figure 'mine' of acme 1.0 returned 'a plot', which is not a Figure"),
    ],
)
def test_a_figure_of_another_package_that_cannot_be_made_is_named(
    name: str, sentence: str, tmp_path: Path, two_cases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, site = load_run(two_cases), tmp_path / "site"
    site.mkdir()
    (site / "acme_figures.py").write_text(
        "def raises(run):\n    raise KeyError('rows')\ndef text(run):\n    return 'a plot'\n"
    )
    declare(site, "acme", {"figures": {"mine": f"acme_figures:{name}"}})
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(figures, "EXTRA_FIGURES", Names("figure", {}, "figures"))  # ours has been read
    forget()
    try:
        with pytest.raises(UsageError, match=sentence):
            figures_of(run)
    finally:
        forget()
        sys.modules.pop("acme_figures", None)


WRITTEN = Path(__file__).parent / "version_2"
"""Two cases of a run as version 2 wrote them: a faulty and a right buffer under captured graphs."""
LATER_COLUMNS: Mapping[int, Mapping[str, object]] = {
    2: {
        "shape": None, "chances": None, "promise": None, "step": None, "call": None, "exception": None,
        "steps": (), "inputs": (), "guards": (), "influence": None,
    },
    3: {"steps": (), "inputs": (), "guards": (), "influence": None},
}  # fmt: skip
"""Columns that rows of an earlier version do not have, each with what is read for it."""
ROW_COLUMNS = {field.name for field in fields(Row)}


def written_by(version: int) -> Path:
    """Return the folder of two cases as an earlier version wrote them."""
    return WRITTEN.with_name(f"version_{version}")


@pytest.fixture(params=sorted(LATER_COLUMNS))
def earlier(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return Path(shutil.copytree(written_by(request.param), tmp_path / "earlier"))


@pytest.fixture
def later(tmp_path: Path, earlier: Path) -> Path:
    """The same run as this version writes it: each broken rule has a shape."""
    folder, written = tmp_path / "later", read_stored(earlier)
    about = replace(written.abouts[0], schema_version=SCHEMA_VERSION, started="2027-01-01T00:00:00+00:00")
    writer = RunWriter(Files(folder), about, resume=False)
    for ended in written.cases:
        rows = [with_shape(row) for row in written.rows if row.case == ended.case]
        writer.append(rows, replace(ended, schema_version=SCHEMA_VERSION))
    writer.finish()
    writer.close()
    return folder


def with_shape(row: Row) -> Row:
    shape = FaultKind.CLEARED if row.verdict is Verdict.XFAIL else None
    return replace(row, schema_version=SCHEMA_VERSION, shape=row.shape or shape)


@pytest.mark.parametrize("version", sorted(LATER_COLUMNS))
def test_a_run_is_read_with_every_field_that_it_has(version: int) -> None:
    run, later = read_stored(written_by(version)), LATER_COLUMNS[version]
    lines = [json.loads(line) for line in (written_by(version) / "rows.jsonl").read_text().splitlines()]
    assert all(line.keys() | later.keys() == ROW_COLUMNS and not line.keys() & later.keys() for line in lines)
    wanted = [{**line, **later, "promise": Rule(line["rule"]).instance_of} for line in lines]
    assert [asdict(row) for row in run.rows] == wanted
    assert {row.schema_version for row in run.rows} == {version}
    assert filled_columns(run.rows) <= stated_columns("case")
    assert len(run.cases) == 2


def test_the_page_has_each_column_of_a_row() -> None:
    stated = {kind: stated_columns(kind) for kind in KINDS}
    assert set().union(*stated.values()) >= ROW_COLUMNS
    only = set().union(*stated.values()) - ROW_COLUMNS
    assert {kind for kind, names in stated.items() if names & only} == {"input", "finding"}


def test_a_run_is_reported_and_compared(
    earlier: Path, later: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(earlier), "--html", str(tmp_path / "page.html")]) == ExitCode.HOLDS
    assert main(["report", str(later), "--history", str(tmp_path)]) == ExitCode.HOLDS
    assert main(["compare", str(earlier), str(later)]) == ExitCode.HOLDS
    assert capsys.readouterr().out.endswith("nothing changed\n")


def test_datasets_of_both_versions_are_one_history(later: Path, tmp_path: Path) -> None:
    write_parquet(read_part(Files(later)))
    for kind in ("rows", "cases"):  # as version 2 wrote them, in the folder of `earlier`
        lines = pq.read_table(later / f"{kind}.parquet").to_pylist()
        missing = LATER_COLUMNS[2].keys() if kind == "rows" else set()
        fewer = [{name: line[name] for name in line.keys() - missing} for line in lines]
        written = [{**line, "run": "2026", "schema_version": 2} for line in fewer]
        pq.write_table(pa.Table.from_pylist(written), tmp_path / "earlier" / f"{kind}.parquet")
    runs = list(read_dataset("mine", tmp_path))
    assert [len(run.rows) for run in runs] == [24, 24]
    assert [{row.shape for row in run.rows} for run in runs] == [
        {None},
        {row.shape for row in read_stored(later).rows},
    ]


def test_a_run_is_not_continued(earlier: Path) -> None:
    before = {path.name: path.read_bytes() for path in earlier.iterdir()}
    about = replace(read_about(Files(earlier)), schema_version=SCHEMA_VERSION)
    with pytest.raises(UsageError, match="holds a run of schema_version [23] .*can be read, not continued"):
        RunWriter(Files(earlier), about, resume=True)
    assert {path.name: path.read_bytes() for path in earlier.iterdir()} == before


def test_the_broken_rules_of_a_night_are_compared_without_shapes() -> None:
    night = '{"source": "vllm 0.1", "driven": {"A": "a.py:1"}, "broken": [["A", "R3", "live", "rows"]]}'
    before = msgspec.json.decode(night, type=AuditedPackage)
    key = ("A", "R3", "live", "replaced payload")
    now = AuditedPackage("vllm 0.2", before.driven, (key,), SCHEMA_VERSION)
    assert list(changes(before, now)) == []
    shape = replace_key(now, ("A", "R3", "live", "zeros"))
    assert list(changes(msgspec.structs.replace(shape, schema_version=3), now)), "version 3 has shapes"
    other = replace_key(now, ("A", "R5", "live", "cleared payload"))
    assert list(changes(before, other)) == [
        "vllm 0.2: broken since vllm 0.1: A R5 live",
        "vllm 0.2: no longer broken: A R3 live",
    ]
    same_rule = replace_key(now, ("A", "R3", "live", "zeros"))
    assert next(iter(changes(now, same_rule))) == "vllm 0.2: broken since vllm 0.2: A R3 live zeros"


def replace_key(record: AuditedPackage, key: tuple[str, str, str, str]) -> AuditedPackage:
    return AuditedPackage(record.source, record.driven, (key,), record.schema_version)


def test_groups_without_a_gpu_are_named_before_the_cases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = SimpleNamespace(cases=[1, 2], rows=[])
    execution = SimpleNamespace(
        writer=SimpleNamespace(part=part), groups=[group_on("cpu", 1)], left_out=[group_on("cuda", 3)]
    )
    Output(None, quiet=False).show(command._announce(cast(Execution, execution), tmp_path, resume=True))
    assert capsys.readouterr().out.splitlines() == [
        f"1 case in 1 group into {tmp_path}, 2 cases there already",
        "left out: qwen3_vl eager/tp3 cuda, which needs 3 GPUs",
    ]


def test_a_run_without_the_library_datasets_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "has_datasets", lambda: False)
    written = SimpleNamespace(rows=[], cases=[])
    assert Output(None, quiet=False).show(command._close(cast(RunPart, written), tmp_path)) == ExitCode.HOLDS
    assert "the library `datasets` is not installed" in capsys.readouterr().out.splitlines()[0]
    assert list(tmp_path.iterdir()) == []
