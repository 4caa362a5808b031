"""Steps that are drawn from one call: each input's other values, and histories that shrink to two calls."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch import Tensor

from cases.selftest.play import step_programs as programs
from cases.selftest.play.step_programs import rows
from deepstack_harness import Call, UsageError
from deepstack_harness.play.drawn_steps import example_call, history, judge_pairs, search, settings_of
from deepstack_harness.play.region_calls import StepOptions
from deepstack_harness.play.steps_work import run_steps
from deepstack_harness.workers.child import Channel

OPTIONS = StepOptions(arms=("eager/drop_all",))


def takes_much(
    x: Tensor, mask: Tensor | None, levels: list[Tensor], flag: bool = True, times: int = 2
) -> Tensor:
    """Use every input."""
    out = x * times if flag else x
    for level in levels:
        out = out + level
    return out if mask is None else out + mask


def test_each_input_has_its_other_values() -> None:
    call = Call(rows(4), None, [rows(4, 1)])
    words = {(each.input, each.words) for each in settings_of(takes_much, call)}
    assert words == {
        ("x", "other strides"), ("mask", "a tensor"), ("levels", "empty"), ("levels", "a member more"),
        ("flag", "False"), ("times", "3"), ("rows", "1 rows"), ("rows", "7 rows"),
    }  # fmt: skip


def test_an_attribute_is_changed_between_two_calls_and_back() -> None:
    module, call = programs.Scorer(), Call(rows(4))
    factor = next(each for each in settings_of(module, call) if each.input == "self.factor")
    steps = history(module, call, [[], [factor], []])
    for step in steps:
        if not isinstance(step, Call):
            step(module)
    assert [isinstance(step, Call) for step in steps] == [True, False, True, False, True]
    assert module.factor == 1.0
    assert not [each for each in settings_of(module, call) if "in_features" in each.input]


def test_pairs_find_each_input_that_was_burnt_in() -> None:
    call = Call(rows(4), None, [rows(4, 1)])
    wrong = {
        history.words.partition(":")[0]
        for history in judge_pairs(takes_much, call, OPTIONS, "takes_much")
        if history.judged.broken
    }
    assert wrong == {"mask", "levels", "flag", "times"}


def test_a_longer_history_shrinks_to_two_calls() -> None:
    found = search(programs.by_size, Call(rows(4)), OPTIONS, "by_size", 20)
    assert found is not None
    assert len(found.steps) == 2
    assert [str(finding.promise) for finding in found.judged.broken] == ["I1"]
    assert search(programs.sum_levels, Call(rows(4)), OPTIONS, "sum_levels", 5) is None


def test_a_call_follows_from_annotations() -> None:
    module = programs.Scorer()
    assert repr(example_call(module)) == (
        "Call(x=float32 tensor [4, 8] on cpu, mask=float32 tensor [4, 8] on cpu)"
    )

    def unknown(x: dict[str, Tensor]) -> Tensor:
        return x["a"]

    with pytest.raises(UsageError, match="nothing says what 'x' takes"):
        example_call(unknown)


class _NoChannel(Channel):
    """The phases of a worker, which nobody reads."""

    def __init__(self) -> None:
        pass

    def phase(self, text: str) -> None:
        """Drop it."""


def test_the_program_shows_it_with_torch_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain_score.py").write_text(
        "from torch import Tensor, nn, tensor\n\n"
        "TWICE = nn.Parameter(tensor(2.0))  # an answer that requires a gradient\n"
        "def score(x: Tensor, mask: Tensor | None = None) -> Tensor:\n"
        "    return x * TWICE if mask is None else x * TWICE + mask\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    told = run_steps(_NoChannel(), "plain_score:score", ["eager/drop_all"], 1, 0, 0)
    (script,) = [each.script for each in told if each.words == "mask: None, then as it was"]
    (tmp_path / "show.py").write_text(script)
    ran = subprocess.run(
        [sys.executable, "show.py"], capture_output=True, text=True, timeout=300, check=True, cwd=tmp_path,
        env={"PATH": "/usr/bin"},
    )  # fmt: skip
    assert ran.stderr == ""
    first, second = ran.stdout.splitlines()
    assert "deepstack_harness" not in script
    assert first == "step 1: compiled is 0 from uncompiled"
    assert float(second.split()[4]) > 0.1
