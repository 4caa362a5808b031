"""Adapter classes: right ones pass, and the class that is written."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from cases.selftest.models import right_shapes, wrong_shapes
from cases.selftest.models.checking import broken_in
from deepstack_harness.catalogue.plans import check_traces
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.errors import UsageError
from deepstack_harness.models.adapted import check_interface
from deepstack_harness.models.adapter_text import adapter_text
from deepstack_harness.models.reference import ReferenceBuffer

REGIMES = {
    name: [Regime.LIVE] if name in right_shapes.LIVE_ALONE else [Regime.LIVE, Regime.CAPTURED]
    for name in right_shapes.RIGHT
}


@pytest.mark.slow  # 2 s each
@pytest.mark.parametrize("name", right_shapes.RIGHT)
def test_a_right_buffer_breaks_no_rule_on_the_whole_sample(name: str) -> None:
    for regime in REGIMES[name]:
        assert broken_in(check_interface(right_shapes.RIGHT[name], name), regime) == {}


class HandsOn:
    """Has the members of another buffer by `__getattr__`, which `dir` does not list."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._inner = ReferenceBuffer(capacity, hidden, levels, dtype=dtype, device=device)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_delegated_members_exist() -> None:
    check_interface(HandsOn, "HandsOn")  # type: ignore[arg-type]  # no type states what it has


def written(make: object, target: str, folder: Path) -> object:
    """The adapter class that is written for a class, as a user who changes nothing would check it."""
    file = folder / "written.py"
    file.write_text(adapter_text(make, target))  # type: ignore[arg-type]
    names: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)  # text of ours
    return names["Adapter"]


@pytest.mark.parametrize("name", ["Rows", "Layers", "TurnsTheLevels", "KeepsTheTensor"])
def test_the_class_that_is_written_fits(name: str, tmp_path: Path) -> None:
    made = written(getattr(wrong_shapes, name), f"{wrong_shapes.__name__}:{name}", tmp_path)
    check_interface(made, name)  # type: ignore[arg-type]
    assert made.fixed == ({"levels": 1} if name in {"Rows", "KeepsTheTensor"} else {})  # type: ignore[attr-defined]


def test_the_class_that_is_written_breaks_what_its_class_breaks(tmp_path: Path) -> None:
    target = f"{wrong_shapes.__name__}:Broadcasts"
    made = written(wrong_shapes.Broadcasts, target, tmp_path)
    found = broken_in(check_interface(made, target), Regime.LIVE, check_traces(), until=Rule.REJECTION)  # type: ignore[arg-type]
    assert {*found} == {Rule.REJECTION}


def test_what_no_name_suggests_is_an_ellipsis() -> None:
    text = adapter_text(right_shapes.KeywordsOnly, "mine.py:KeywordsOnly")
    assert text.startswith("from mine import KeywordsOnly\n")
    assert "self.made = KeywordsOnly(width=hidden, dtype=dtype, device=device)" in text
    assert "return (self.made.gather(rows=tokens),)" in text
    assert "        ...\n" in text
    assert "self.made.write(payload[0], slots=...)" in adapter_text(right_shapes.CacheRows, "m:CacheRows")


class OtherArguments(ReferenceBuffer):
    """Has the names of the contract, and takes other arguments."""

    def get(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(self._levels)

    def set(self, where: Tensor, values: Tensor) -> None:  # type: ignore[override]
        """Write values at positions."""


def test_arguments_that_do_not_match_are_named() -> None:
    with pytest.raises(UsageError) as refused:
        check_interface(OtherArguments, "mine:OtherArguments")  # type: ignore[arg-type]
    assert "it lacks get(tokens) (it has get()" in str(refused.value)
    assert "set(payload) (it has set(where" in str(refused.value)
    assert "check mine:OtherArguments --write-adapter my_adapter.py" in str(refused.value)


def test_all_that_is_missing_is_named_at_once_with_the_class_to_write() -> None:
    class Bare:
        def __init__(self, *sizes: int, dtype: torch.dtype, device: torch.device) -> None:
            pass

    with pytest.raises(UsageError) as refused:
        check_interface(Bare, "mine:Bare")  # type: ignore[arg-type]
    lacks = "it lacks get(tokens), set(payload), clear(tokens), the attribute capacity (int, token rows); "
    assert lacks in str(refused.value)
    assert "class Adapter:" in str(refused.value)
