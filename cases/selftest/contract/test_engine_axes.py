"""Settings of engines: each axis has arms or a reason, and the flags are those that vLLM takes."""

import json
import re
from pathlib import Path

import pytest

from deepstack_harness.contract.arm import ArmSpec, every_arm
from deepstack_harness.contract.engine_axes import AXES, engine_flags

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "arms.md"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("inductor/drop_all", {"mode": 3, "backend": "inductor"}),
        ("eager/stock", {"mode": 1, "backend": "eager"}),
        ("eager/full", {"mode": 0, "cudagraph_mode": "FULL"}),
        ("eager/drop_all/piecewise", {"mode": 3, "backend": "eager", "cudagraph_mode": "PIECEWISE"}),
        ("eager/full_decode_only", {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}),
        ("inductor/drop_all/reloaded", {"mode": 3, "backend": "inductor"}),
        (
            "inductor/drop_all/mark_unbacked",
            {"mode": 3, "backend": "inductor", "dynamic_shapes_config": {"type": "unbacked"}},
        ),
        (
            "inductor/shape_env_only/backed_size_oblivious",
            {
                "mode": 3,
                "backend": "inductor",
                "dynamic_shapes_config": {"type": "backed_size_oblivious", "evaluate_guards": True},
            },
        ),
    ],
)
def test_the_flags_of_the_engine(name: str, wanted: dict[str, object]) -> None:
    flags = engine_flags(ArmSpec.parse(name))
    assert json.loads(flags.split("'")[1]) == wanted


@pytest.mark.parametrize(
    "name",
    [
        "no-deepstack",
        "eager/keep_tensor",
        "eager/stock/static",
        "inductor/shape_env_only/mark_unbacked",
        "eager/drop_all/reloaded",
        "inductor/stock/reloaded",
    ],
)
def test_the_engine_has_no_flags_for_what_it_does_not_do(name: str) -> None:
    assert engine_flags(ArmSpec.parse(name)) == ""


def test_each_axis_has_arms_of_the_table_or_a_reason() -> None:
    usual = {arm.name for arm in every_arm()}
    assert {axis.name: [arm for arm in axis.arms if arm not in usual] for axis in AXES} == {
        axis.name: [] for axis in AXES
    }
    assert [axis.name for axis in AXES if not axis.arms and not axis.missing] == []
    assert len({axis.name for axis in AXES}) == len(AXES)


def test_an_arm_with_a_setting_of_its_own_is_on_an_axis() -> None:
    """What `_UNUSUAL` of the arm table adds is an axis, or nothing that an engine has."""
    played = {arm for axis in AXES for arm in axis.arms}
    axes = {part for name in played for part in name.split("/")[2:]}
    parts = {part for arm in every_arm() if engine_flags(arm) for part in arm.name.split("/")[2:]}
    assert parts - axes == {"no_size_asserts", "emulate_casts"}  # options of Inductor, set by code of vLLM


def test_the_reference_has_the_table() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    (section,) = re.findall(r"<!-- axes -->\n(.*?)<!-- /axes -->", text, re.DOTALL)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.strip().splitlines()[2:]
    ]
    assert rows == [
        [
            axis.name,
            axis.vllm,
            axis.sglang or "-",
            ", ".join(f"`{arm}`" for arm in axis.arms) or "none",
            axis.missing or "-",
        ]
        for axis in AXES
    ]
