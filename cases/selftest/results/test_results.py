"""A run's folder: what is written is read back, a killed run goes on, damaged files are refused by name."""

from pathlib import Path

import pandas as pd
import pytest

from cases.selftest.results.written_results import about, case, row, write
from deepstack_harness.errors import MachineError, UsageError
from deepstack_harness.results import read_run
from deepstack_harness.results.files import Files, Shard
from deepstack_harness.results.history import of_dataset, read_history
from deepstack_harness.results.parquet import write_parquet
from deepstack_harness.results.read import read_part, read_stored
from deepstack_harness.results.write import RunWriter

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
        "old": [line.replace('"schema_version":2', '"schema_version":1') for line in lines],
        "new": [line.replace('"schema_version":2', '"schema_version":3') for line in lines],
        "foreign": ['{"hello": "world"}\n'],
        "other fields": ['{"schema_version":2, "hello": "world"}\n'],
        "list": ["[1]\n"],
    }
    path.write_text("".join(changed[how]))


@pytest.mark.parametrize("name", ["rows.jsonl", "cases.jsonl"])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("corrupt", "line 1 of"), ("binary", "line 1 of"), ("torn", "middle of a line"), ("cut", "has"),
        ("twice", "has"), ("old", "schema_version 1, this harness reads 2"), ("new", "schema_version 3"),
        ("foreign", "not what a run writes"), ("other fields", "not what a run writes"),
        ("list", "line 1 of"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_by_name(folder: Path, name: str, how: str, said: str) -> None:
    damaged(folder / name, how)
    before = contents(folder)
    with pytest.raises(UsageError) as error:
        read_run(folder)
    assert name in str(error.value)
    assert said in str(error.value)
    with pytest.raises(UsageError, match=name.replace(".", r"\.")):
        RunWriter(Files(folder), about(2), resume=True)
    assert contents(folder) == before


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema_version": 1}', '{"schema_version": 2}'])
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


def test_a_disk_that_is_full_is_said_with_what_to_do(tmp_path: Path) -> None:
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
    """As a dataset on the hub would: runs in folders, told apart by their start."""
    starts = ["2026-01-01T00:00:00.000+00:00", "2026-01-02T00:00:00.000+00:00"]
    for number, started in enumerate(starts):
        folder = write(tmp_path / "data" / str(number), GOOD, started=started)
        write_parquet(read_part(Files(folder)))
        frame = pd.read_parquet(folder / "rows.parquet")
        assert list(frame["verdict"]) == list(read_run(folder).rows["verdict"])
        assert set(frame["run"]) == {started}
    runs = list(of_dataset(str(tmp_path / "data")))
    assert [run.started for run in runs] == starts
    for run in runs:
        ours = read_stored(tmp_path / "data" / "0")
        assert (run.rows, run.cases) == (ours.rows, ours.cases)


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
