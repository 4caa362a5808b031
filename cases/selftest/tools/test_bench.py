"""Figures of `bench` are kept by nights, and printed beside the median of earlier ones."""

from pathlib import Path

import msgspec
import pytest

from tools import bench
from tools.bench import BenchFigure, main, read_earlier, sentence

HELP, RATE = "'--help'", "fuzzing a buffer alone"


def figure(name: str, value: float, unit: str = "times") -> BenchFigure:
    return BenchFigure(name, value, 1.5, unit, "0.30 s, 'import torch' 0.20 s")


def night(history: Path, name: str, *lines: bytes) -> Path:
    (history / name).mkdir()
    (history / name / "bench.jsonl").write_bytes(b"\n".join(lines))
    return history / name / "bench.jsonl"


def test_figures_of_earlier_nights_are_read_and_a_torn_line_is_skipped(tmp_path: Path) -> None:
    night(tmp_path, "1", msgspec.json.encode(figure(HELP, 1.0)), msgspec.json.encode(figure(RATE, 9.0)))
    night(tmp_path, "2", msgspec.json.encode(figure(HELP, 4.0)), b'{"name": "fuzz')
    own = night(tmp_path, "3", msgspec.json.encode(figure(HELP, 100.0)))
    assert read_earlier(tmp_path, own) == {HELP: [1.0, 4.0], RATE: [9.0]}
    assert read_earlier(tmp_path / "none", own) == {}


def test_a_figure_is_told_with_its_limit_and_the_median() -> None:
    told = sentence(figure(HELP, 1.25), [])
    assert told == "'--help': 1.25 times, at most 1.50 (0.30 s, 'import torch' 0.20 s)"
    assert sentence(figure(HELP, 1.25), [1.0, 4.0, 2.0]) == f"{told}; median of 3 earlier 2.00"
    assert "9.00 steps/s, at least 1.50" in sentence(figure(RATE, 9, "steps/s"), [])


def test_what_was_measured_is_written_and_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    night(tmp_path, "1", msgspec.json.encode(figure(HELP, 1.0)))
    (tmp_path / "2").mkdir()
    measured = [figure(HELP, 3.0), figure(RATE, 8.0)]
    monkeypatch.setattr(bench, "measure", lambda _: iter(measured))
    assert main(["--json", str(tmp_path / "2" / "bench.jsonl"), "--history", str(tmp_path)]) == 0
    written = (tmp_path / "2" / "bench.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=BenchFigure) for line in written] == measured
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("median of 1 earlier 1.00")
    assert "earlier" not in second


@pytest.mark.parametrize("full", [False, True])
def test_the_bare_child_compiles_and_measures_nothing(*, full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[bool] = []
    monkeypatch.setattr(bench, "compile_bare", lambda *, full: compiled.append(full))
    monkeypatch.setattr(bench, "measure", lambda _: pytest.fail("it measured"))
    assert main(["--bare", *(["--full"] if full else [])]) == 0
    assert compiled == [full]


@pytest.mark.slow  # 11 s
def test_the_rate_of_a_hunt_and_its_cost_are_really_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "beside_bare_loop", lambda _: (10.0, 2.0))
    alone, *compiled = bench.fuzzing()
    assert (alone.name, alone.unit) == (RATE, "steps/s")
    assert alone.value > 0
    assert [(each.name, each.value) for each in compiled] == [
        ("fuzzing eager/drop_all", 2.0), ("fuzzing inductor/drop_all", 2.0),
    ]  # fmt: skip
