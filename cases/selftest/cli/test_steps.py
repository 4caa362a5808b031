"""`steps MODULE:NAME`, as somebody uses it who has never heard of deepstack."""

import json
from pathlib import Path

import pytest

from cases.by_day import by_day
from cases.selftest.row_columns import filled_columns, stated_columns
from deepstack_harness.cli.main import main
from deepstack_harness.errors import ExitCode
from deepstack_harness.play.written_programs import run_script, why_not_shown
from deepstack_harness.workers.child import Channel

MINE = """
import torch
from deepstack_harness import Call

def score(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    return x * 2 if mask is None else x * 2 + mask

def late_mask():
    x = torch.randn(4, 8)
    return score, [Call(x), Call(x, mask=torch.ones(4, 8))]

def zeros():
    x = torch.randn(4, 8)
    return score, [Call(x, mask=torch.zeros(4, 8)), Call(x, mask=torch.ones(4, 8))]

def alike():
    x = torch.ones(4, 8)
    return score, [Call(x), Call(x)]

def stage(x: torch.Tensor, level: torch.Tensor, stages: int = 1) -> torch.Tensor:
    return x + level if stages == 1 else x * 1

def in_stages():
    x = torch.randn(4, 8)
    return stage, [(x, x), (x, x + 1)], {"split": lambda x, level: [(x, level, 2)]}

class Scales(torch.nn.Module):
    factor = 1.0

    def forward(self, x):
        return x * self.factor

def double(region):
    region.factor = 2.0

def by_function():
    x = torch.randn(4, 8)
    return Scales(), [Call(x), double, Call(x)]

def replayed():
    return score, [Call(torch.randn(4, 8)), Call(torch.randn(4, 8))]

def cross(x, memory):
    return x @ memory.T @ memory

def alias():
    x = torch.randn(4, 8)
    return cross, [(x, x), (x, torch.randn(4, 8))]

def mean(x, count):
    return x.mean(0) * 2

def padded():
    return mean, [(torch.randn(6, 8), 3)] * 2, {"neutral": lambda x, count: [x[count:]]}

def misspelt():
    return score, [{"x": torch.randn(4, 8)}, {"x": torch.randn(4, 8), "msak": torch.randn(4, 8)}]

def asks_too_much():
    return stage, [(1, 2), (1, 2)], {"neutrals": None}

NUMBER = 3
"""


