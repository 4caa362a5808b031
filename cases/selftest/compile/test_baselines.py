"""Baselines of kernel facts: what differs is named, files are rewritten whole, wrong ones are refused."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from cases.baselines import BaselineEntry, Difference, State, differences, file_name, load, name_of, update
from deepstack_harness.compile.kernels import Measurement, Subject
from deepstack_harness.contract.facts import AccessFacts, GraphCall, Kernel, KernelAccess
from deepstack_harness.errors import UsageError
from deepstack_harness.files import data

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
ENTRY = BaselineEntry.of(
    Measurement(SUBJECT, "qwen3_vl:opaque", (CALL,), 1, "2.13.0+cpu", None, "cpu", 1.0, 1.0, 1)
)
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
    assert [str(one) for one in found] == [f"unused: {gone.name}", f"missing: {OTHER.name}"]


def test_what_a_run_leaves_out_is_not_unused() -> None:
    assert differences([ENTRY, OTHER], [ENTRY], NAMES) == []


def test_an_update_writes_what_was_measured_and_drops_what_nothing_measures(tmp_path: Path) -> None:
    path, changed = tmp_path / "kernels.json", structs.replace(ENTRY, bytes=1)
    update(path, [ENTRY, structs.replace(ENTRY, tokens=5)], {*NAMES, "x"}, only_new=False)
    update(path, [changed], NAMES, only_new=False)
    assert load(path) == (changed,)
    update(path, [OTHER], NAMES, only_new=False)
    assert set(load(path)) == {changed, OTHER}
    assert [found.name for found in tmp_path.iterdir()] == ["kernels.json"]


def test_an_update_of_what_is_new_leaves_the_rest(tmp_path: Path) -> None:
    path, gone = tmp_path / "kernels.json", structs.replace(ENTRY, tokens=5)
    update(path, [ENTRY, gone], {ENTRY.name, gone.name}, only_new=True)
    update(path, [structs.replace(ENTRY, bytes=1), OTHER], NAMES, only_new=True)
    assert set(load(path)) == {ENTRY, gone, OTHER}


def test_who_reads_meanwhile_reads_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    update(path, [ENTRY], NAMES, only_new=False)
    before = path.read_text()
    with path.open() as reading:
        update(path, [OTHER], NAMES, only_new=False)
        assert reading.read() == before


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kernels.json"
    update(path, [ENTRY], NAMES, only_new=False)

    def full(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        update(path, [OTHER], NAMES, only_new=False)
    assert load(path) == (ENTRY,)
    assert [found.name for found in tmp_path.iterdir()] == ["kernels.json"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"schema_version": 1', '"schema_version": 2', "has schema_version 2, this harness reads 1"),
        ("]\n}\n", "", "is not a file of baselines: Input data was truncated"),
        ('"bytes": ', '"octets": ', "unknown field `octets` - at `$.entry[0]`"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "kernels.json"
    update(path, [ENTRY], NAMES, only_new=False)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UsageError, match=f"{re.escape(str(path))} .*{re.escape(said)}"):
        load(path)
    with pytest.raises(UsageError, match=re.escape(said)):
        update(path, [OTHER], NAMES, only_new=True)


def test_files_are_named_by_target_and_torch_minor_and_a_gpus_by_device() -> None:
    assert file_name("h200", "NVIDIA H200", "2.13.0+cpu") == "kernels-h200-torch2.13.json"
    assert file_name("cuda", "NVIDIA H200", "2.13.0") == "kernels-cuda-nvidia-h200-torch2.13.json"


PINS = Path(__file__).parents[3] / "constraints.txt"


@pytest.mark.skipif(not PINS.exists(), reason="needs a checkout")
def test_the_torch_of_ci_has_its_baselines() -> None:
    (torch,) = re.findall(r"^torch==(.*)$", PINS.read_text(), re.MULTILINE)
    for target in ("cpu", "h200"):
        assert load(data("fixtures/baselines") / file_name(target, "", torch))


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
    found = BaselineEntry.of(measured)
    assert (found.launches, found.touched_rows, found.touched_bytes, found.outside_bytes) == (2, 4, 64, 8)
    assert (ENTRY.launches, ENTRY.touched_rows) == (None, None)
