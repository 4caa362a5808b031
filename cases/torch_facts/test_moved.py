"""The table of what moved between versions of torch and triton agrees with those that are installed."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

from cases.torch_facts.test_inductor_facts import needs_triton
from deepstack_harness.catalogue.versions import TORCH_CHANGES
from deepstack_harness.compile.torch_compat.moved import MOVED, Moved, Parameters

SIGNATURES = {name: moved for name, moved in MOVED.items() if (moved.before, moved.after) != (None, None)}


def parameters(owner: str) -> Parameters:
    """Return the parameters of `MODULE:NAME` without `self`, None where there is no such function."""
    module, _, name = owner.partition(":")
    try:
        function = attrgetter(name)(importlib.import_module(module))
    except AttributeError:
        return None
    return tuple(parameter for parameter in inspect.signature(function).parameters if parameter != "self")


@needs_triton
@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_is_that_of_the_table(name: str) -> None:
    moved = SIGNATURES[name]
    wanted, found = moved.after if moved.reached else moved.before, parameters(moved.owner)
    assert found == wanted, (
        f"{moved.package}: {moved.owner} has the parameters {found}, and moved.MOVED says {wanted}. "
        "Say there since when, and what is done about it."
    )


def _handle(value: float, kind: str) -> Any:  # triton.runtime.interpreter.TensorHandle
    from triton import language
    from triton.runtime.interpreter import TensorHandle

    return TensorHandle(np.array([value], kind), getattr(language, kind))


def _smaller_of_nan_and_a_number_is_the_number() -> bool:
    from triton.runtime.interpreter import interpreter_builder as builder

    smaller = builder.create_minnumf(_handle(np.nan, "float32"), _handle(1, "float32"))
    return bool(smaller.data[0] == 1)


def _shifted_operand_stays_unsigned() -> bool:
    from triton.runtime.interpreter import interpreter_builder as builder

    shifted = _handle(8, "uint32")
    builder.create_ashr(shifted, _handle(1, "uint32"))
    return bool(shifted.data.dtype == np.uint32)


def _loops_end_at_tensors_of_one_element() -> bool:
    from triton.runtime import interpreter

    return ".squeeze()" in inspect.getsource(interpreter._patch_lang_tensor)


def _fake_inputs_of_another_mode_are_compiled() -> bool:
    with FakeTensorMode():
        rows = torch.ones(4)
    torch.compiler.reset()
    try:
        torch.compile(lambda rows: rows + 1, backend="aot_eager")(rows)
    except Exception as error:
        if "doesn't match mode" not in str(error):
            raise
        return False
    return True


def _inputs_come_in_the_order_of_their_use() -> bool:
    order: list[str] = []

    def note(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        order.extend(node.name for node in graph.graph.nodes if node.op == "placeholder")
        return graph

    def sizes(argument: torch.Tensor, used_first: torch.Tensor) -> tuple[int, int]:
        return used_first.size(0), argument.size(0)

    def run(argument: torch.Tensor, used_first: torch.Tensor) -> torch.Tensor:
        first, second = sizes(argument, used_first)
        return argument[:first] + used_first[:second]

    torch.compiler.reset()
    torch.compile(run, backend=note, dynamic=True)(torch.ones(4, 3), torch.ones(4, 3))
    return order.index("l_used_first_") < order.index("l_argument_")


BEHAVIOUR: Mapping[str, Callable[[], bool]] = {
    "create_minnumf": _smaller_of_nan_and_a_number_is_the_number,
    "__index__": _loops_end_at_tensors_of_one_element,
    "create_ashr": _shifted_operand_stays_unsigned,
    "process_inputs": _fake_inputs_of_another_mode_are_compiled,
}


@needs_triton
@pytest.mark.parametrize("name", sorted(MOVED.keys() - SIGNATURES.keys()))
def test_a_call_behaves_as_in_the_table(name: str) -> None:
    moved = MOVED[name]
    assert BEHAVIOUR[name]() is moved.reached, f"moved.MOVED has since {moved.since}: {moved.reason}"


CHANGES: Mapping[str, Callable[[], bool]] = {"graph_inputs": _inputs_come_in_the_order_of_their_use}


@pytest.mark.parametrize("name", TORCH_CHANGES)
def test_a_change_of_torch_is_seen_from_its_release_on(name: str) -> None:
    change = TORCH_CHANGES[name]
    said = f"versions.TORCH_CHANGES has since {change.since}: {change.reason}"
    assert CHANGES[name]() is change.is_in(torch.__version__), said


@pytest.mark.parametrize(
    ("version", "reached"), [("3.8.1", False), ("3.9.0a1+git", True), ("3.9.0", True), ("4.0", True)]
)
def test_a_release_is_reached_by_its_pre_releases(
    version: str, reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", {"triton": version}.__getitem__)
    assert Moved("triton", "3.9", "", None, None, "", "").reached is reached
