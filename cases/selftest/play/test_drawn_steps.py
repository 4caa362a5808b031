"""Steps that are drawn from one call: each input's other values, and histories that shrink to two calls."""

import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from torch import Tensor

from cases.specimens import programs
from cases.specimens.programs import rows
from deepstack_harness import Call, UsageError, compile_steps
from deepstack_harness.contract.oracles.promises import judge_steps
from deepstack_harness.contract.rules import Promise
from deepstack_harness.contract.steps import SteppedHistory
from deepstack_harness.fuzz.steps import search
from deepstack_harness.play.drawn_steps import (
    example_call,
    history,
    measure_history,
    measure_pairs,
    settings_of,
    undrawn,
)
from deepstack_harness.play.region_calls import StepOptions
from deepstack_harness.play.region_state import Region
from deepstack_harness.play.steps_work import measure_target, write_shown
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
    words = {(setting.input, setting.words) for setting in settings_of(takes_much, call)}
    assert words == {
        ("x", "other strides"), ("mask", "a tensor"), ("levels", "empty"), ("levels", "a member more"),
        ("flag", "False"), ("times", "3"), ("rows", "1 rows"), ("rows", "7 rows"),
    }  # fmt: skip


def test_an_attribute_is_changed_between_two_calls_and_back() -> None:
    module, call = programs.Scorer(), Call(rows(4))
    factor = next(setting for setting in settings_of(module, call) if setting.input == "self.factor")
    steps = history(module, call, [[], [factor], []])
    for step in steps:
        if not isinstance(step, Call):
            step(module)
    assert [isinstance(step, Call) for step in steps] == [True, False, True, False, True]
    assert module.factor == 1.0
    assert not [setting for setting in settings_of(module, call) if "in_features" in setting.input]


def test_pairs_find_each_input_that_was_burnt_in() -> None:
    call = Call(rows(4), None, [rows(4, 1)])
    wrong = {
        history.words.partition(":")[0]
        for history in measure_pairs(takes_much, call, OPTIONS, "takes_much")
        if judge_steps(history.region).broken
    }
    assert wrong == {"mask", "levels", "flag", "times"}


@pytest.mark.slow  # 10 s
def test_a_longer_history_shrinks_to_two_calls() -> None:
    def searched(region: Region, examples: int) -> SteppedHistory | None:
        call = Call(rows(4))
        inputs = [setting.input for setting in settings_of(region, call)]
        return search(inputs, examples, partial(measure_history, region, call, OPTIONS, "drawn"))

    found = searched(programs.by_size, 20)
    assert found is not None
    assert len(found.chosen) == 2
    assert [str(finding.promise) for finding in judge_steps(found.region).broken] == ["I1"]
    assert searched(programs.sum_levels, 5) is None


def test_a_call_follows_from_annotations() -> None:
    module = programs.Scorer()
    assert repr(example_call(module)) == (
        "Call(x=float32 tensor [4, 8] on cpu, mask=float32 tensor [4, 8] on cpu)"
    )

    def unknown(x: dict[str, Tensor]) -> Tensor:
        return x["a"]

    with pytest.raises(UsageError, match="nothing says what 'x: dict"):
        example_call(unknown)


@dataclass
class Meta:
    """What a caller passes along."""

    slots: Tensor
    decode: bool = False


class Opaque:
    """A class that cannot be made from what is known of it."""


def by_meta(x: Tensor, meta: Meta | None = None) -> Tensor:
    """Scale by a field of a dataclass."""
    return x * 2 if meta is None or not meta.decode else x * 3


def of_four_dimensions(x: Tensor, *_rest: Tensor, meta: Meta | None = None) -> Tensor:
    """Take a tensor whose dimensions no annotation states."""
    _, _, _, width = x.shape
    return x * width if meta is None else x


def with_opaque(x: Tensor, cache: Opaque | None = None, mask=None) -> Tensor:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Ignore what no call is drawn for."""
    return x * 2 if cache is None and mask is None else x


def test_a_field_of_a_dataclass_is_an_input() -> None:
    call = example_call(by_meta)
    assert "meta" in call.kwargs
    assert undrawn(by_meta, call) == []
    wrong = {
        history.words
        for history in measure_pairs(by_meta, call, OPTIONS, "by_meta")
        if judge_steps(history.region).broken
    }
    assert "meta: as it was, then decode: True" in wrong


def test_a_call_that_the_code_does_not_take_is_refused_before_anything_is_compiled() -> None:
    with pytest.raises(UsageError, match=r"ends with ValueError: not enough values .*name a function that"):
        example_call(of_four_dimensions)


def test_what_no_annotation_describes_is_named() -> None:
    named = undrawn(with_opaque, example_call(with_opaque))
    assert named == ["cache: cases.selftest.play.test_drawn_steps.Opaque | None", "mask"]


def test_arms_may_be_written_as_one_text() -> None:
    judged = compile_steps(by_meta, [(rows(2),), (rows(3),)], arms="eager/drop_all, eager/stock")
    assert [arm.arm for arm in judged.region.arms] == ["eager/drop_all", "eager/stock"]
    with pytest.raises(UsageError, match="unknown arm 'eager/dropall'"):
        compile_steps(by_meta, [(rows(2),), (rows(3),)], arms="eager/dropall")


class _NoChannel(Channel):
    """The phases of a worker, which nobody reads."""

    def __init__(self) -> None:
        pass

    def phase(self, text: str) -> None:
        """Drop it."""


@pytest.mark.slow  # 6 s; test_steps.py of cli writes one by day
def test_the_program_shows_it_with_only_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain_score.py").write_text(
        "from torch import Tensor, nn, tensor\n\n"
        "TWICE = nn.Parameter(tensor(2.0))  # an answer that requires a gradient\n"
        "def score(x: Tensor, mask: Tensor | None = None) -> Tensor:\n"
        "    return x * TWICE if mask is None else x * TWICE + mask\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    measured = measure_target(_NoChannel(), "plain_score:score", ["eager/drop_all"], 1, drawn=True)
    (chosen,) = [found.chosen for found in measured.histories if found.words == "mask: None, then as it was"]
    script = write_shown(
        _NoChannel(), "plain_score:score", 1, [*map(list, chosen)],
        promise=Promise.SPECIALISATION, arm="eager/drop_all", limit=0.0,
    )  # fmt: skip
    (tmp_path / "show.py").write_text(script)
    ran = subprocess.run(
        [sys.executable, "show.py"], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
        env={"PATH": "/usr/bin"},
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (1, "")
    first, second = ran.stdout.splitlines()
    assert "deepstack_harness" not in script
    assert first == "step 1: compiled is 0 from uncompiled"
    assert float(second.split()[4]) > 0.1
