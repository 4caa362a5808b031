"""The list of untested lines: made from real counts, in the parent, in a child process and in a worker."""

import ast
import json
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import deepstack_harness
from deepstack_harness.errors import UsageError
from tools.untested import (
    JUSTIFIED,
    Justification,
    commands,
    lines_by_test,
    main,
    needless,
    settings,
    untested,
)

PACKAGE = Path(deepstack_harness.__file__).parent
ROOT = PACKAGE.parents[1]
ENTRIES = ROOT / "cases" / "selftest" / "untested.toml"
NEEDS_COVERAGE = pytest.mark.skipif(find_spec("coverage") is None, reason="coverage is not installed")


def file(percent: float, **missing: Sequence[int]) -> Mapping[str, Any]:
    """A file as in the output of `coverage json`; `module` is its own code."""
    functions_of_file = {
        ("" if name == "module" else name): {"missing_lines": list(lines)} for name, lines in missing.items()
    }
    return {"functions": functions_of_file, "summary": {"percent_covered": percent}}


REPORT = {
    "files": {
        "/p/a.py": file(90.0, module=[3]),
        "/p/whole.py": file(100.0, module=[]),
        "/p/b/c.py": file(49.6, f=[9, 7, 8], g=[], **{"C.m": [12]}),
    }
}
ALL = ["b/c.py: 50 % ran, not 7-9, 12", "a.py: 90 % ran, not 3"]


def test_lines_are_listed_by_file_the_worst_first() -> None:
    assert untested(REPORT, (), Path("/p")) == (ALL, [])


GPU = Justification(("b/*.py",), "needs a GPU", ("cases/test_gpu.py",))


@pytest.mark.parametrize(
    ("changes", "lines", "stale"),
    [
        ({}, ALL[1:], []),
        ({"functions": ("C.*", "f")}, ALL[1:], []),
        ({"functions": ("f",)}, [ALL[1], "b/c.py: 50 % ran, not 12"], []),
        ({"files": ("none.py",)}, ALL, ["none.py: no such file; correct its entry"]),
        ({"files": ("none.py",), "functions": ("f",)}, ALL, ["none.py: no such file; correct its entry"]),
        (
            {"files": ("[aw]*.py",)},
            ALL[:1],
            ["whole.py: every line ran; remove it from its entry (needs a GPU)"],
        ),
        ({"files": ("[aw]*.py",), "machine": "a GPU"}, ALL[:1], []),
        (
            {"functions": ("f", "g", "h")},
            [ALL[1], "b/c.py: 50 % ran, not 12"],
            [
                "b/*.py: every line of 'g' ran; remove it from its entry (needs a GPU)",
                "b/*.py: no function 'h'; correct its entry",
            ],
        ),
        (
            {"functions": ("f", "g", "h"), "machine": "a GPU"},
            [ALL[1], "b/c.py: 50 % ran, not 12"],
            ["b/*.py: no function 'h'; correct its entry"],
        ),
    ],
)
def test_justified_lines_are_left_out_and_an_outdated_entry_is_reported(
    changes: dict[str, Any], lines: list[str], stale: list[str]
) -> None:
    lines_left, obsolete = untested(REPORT, [replace(GPU, **changes)], Path("/p"))
    assert (sorted(lines_left), obsolete) == (sorted(lines), stale)


