"""Baselines of kernel facts: what differs is named, files are rewritten whole, wrong ones are refused."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from cases.baselines import (
    BaselineEntry,
    Difference,
    State,
    agreement,
    column_of,
    differences,
    figure_of,
    load,
    made_with,
    name_of,
    path_of,
    update,
)
from cases.test_kernels import hold_against_baseline
from deepstack_harness.compile.kernels import Measurement, Subject
from deepstack_harness.compile.torch_compat.targets import PAIRS
from deepstack_harness.contract.facts import AccessFacts, GraphCall, Kernel, KernelAccess
from deepstack_harness.errors import UsageError

SUBJECT = Subject("qwen3_vl", "pr43617", tokens=77, capacity=8192, profile_tokens=8192, layers=3)
KERNEL = Kernel(
    graph=0, kernel="fused_mean", kind="generated", points=9856, symbolic_points="128*n", reduction=128,
    symbolic_reduction="128", rows=77, symbolic_rows="n", bytes=39680, ideal_bytes=39680, carries_tokens=True,
)  # fmt: skip
CALL = GraphCall(
    0,
    symbolic=True,
    symbols={"n": 77},
    kernels=(KERNEL, replace(KERNEL, points=19712, symbolic_points="256*n")),
)
MEASURED = Measurement(SUBJECT, "qwen3_vl:opaque", (CALL,), 1, "2.13.0+cpu", None, "cpu", 1.0, 1.0, 1)
ENTRY = BaselineEntry.from_measurement(MEASURED)
OTHER = structs.replace(ENTRY, family="granite4_vision", revision="granite_sliced")
NAMES = {ENTRY.name, OTHER.name}


def test_an_entry_has_the_sums_of_a_step_and_its_largest_kernel() -> None:
    assert (ENTRY.graphs, ENTRY.kernels, ENTRY.bytes) == (1, 2, 2 * 39680)
    assert (ENTRY.largest, ENTRY.points) == ("256*n", 19712)
    assert ENTRY.name == name_of(SUBJECT)
    assert ENTRY.name == (
        "qwen3_vl, 3 layers, pr43617, inductor/drop_all/no_size_asserts, bfloat16, "
        "77 of 8192 tokens, traced with 8192"
    )


@pytest.mark.parametrize(
    ("now", "state", "detail"),
    [
        ({"bytes": 79000}, State.IMPROVED, "bytes 79360 -> 79000"),
        ({"kernels": 1, "bytes": 79000}, State.IMPROVED, "kernels 2 -> 1, bytes 79360 -> 79000"),
        ({"points": 128, "largest": "128"}, State.IMPROVED, "points 19712 -> 128, largest 256*n -> 128"),
        ({"bytes": 79361}, State.CHANGED, "bytes 79360 -> 79361"),
        ({"kernels": 1, "bytes": 80000}, State.CHANGED, "kernels 2 -> 1, bytes 79360 -> 80000"),
        ({"largest": "19712"}, State.CHANGED, "largest 256*n -> 19712"),
        ({"graphs": 2}, State.CHANGED, "graphs 1 -> 2"),
        ({"agreement": 0.9}, State.IMPROVED, "agreement None -> 0.9"),
    ],
)
def test_a_fact_that_differs_is_named_with_both_figures(
    now: dict[str, object], state: State, detail: str
) -> None:
    changed = structs.replace(ENTRY, **now)
    assert differences([ENTRY], [changed], NAMES) == [Difference(state, ENTRY.name, detail)]


def test_missing_and_unused_entries_are_named() -> None:
    gone = structs.replace(ENTRY, tokens=5)
    found = differences([gone, ENTRY], [ENTRY, OTHER], NAMES)
    assert [str(difference) for difference in found] == [f"unused: {gone.name}", f"missing: {OTHER.name}"]


def test_what_a_run_leaves_out_is_not_unused() -> None:
    assert differences([ENTRY, OTHER], [ENTRY], NAMES) == []


def write(
    path: Path, entries: Iterable[BaselineEntry], *, column: str = "2.13", only_new: bool = False
) -> None:
    update(path, column, f"torch {column}.0", entries, NAMES, only_new=only_new)


def column(path: Path, name: str = "2.13") -> set[BaselineEntry]:
    return set(load(path).entries(name))


def test_an_update_writes_what_was_measured_and_drops_what_nothing_measures(tmp_path: Path) -> None:
    path, changed = tmp_path / "kernels.json", structs.replace(ENTRY, bytes=1)
    write(path, [ENTRY, structs.replace(ENTRY, tokens=5)])
    write(path, [changed])
    assert column(path) == {changed}
    write(path, [OTHER])
    assert column(path) == {changed, OTHER}
    assert [found.name for found in tmp_path.iterdir()] == ["kernels.json"]


def test_an_update_of_what_is_new_leaves_the_rest(tmp_path: Path) -> None:
    path, gone = tmp_path / "kernels.json", structs.replace(ENTRY, tokens=5)
    write(path, [ENTRY, gone], only_new=True)
    write(path, [structs.replace(ENTRY, bytes=1), OTHER], only_new=True)
    assert column(path) == {ENTRY, gone, OTHER}


def test_columns_are_written_one_by_one_and_ordered_by_torch_with_real_gpus_last(tmp_path: Path) -> None:
    path, gpu = tmp_path / "kernels.json", "2.9 on NVIDIA H200"
    smaller, real = structs.replace(ENTRY, bytes=1), structs.replace(ENTRY, agreement=0.5)
    for name, entries in {gpu: [real], "2.13": [ENTRY, OTHER], "2.9": [smaller]}.items():
        write(path, entries, column=name)
    assert list(load(path).columns) == ["2.9", "2.13", gpu]
    assert load(path).columns["2.13"] == "torch 2.13.0"
    assert (column(path, "2.9"), column(path, gpu)) == ({smaller}, {real})
    assert column(path) == {ENTRY, OTHER}
    assert '"bytes": { "2.9": 1, "2.13": 79360, "2.9 on NVIDIA H200": 79360 }' in path.read_text()
    assert '"agreement": { "2.9 on NVIDIA H200": 0.5 }' in path.read_text()
    write(path, [structs.replace(ENTRY, bytes=2)], column="2.9")
    assert (len(column(path)), column(path, gpu)) == (2, {real})


def test_a_change_of_one_torch_is_a_change_of_one_line(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    for torch in ("2.13", "2.14"):
        write(path, [ENTRY, OTHER], column=torch)
    before = path.read_text().splitlines()
    write(path, [structs.replace(ENTRY, kernels=1)], column="2.14")
    changed = [line for line in path.read_text().splitlines() if line not in before]
    assert [line.strip() for line in changed] == ['"kernels": { "2.13": 2, "2.14": 1 },']


def test_who_reads_meanwhile_reads_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    write(path, [ENTRY])
    before = path.read_text()
    with path.open() as reading:
        write(path, [OTHER])
        assert reading.read() == before


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kernels.json"
    write(path, [ENTRY])

    def full(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write(path, [OTHER])
    assert column(path) == {ENTRY}
    assert [found.name for found in tmp_path.iterdir()] == ["kernels.json"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"schema_version": 2', '"schema_version": 1', "has schema_version 1, this harness reads 2"),
        ("]\n}\n", "", "is not a file of baselines: Input data was truncated"),
        ('"bytes": ', '"octets": ', "unknown field `octets`"),
        ('"bytes": { "2.13": 79360 }', '"bytes": { "2.13": "many" }', "Expected `int`, got `str`"),
        ('"kernels": { "2.13"', '"kernels": { "2.14"', "missing required field"),
        ('"torch 2.13.0"', '"torch 2.13.0", "newest": ""', "Invalid version: 'newest'"),
        ('{ "2.13": "torch 2.13.0" }', "{}", "rows have columns that `columns` lacks: 2.13"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "kernels.json"
    write(path, [ENTRY])
    text = path.read_text()
    path.write_text(text.replace(old, new))
    assert path.read_text() != text
    with pytest.raises(UsageError, match=f"{re.escape(str(path))} .*{re.escape(message)}"):
        load(path)
    with pytest.raises(UsageError, match=re.escape(message)):
        write(path, [OTHER], only_new=True)


def test_a_real_gpu_has_a_column_next_to_the_prediction_for_it() -> None:
    real = replace(MEASURED, subject=replace(SUBJECT, target="cuda"), device="NVIDIA H200", triton="3.7.1")
    assert column_of(MEASURED) == "2.13"
    assert column_of(real) == "2.13 on NVIDIA H200"
    assert (made_with(MEASURED), made_with(real)) == ("torch 2.13.0", "torch 2.13.0, triton 3.7.1")
    names = [
        path_of(*of).name for of in (("cpu", "cpu"), ("cuda", "NVIDIA H200"), ("cuda", "NVIDIA H100 80GB"))
    ]
    assert names == ["kernels-cpu.json", "kernels-h200.json", "kernels-cuda.json"]


PINS = Path(__file__).parents[3] / "constraints.txt"


@pytest.mark.skipif(not PINS.exists(), reason="needs a checkout")
@pytest.mark.parametrize("target", ["cpu", "h200", "h200-executed"])
def test_every_torch_of_ci_has_its_baselines(target: str) -> None:
    """A torch without a column is compared with nothing, and its cases are skipped."""
    pinned = re.findall(r"^torch==(.*)$", PINS.read_text(), re.MULTILINE)
    factors = re.findall(r"torch==(2\.\d+)", (PINS.parent / "tox.ini").read_text())
    minors = {".".join(version.split(".")[:2]) for version in [*pinned, *factors, *PAIRS]}
    known = load(path_of(target, ""))
    assert minors <= known.columns.keys()
    subjects = {row.entry("2.13").name for row in known.rows}
    for minor in known.columns:  # a real GPU measures some of them
        assert " on " in minor or {entry.name for entry in known.entries(minor)} == subjects, minor


def test_an_interpreted_step_has_the_sums_of_what_its_launches_touched() -> None:
    read = KernelAccess(
        "add_0", "payload[0]", 32, 0, 32, argument="in_ptr1", shape=(4, 2), itemsize=4, read=((0, 4),),
        elements_read=8,
    )  # fmt: skip
    wild = replace(read, launch=1, tensor="buffer 0", end=40, wild=((4, 5),))
    measured = Measurement(
        SUBJECT, "qwen3_vl:opaque", (CALL,), 1, "2.13.0", "3.7.1", "NVIDIA H200", 1.0, 1.0, 1,
        AccessFacts((read, wild)), 0.5,
    )  # fmt: skip
    found = BaselineEntry.from_measurement(measured)
    assert (found.launches, found.touched_rows, found.touched_bytes, found.outside_bytes) == (2, 4, 64, 8)
    assert (ENTRY.launches, ENTRY.touched_rows) == (None, None)


def test_a_figure_names_the_kernels_that_were_not_predicted() -> None:
    figure = figure_of(MEASURED, agreement(CALL, CALL))
    assert (figure.value, figure.control, figure.detail) == (2, 2, "nothing moved")
    assert figure.conditions["predicted for"] == "h200"
    figure = figure_of(MEASURED, agreement(replace(CALL, kernels=CALL.kernels[1:]), CALL))
    assert (figure.value, figure.control, figure.detail) == (1, 2, "moved: nothing -> fused_mean")
    more = figure_of(MEASURED, agreement(CALL, replace(CALL, kernels=CALL.kernels[:1])))
    assert more.detail == "moved: fused_mean -> nothing"


def test_a_torch_without_a_column_is_reported_as_not_compared(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request.config.option, "deepstack_update_baselines", None)
    said = r"not compared: no baseline for torch 9.9; write it with python -m pytest -m '' .*-baselines=all"
    with pytest.raises(pytest.skip.Exception, match=said):
        hold_against_baseline(request, "cpu", replace(MEASURED, torch="9.9.0"), [ENTRY])
    with pytest.raises(
        AssertionError, match=r"missing: qwen3_vl, 3 layers(.|\n)*where this is right: python -m"
    ):
        hold_against_baseline(request, "cpu", MEASURED, [structs.replace(ENTRY, tokens=5)])
