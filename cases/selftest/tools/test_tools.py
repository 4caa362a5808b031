"""Tools of a checkout: figures of `bench`, the files of a command, and definitions that nothing uses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tools import bench
from tools import unused as tool
from tools.bench import BenchFigure, main, read_earlier, sentence
from tools.call_path import measure

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


def test_a_figure_is_shown_with_its_limit_and_the_median() -> None:
    text = sentence(figure(HELP, 1.25), [])
    assert text == "'--help': 1.25 times, at most 1.50 (0.30 s, 'import torch' 0.20 s)"
    assert sentence(figure(HELP, 1.25), [1.0, 4.0, 2.0]) == f"{text}; median of 3 earlier 2.00"
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
    assert [(constant.name, constant.value) for constant in compiled] == [
        ("fuzzing eager/drop_all", 2.0), ("fuzzing inductor/drop_all", 2.0),
    ]  # fmt: skip


ROOT = Path(__file__).parents[3]
TOOL = """
import json, sys
sys.path[:0] = sys.argv[1:3]
from tools.call_path import measure
seen = measure(sys.argv[3:])
print(json.dumps([seen.frames, seen.files, seen.exit_code]))
"""


def measured(*words: str) -> subprocess.CompletedProcess[str]:
    """Measure in a process of its own: a decoder that was compiled before would run without its frames."""
    command = [sys.executable, "-c", TOOL, str(ROOT / "harness"), str(ROOT), *words, "--quiet"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)


@pytest.mark.slow  # 30 s: a profile function is called for every function of torch as well
def test_it_measures_the_way_of_a_command_to_torch_compile() -> None:
    done = measured("repro", "43602", "--arm", "eager/drop_all")
    assert done.returncode == 0, done.stderr
    frames, files, code = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    assert (frames[0], frames[-1]) == ("cli/main.py:main", "compile/compiled.py:CompiledSession.__init__")
    assert "cli/repro.py:run" in frames
    assert 4 < len(frames) <= 10, frames  # a deeper path needs a reason
    assert {"play/player.py", "contract/oracles/outputs.py", "cli/repro_table.py"} <= set(files)
    # A module that is only imported does not count, and no other command's options are made.
    assert "contract/oracles/neighbours.py" not in files
    assert {name for name in files if name.startswith("cli/")} == {
        "cli/main.py", "cli/output.py", "cli/arguments.py", "cli/repro.py", "cli/repro_table.py",
    }  # fmt: skip


def test_a_command_that_compiles_nothing_has_no_path(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="ended with 0 and never called torch.compile"):
        measure(["list", "rules"])
    assert "R1" in capsys.readouterr().out


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty package that `unused` reads instead of ours."""
    package = tmp_path / "harness" / "deepstack_harness"
    package.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "PACKAGE", package)
    return package


def test_a_dead_function_and_a_dead_file_are_found(package: Path) -> None:
    (package / "cli.py").write_text(
        '"""Runs, as never_called does not."""\n'
        "from deepstack_harness import kept\n"
        "kept.of_module()\n"
        "TABLE = {'x': 'deepstack_harness.kept:ByName'}\n"
    )
    (package / "kept.py").write_text(
        "def of_module():\n    return 1\nclass ByName:\n    def never_called(self):\n        '''ByName.'''\n"
    )
    (package / "alone.py").write_text("VALUE = 1\n")
    (package / "models").mkdir()
    (package / "models" / "kept.py").write_text(
        "class OldBuffer:\n    pass\nclass Caller:\n    faulty = True\nclass Nobody:\n    fault = 1\n"
    )
    (package / "__main__.py").write_text("from deepstack_harness.cli.main import main as cli\n")
    assert tool.unused() == [
        "alone.py VALUE", "alone.py", "cli.py TABLE", "kept.py never_called", "models/kept.py Nobody",
    ]  # fmt: skip


def of_module(package: Path, text: str, other: str = "") -> list[str]:
    """Return what nothing uses where `other` is the code of a module that imports the module `rows`."""
    (package / "rows.py").write_text(text)
    (package / "calls.py").write_text(f"from deepstack_harness import calls, rows\n{other}")
    return tool.unused()


@pytest.mark.parametrize(
    ("text", "dead"),
    [
        ("def _plain(): ...", ["_plain"]),
        ("def _plain(n): return _plain(n - 1)", ["_plain"]),  # its own call is no use
        ("class _Plain:\n    other: '_Plain'", ["_Plain"]),
        ("_VIEWS = {'view'}", ["_VIEWS"]),
        ("_VIEWS: set[str] = set()", ["_VIEWS"]),
        ("_FIRST, (_SECOND, *_) = 1, (2, 3)\nprint(_FIRST)", ["_SECOND"]),
        ("VIEWS = {'view'}", ["VIEWS"]),
        ("def views(): ...\n__all__ = ['views']", ["views"]),
        ("def views(): ...\n__all__: list[str] = []\n__all__ += ['views']", ["views"]),
        ("class Views:\n    def _view(self): ...\nprint(Views)", ["_view"]),
        ("def _plain(): ...\nprint(_plain())", []),
        ("_VIEWS = {'view'}\ndef views(): return _VIEWS\nprint(views)", []),
        ("def _plain(): ...\nWORK = 'deepstack_harness.rows:_plain'\nprint(WORK)", []),
        ("__version__ = '1'\ndef __getattr__(name): ...", []),
        ("import op\n@op.register_fake\ndef _fake(): ...\n@op.impl\ndef _(): ...\n_, _ = 0, 1", []),
    ],
)
def test_names_that_only_their_definition_or_all_has_are_dead(
    text: str, dead: list[str], package: Path
) -> None:
    assert of_module(package, text) == [f"rows.py {name}" for name in dead]


@pytest.mark.parametrize(
    ("other", "is_dead"),
    [
        ("def _plain(): ...\nprint(_plain())", True),  # a name of its own
        ("print(calls._plain)", True),
        ("'It does what rows:_plain does.'", True),
        ("from deepstack_harness.rows import _plain", False),
        ("print(rows._plain())", False),
        ("print('deepstack_harness.rows:_plain')", False),
    ],
)
def test_a_private_name_is_used_where_another_file_names_it_with_its_module(
    *, other: str, is_dead: bool, package: Path
) -> None:
    assert of_module(package, "def _plain(): ...", other) == ["rows.py _plain"] * is_dead