def functions(path: Path) -> set[str]:
    """Qualified names of a file's functions, as coverage names them; "" is the module."""

    def names(node: ast.AST, prefix: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    yield name
                yield from names(child, f"{name}.")
            else:
                yield from names(child, prefix)

    return {"", *names(ast.parse(path.read_text()), "")}


def test_each_justification_names_code_and_a_runner_that_exist() -> None:
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    for entry in JUSTIFIED.read(ENTRIES):
        assert len(entry.reason) > 20
        assert entry.runs_in
        assert [item for item in entry.runs_in if not (ROOT / item).exists()] == []
        files = [[path for path in paths if fnmatchcase(path, pattern)] for pattern in entry.files]
        assert all(files), entry
        known = set[str]().union(*(functions(paths[path]) for item in files for path in item))
        absent = [
            name for name in entry.functions if not any(fnmatchcase(function, name) for function in known)
        ]
        assert absent == [], entry


def test_a_justification_with_a_misspelt_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(
        'schema_version = 1\n[[justified]]\nfiles = ["a.py"]\nreason = "r"\nruns_in = []\nfunction = ["f"]\n'
    )
    with pytest.raises(UsageError, match=r"one.toml .* unknown field `function` - at `\$.justified\[0\]`"):
        JUSTIFIED.read(tmp_path / "one.toml")


def test_the_data_of_all_processes_lies_apart_from_the_settings(tmp_path: Path) -> None:
    run, combine, _ = commands(tmp_path, ["cases"])
    assert run[:4] == [sys.executable, "-m", "coverage", "run"]
    assert combine[-1] == f"{tmp_path}/counted"  # coverage takes coverage.ini for data
    text = settings(tmp_path)
    assert f"data_file = {tmp_path}/counted/" in text
    assert "    subprocess\n" in text


@pytest.mark.parametrize(("words", "code"), [([], 2), (["--help"], 0)])
def test_without_a_folder_nothing_runs(
    words: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["untested", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "tools" / "untested.py"), run_name="__main__")
    printed = capsys.readouterr()
    assert ended.value.code == code
    assert "usage: python -m tools.untested" in printed.out + printed.err


PROBE = """\
import subprocess, sys
from deepstack_harness.cli.doctor import sandbox_found
def test_a():
    code = 'from deepstack_harness.catalogue.workload import pad_to_capture; pad_to_capture(5)'
    subprocess.run([sys.executable, '-c', code], check=True)
    assert 'deepstack_harness.catalogue.workload' not in sys.modules
    sandbox_found()
"""


@pytest.mark.slow  # 12 s
@NEEDS_COVERAGE
def test_a_child_process_and_a_worker_are_measured_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_probe.py").write_text(PROBE)
    assert main([str(tmp_path / "out"), str(tmp_path / "test_probe.py"), "--by-test"]) == 0
    output = capfd.readouterr()
    assert "% of the lines ran" in output.out
    assert "CoverageWarning" not in output.err
    seen = json.loads((tmp_path / "out" / "coverage.json").read_text())["files"]
    (padding,) = (item for name, item in seen.items() if name.endswith("catalogue/workload.py"))
    assert padding["executed_lines"], "the child counted nothing"
    (check,) = (item for name, item in seen.items() if name.endswith("cli/doctor.py"))
    assert check["functions"]["leave"]["executed_lines"], "the worker's count was lost"
    assert not any(name.endswith("tools/count_workers.py") for name in seen), "a worker counts the plugin"
    (package,) = (item for name, item in seen.items() if name.endswith("deepstack_harness/__init__.py"))
    assert not package["functions"][""]["missing_lines"], "it was imported before lines were counted"
    lines = (tmp_path / "out" / "untested.txt").read_text().splitlines()
    assert any(line.startswith("runs/nights.py: ") for line in lines)
    by_test = lines_by_test(tmp_path / "out/counted/lines")
    (of_test,) = (ran for test, ran in by_test.items() if test.endswith("::test_a"))
    assert of_test >= {
        (str(PACKAGE / "catalogue/workload.py"), padding["functions"]["pad_to_capture"]["executed_lines"][0]),
        (str(PACKAGE / "cli/doctor.py"), check["functions"]["leave"]["executed_lines"][0]),
    }
    assert (tmp_path / "out" / "needless.txt").read_text() == ""  # no other test runs its lines


def test_tests_that_are_needless_together_are_named_the_dearest_first() -> None:
    a, b, c = ("a.py", 1), ("b.py", 2), ("c.py", 3)
    lines = {"": {a}, "cheap": {b}, "one": {a, b}, "two": {b, c}, "three": {c}, "six": {c}}
    seconds = {"cheap": 0.1, "one": 1.0, "two": 2.0, "three": 3.0, "six": 6.0}
    assert needless(lines, seconds) == ["six", "three", "one"]
