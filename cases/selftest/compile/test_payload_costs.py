"""What a payload costs a step: timed on the CPU by the code that times it on a GPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from deepstack_harness.cli.main import main
from deepstack_harness.compile import payload_costs, payload_steps
from deepstack_harness.compile.payload_costs import (
    LAYERS,
    LIST,
    PAYLOAD,
    TENSOR,
    TENSOR_AGAINST_LIST,
    PayloadWork,
    TimedPayload,
    extra_of_model,
    measure_payload_costs,
    payload_work,
)
from deepstack_harness.compile.payload_steps import time_payload
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.facts import Measured
from deepstack_harness.errors import ExitCode, NotMeasured
from deepstack_harness.models.family import tiny_family_named

pytestmark = pytest.mark.xdist_group("eager")
WORK = PayloadWork("tiny", "none", "cpu", (1,), 2)


@pytest.mark.slow  # 6 s, of a decoder of Dynamo's; the tests below time uncompiled ones
def test_each_mode_step_and_form_is_timed_against_a_step_without_a_payload() -> None:
    rows = time_payload(PayloadWork("tiny", "eager", "cpu", (1, 4), 2))
    places = [
        (row.conditions["tokens"], row.conditions["arm"], row.conditions["step"], row.conditions["form"])
        for row in rows
        if row.measure == PAYLOAD
    ]
    assert len(places) == len(set(places)) == 2 * 4 * 2 * 2
    arms = {ArmSpec.parse(str(row.conditions["arm"])).capture for row in rows}
    assert {str(arm) for arm in arms} == {"none", "full", "piecewise", "breakable"}
    against = [row for row in rows if row.measure == TENSOR_AGAINST_LIST]
    assert len(against) == 2 * 4 * 2
    for row in rows:
        assert row.unit == "us"
        assert row.value > 0
        assert (row.control or 0) > 0
        assert row.conditions["clock"] == "torch.utils.benchmark"
        assert (row.conditions["samples"], row.conditions["device"]) == (2, "cpu")


def test_the_control_of_a_tensor_is_the_list_of_the_same_step() -> None:
    rows = time_payload(WORK)
    for as_list, as_tensor, against in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert [row.conditions["form"] for row in (as_list, as_tensor, against)] == [LIST, TENSOR, TENSOR]
        same = {name: value for name, value in as_list.conditions.items() if name != "form"}
        assert all(same.items() <= row.conditions.items() for row in (as_tensor, against))
        assert (against.value, against.control) == (as_tensor.value, as_list.value)
        assert as_list.control == as_tensor.control


class _Forgets(payload_steps._OneTensor):
    """A buffer that never takes the payload."""

    def set(self, payload: Tensor) -> None:
        pass


class _Keeps(payload_steps._OneTensor):
    """A buffer that clears nothing."""

    def clear(self, tokens: int) -> None:
        pass


class _SwapsLevels(payload_steps._OneTensor):
    """A buffer whose levels are in another order."""

    def set(self, payload: Tensor) -> None:
        super().set(payload.flip(0))


class _Poisons(payload_steps._OneTensor):
    def set(self, payload: Tensor) -> None:
        super().set(torch.full_like(payload, torch.nan))


@pytest.mark.parametrize(
    ("buffer", "sentence"),
    [
        (_Forgets, "the payload as a tensor does not show in the output"),
        (_Keeps, "a cleared payload as a tensor shows in the output"),
        (_SwapsLevels, "a list and one tensor of the same payload give other outputs"),
        (_Poisons, "an output is not finite"),
    ],
)
def test_nothing_is_timed_of_a_payload_that_is_not_added(
    buffer: type[Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_steps, "_OneTensor", buffer)
    with pytest.raises(NotMeasured, match=f"none, 1 tokens: {sentence}"):
        time_payload(WORK)


def test_on_a_gpu_the_decoders_have_the_sizes_of_the_released_models() -> None:
    """`hidden_size` and `deepstack_visual_indexes` of Qwen3-VL's configs; nothing is built here."""
    work = payload_work("cuda")
    assert [step.backend for step in work] == ["none"] * 3 + ["inductor"] * 3
    configs = {step.model: tiny_family_named(step.family).config for step in work}
    sizes = {
        model: (config.hidden, config.mlp, config.heads, config.levels) for model, config in configs.items()
    }
    assert sizes == {
        "4b": (2560, 9728, 32, 3), "8b": (4096, 12288, 32, 3), "32b": (5120, 25600, 64, 3),
    }  # fmt: skip
    assert set(sizes) <= set(LAYERS)


def test_the_part_of_a_whole_model_is_estimated_from_the_layers_that_were_timed() -> None:
    conditions: dict[str, str | int | float] = {"model": "8b", "layers": 4}
    assert extra_of_model(Measured(PAYLOAD, 409.0, "us", 400.0, conditions)) == pytest.approx(9 / 3600)
    assert extra_of_model(Measured(PAYLOAD, 409.0, "us", 400.0, {**conditions, "model": "tiny"})) is None
    assert extra_of_model(Measured(PAYLOAD, 409.0, "us", None, conditions)) is None


def test_work_that_fails_ends_no_other() -> None:
    unknown = PayloadWork("70b", "none", "cpu", (1,), 2)
    failed, timed = measure_payload_costs([unknown, WORK])
    assert "unknown variant '70b' of family 'qwen3_vl'" in failed.problem
    assert (failed.rows, timed.problem, len(timed.rows)) == ((), "", 4 * 2 * 3)


ROW = Measured(
    PAYLOAD, 409.0, "us", 400.0,
    {
        "model": "8b", "tokens": 64, "arm": "eager/full", "step": "image", "form": LIST, "hidden": 4096,
        "levels": 3, "layers": 4, "dtype": "bfloat16", "device": "cpu", "clock": "a clock", "samples": 2,
        "torch": "2",
    },
    "spread",
)  # fmt: skip


def test_the_command_prints_what_was_timed_and_what_could_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def timed(_: object) -> Iterator[TimedPayload]:
        work = PayloadWork("8b", "inductor", "cpu", (64,), 2)
        yield TimedPayload(work, (ROW, ROW))
        yield TimedPayload(work, (), "CUDA out of memory")

    monkeypatch.setattr(payload_costs, "measure_payload_costs", timed)
    file = tmp_path / "payload.jsonl"
    assert main(["kernels", "--payload-cost", "--json", str(file)]) == ExitCode.MACHINE
    out = capsys.readouterr().out
    assert "8b, inductor: hidden 4096, 3 levels, 4 layers of 36" in out
    assert "64  eager/full                    image      400.0      409.0     1.022x" in out
    assert "of a step of the whole model, estimated from these layers: +0.25% to +0.25%" in out
    assert "8b, inductor: not timed: CUDA out of memory" in out
    lines = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
    assert [line["of_model"] for line in lines] == [pytest.approx(0.0025)] * 2
    assert msgspec.json.decode(file.read_bytes().splitlines()[0], type=Measured) == ROW


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--payload-cost", "--target", "h200"], "--payload-cost runs on cpu or cuda, and 'h200' cannot"),
        (["--cost"], "--cost was removed: time what a payload costs a step with '--payload-cost'"),
        (["--payload-cost", "--tokens", "8"], "brings its own decoders and sizes: leave --tokens out"),
    ],
)
def test_wrong_calls_are_refused(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", *words]) == ExitCode.USAGE
    assert sentence in capsys.readouterr().err