class _NoChannel(Channel):
    """The phases of a worker, which nobody reads."""

    def __init__(self) -> None:
        pass

    def phase(self, text: str) -> None:
        """Drop it."""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_steps.py").write_text(MINE)
    (tmp_path / "json.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_late_argument_is_named_with_the_guard(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["steps", "my_steps:late_mask", "--json", "rows.jsonl", "--script", "show.py"]
    assert main(words) == ExitCode.BROKEN
    shown = capsys.readouterr().out
    assert "I1 specialisation broken under eager/drop_all, aot_eager/drop_all" in shown
    assert "`mask` was None in the warm-up and is float32 tensor [4, 8] on cpu now" in shown
    assert "the dropped guard L['mask'] is None" in shown
    assert "deepstack" not in shown
    rows = [json.loads(line) for line in (mine / "rows.jsonl").read_text().splitlines()]
    broken = [row for row in rows if row["verdict"] == "FAIL"]
    assert [(row["promise"], row["arm"], row["steps"]) for row in broken] == [
        ("I1", "eager/drop_all", [2]), ("I1", "aot_eager/drop_all", [2]),
    ]  # fmt: skip
    assert [row["rule"] for row in rows] == [row["promise"] for row in rows]
    assert filled_columns(rows) == stated_columns("steps") - {"incident"}  # which `repro` has
    assert "from my_steps import late_mask" in (mine / "show.py").read_text()


@pytest.mark.parametrize(
    ("name", "arm", "line"),
    by_day(
        [
            ("by_function", "eager/drop_all", "step 2: compiled is "),
            ("replayed", "eager/full", "step 2: replayed is "),
            ("alias", "eager/drop_all", "step 2: compiled is "),
            ("padded", "eager/drop_all", "step 2: other neutral rows change the answer by "),
            ("in_stages", "eager/drop_all", "step 2: the answers of its parts are "),
        ],
        lambda row: row[1],
    ),
)
def test_a_written_program_was_seen_to_show_the_finding(
    name: str, arm: str, line: str, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["steps", f"my_steps:{name}", "--arm", arm, "--script", "show.py"]
    assert main(words) == ExitCode.BROKEN
    assert "written: show.py, a program that shows it" in capsys.readouterr().out
    code, last_line = run_script(_NoChannel(), (mine / "show.py").read_text())
    assert code == 1
    assert last_line.startswith(line)
    assert float(last_line.removeprefix(line).split()[0]) > 0.01


def test_a_program_that_does_not_show_it_is_not_written(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert why_not_shown("print('step 1: nothing')") == "it ends with step 1: nothing"
    assert why_not_shown("raise ValueError('no')") == "it ends with ValueError: no"
    monkeypatch.setattr("deepstack_harness.play.written_programs.why_not_shown", lambda _: "it ends with 0")
    words = ["steps", "my_steps:late_mask", "--arm", "eager/drop_all", "--script", "show.py"]
    assert main(words) == ExitCode.BROKEN
    assert "not written: show.py: no program that needs only torch shows it: it ends with 0" in (
        capsys.readouterr().out
    )
    assert not (mine / "show.py").exists()


def test_the_right_twin_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["steps", "my_steps:zeros", "--arm", "eager/drop_all"]) == ExitCode.HOLDS
    assert "keeps what it promises of its inputs (1 chance)" in capsys.readouterr().out


def test_steps_that_show_nothing_are_not_green(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["steps", "my_steps:alike", "--arm", "eager/drop_all"]) == ExitCode.BROKEN
    assert "my_steps:alike: nothing was put to the test" in capsys.readouterr().out


@pytest.mark.slow  # 2 s
def test_a_third_member_gives_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["steps", "my_steps:in_stages", "--arm", "eager/drop_all"]) == ExitCode.BROKEN
    assert "I5 ownership broken under eager, eager/drop_all (and 1 later step)" in capsys.readouterr().out


@pytest.mark.slow  # 2 s
def test_steps_of_a_function_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["steps", "my_steps:score", "--arm", "eager/drop_all"]) == ExitCode.BROKEN
    shown = capsys.readouterr().out
    assert "mask: None, then as it was" in shown
    assert "histories drawn, 2 of them broken" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["my_steps"], "'my_steps' is not MODULE:NAME, as in my_package.model:step"),
        (["my_steps:nothing"], "module 'my_steps' has no 'nothing'"),
        (["my_steps:NUMBER"], "has no class or function, but another object, 'NUMBER'"),
        (["no_such_module:f"], "module 'no_such_module' cannot be imported"),
        (["my_steps.py:nothing"], "module 'my_steps.py' has no 'nothing'"),
        (["yours.py:nothing"], "there is no file 'yours.py'"),
        (["json.py:loads"], "'json.py' has the name of another module, 'json': rename the file"),
        (["my_steps:asks_too_much"], "'neutrals' is no keyword of compile_steps: give neutral, live, split"),
        (["my_steps:misspelt"], "step 2: unknown argument 'msak'; did you mean 'mask'?"),
        (["my_steps:zeros", "--arm", "eager/nothing"], "unknown arm 'eager/nothing'"),
        (["my_steps:zeros", "--warm-up", "0"], "--warm-up 0 --examples 0: at least 1, and at least 0"),
        (["my_steps:zeros", "--warm-up", "2"], "2 calls with warm_up=2 leave none to judge"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["steps", *words]) == ExitCode.USAGE
    assert message in capsys.readouterr().err
