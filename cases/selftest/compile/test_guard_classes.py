"""Classes of dropped guards that fail: which decide by what they are about, and which are only shown.

No effect is measured here, so that only the class is judged.
"""

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cases.selftest.compile.watched_programs import (
    Layer,
    Weighted,
    compile_without_guards,
    default_dtype,
    rows,
    threads,
)
from deepstack_harness import watch_guards
from deepstack_harness.compile.torch_compat.guard_sources import GONE, SHAPE
from deepstack_harness.compile.torch_compat.guards import FailedLeaf
from deepstack_harness.compile.watch_facts import ABSENT, FailedGuard, GuardClass, InputFacts
from deepstack_harness.compile.watched import guard_class

DECIDES, SHOWN, NOT_ASKED = GuardClass.DECIDES, GuardClass.SHOWN, GuardClass.NOT_ASKED


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


def failed(code: Any, first: tuple[object, ...], later: Callable[[Any], object]) -> list[FailedGuard]:  # noqa: ANN401
    """Return the dropped guards that fail in a second call, without their effect."""
    run = compile_without_guards(code)
    with watch_guards(measure=False) as watched:
        run(*first)
        with suppress(
            RuntimeError, TypeError, LookupError
        ):  # a graph for other inputs may also fail by itself
            later(run)
    assert sum(region.calls for region in watched.regions) >= 2
    return [guard for region in watched.regions for guard in region.failed.values()]


def times(x: Tensor, by: Any = None) -> Tensor:  # noqa: ANN401
    return x * 2 if by is None else x * by


def first_of(x: Tensor, parts: dict[str, Tensor]) -> Tensor:
    return x + parts["a"] if "a" in parts else x - 1


DECIDING: dict[str, tuple[Any, tuple[object, ...], Callable[[Any], object], str]] = {
    "presence": (times, (rows(),), lambda run: run(rows(), 3), "by"),
    "type": (times, (rows(), 3), lambda run: run(rows(), torch.ones(1)), "by"),
    "value": (times, (rows(), False), lambda run: run(rows(), True), "by"),
    "keys": (first_of, (rows(), {"a": rows()}), lambda run: run(rows(), {"b": rows()}), "parts"),
    "dtype": (times, (rows(),), lambda run: run(rows().double()), "x"),
    "device": (times, (rows(),), lambda run: run(rows().to("meta")), "x"),
    "stride": (times, (rows(6),), lambda run: run(rows(12)[::2].t().contiguous().t()), "x"),
}


@pytest.mark.parametrize(("code", "first", "later", "name"), DECIDING.values(), ids=DECIDING)
def test_it_decides(
    code: Any,  # noqa: ANN401
    first: tuple[object, ...],
    later: Callable[[Any], object],
    name: str,
) -> None:
    guards = [guard for guard in failed(code, first, later) if guard.guard_class is DECIDES]
    assert name in {guard.name for guard in guards}, guards
    assert all(guard.counts for guard in guards)


def test_a_replaced_parameter_decides() -> None:
    layer = Weighted()

    def later(run: Any) -> None:  # noqa: ANN401
        layer.weight = nn.Parameter(torch.full((4, 4), 2.0, dtype=torch.float64), requires_grad=False)
        run(rows())

    (guard,) = failed(layer, (rows(),), later)
    assert (guard.guard_class, guard.then.dtype, guard.now.dtype) == (DECIDES, "float32", "float64")


def replace_activation(layer: Any, run: Any) -> None:  # noqa: ANN401
    layer.activation = torch.tanh
    run(rows())


class Active(nn.Module):
    """A layer with a function as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.activation = torch.relu

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, 4)."""
        return self.activation(x - 3)


SETTINGS: dict[str, Callable[[], Any]] = {
    "grad-mode": torch.no_grad,
    "threads": lambda: threads(torch.get_num_threads() + 1),
    "default-dtype": lambda: default_dtype(torch.float64),
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_a_setting_of_the_process_is_shown(setting: Callable[[], Any]) -> None:
    guards = failed(times, (rows(),), lambda run: setting()(run)(rows()))
    assert {guard.guard_class for guard in guards} == {SHOWN}
    assert not any(guard.counts for guard in guards)


def test_autocast_decides() -> None:
    guards = failed(times, (rows(),), lambda run: torch.autocast("cpu", dtype=torch.bfloat16)(run)(rows()))
    deciding = [(guard.name, str(guard.now)) for guard in guards if guard.guard_class is DECIDES]
    assert deciding == [("autocast", "cpu bfloat16")]


def test_dispatch_keys_of_inference_tensors_are_shown() -> None:
    with torch.inference_mode():
        inference = rows()

    guards = failed(times, (rows(),), lambda run: run(inference))
    assert {guard.guard_class for guard in guards} == {SHOWN}


def test_a_bound_of_the_0_1_specialisation_is_shown() -> None:
    guards = failed(times, (rows(6),), lambda run: run(rows(1)))
    assert [(guard.guard_class, guard.rule) for guard in guards] == [(SHOWN, "2 <= L['x'].size()[0]")]


def test_the_training_mode_is_shown() -> None:
    class Reads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if self.training else x * 1

    layer = Reads().eval()
    guards = failed(layer, (rows(),), lambda run: (layer.train(), run(rows())))
    assert [(guard.guard_class, guard.name) for guard in guards] == [(SHOWN, "self.training")]


def test_hooks_are_shown() -> None:
    layer = Layer()
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):  # noqa: TID251  # no guard otherwise
        guards = failed(
            layer, (rows(),),
            lambda run: (layer.linear.register_forward_hook(lambda *_: None), run(rows())),
        )  # fmt: skip
    assert {guard.guard_class for guard in guards} == {SHOWN}
    assert any("_forward_hooks" in guard.source for guard in guards)


def test_the_identity_of_an_object_is_shown_and_decides_by_its_effect() -> None:
    layer = Active()
    guards = failed(layer, (rows(),), lambda run: replace_activation(layer, run))
    assert {guard.guard_class for guard in guards} == {SHOWN}
    torch.compiler.reset()
    layer = Active()
    run = compile_without_guards(layer)
    with watch_guards() as watched:
        run(rows())
        replace_activation(layer, run)
    assert {guard.name for guard in watched.decisive} == {"self.activation"}


def test_a_guarded_object_that_is_gone_has_not_failed() -> None:
    class Holder:
        factor = 2

    holder: Holder | None = Holder()

    def scaled(x: Tensor) -> Tensor:
        return x * (1 if holder is None else holder.factor)

    run = compile_without_guards(scaled)
    with watch_guards(measure=False) as watched:
        run(rows())
        holder = Holder()
        gc.collect()
        run(rows())
    assert watched.decisive == [], watched.report()


@pytest.mark.parametrize(
    ("leaf", "then", "expected"),
    [
        (FailedLeaf("L['self'].x", GONE, "cannot be read"), InputFacts("int", "1"), NOT_ASKED),
        (FailedLeaf("L['self'].x", "WEAKREF_ALIVE", "gone"), InputFacts("Holder"), NOT_ASKED),
        (FailedLeaf("L['self'].training_steps", "EQUALS_MATCH", "== 1"), InputFacts("int", "1"), DECIDES),
        (FailedLeaf("L['self'].__dict__['training']", "EQUALS_MATCH", ""), InputFacts("bool", "True"), SHOWN),
        (FailedLeaf("6 <= L['x'].size()[0]", SHAPE, ""), ABSENT, DECIDES),
    ],
)
def test_a_leaf_has_its_class(leaf: FailedLeaf, then: InputFacts, expected: GuardClass) -> None:
    assert guard_class(leaf, then, ABSENT) is expected
