"""Tolerances are in one module: no other one compares with a small number, or takes a multiple of eps."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import deepstack_harness

PACKAGE = Path(deepstack_harness.__file__).parent
ROOMS = ("audit", "compile", "contract", "engines", "fuzz", "play", "pytest_plugin", "runs")
OTHERS = {
    "compile/payload_steps.py": {"parameter.size(-1) ** (-0.5)"},  # the spread of weights
    "compile/torch_compat/modes.py": {"torch.finfo(result.dtype).eps"},  # by how much a result is moved
    "compile/torch_compat/rerun.py": {"torch.finfo(out.dtype).eps"},  # times WATCH_ROUNDINGS
    "engines/kinds/vllm_tiny.py": {"1e-05", "1e-06"},  # settings of norms
    "engines/live/models.py": {"1e-06", "32 ** (-0.5)"},  # settings of norms and attention
    "engines/stand_ins.py": {"torch.allclose"},  # equal, NaN included: both tolerances are 0
    "play/call_differences.py": {"torch.finfo(value.dtype).eps"},  # an argument of region_limit
    "play/tensors.py": {"2 ** (-40)"},  # numbers that are no numbers of a narrower dtype
    "runs/report/drawing.py": {"0.01"},  # the place of ticks
    "runs/report/figures.py": {"1e-10"},  # where a logarithmic axis begins
}
"""By module, small numbers that are no tolerances."""


def small_numbers(source: str) -> Iterator[str]:
    """Yield small numbers that are compared, a factor or a constant, each eps, and comparisons of torch."""
    tree = ast.parse(source)
    inside: list[ast.AST] = [node for node in ast.walk(tree) if isinstance(node, ast.Compare | ast.BinOp)]
    inside += [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    for node in {part for outer in inside for part in ast.walk(outer)}:
        match node:
            case ast.Constant(value=float(value)) if 0 < value <= 0.01:
                yield ast.unparse(node)
            case ast.BinOp(op=ast.Pow(), right=ast.UnaryOp(op=ast.USub())):
                yield ast.unparse(node)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="eps", value=ast.Call(func=ast.Attribute(attr="finfo"))):
                yield ast.unparse(node)
            case ast.Attribute(attr="allclose" | "isclose" | "assert_close"):
                yield ast.unparse(node)


@pytest.mark.parametrize("room", ROOMS)
def test_no_other_module_has_a_tolerance(room: str) -> None:
    found = {
        str(path.relative_to(PACKAGE)): numbers
        for path in sorted((PACKAGE / room).rglob("*.py"))
        if (numbers := set(small_numbers(path.read_text())))
    }
    stated = found.pop("contract/tolerances.py", set())
    assert room != "contract" or {"1e-05", "2 ** (-3)", "0.0001"} <= stated
    assert found == {path: numbers for path, numbers in OTHERS.items() if path.startswith(f"{room}/")}


def test_a_tolerance_in_any_form_is_found() -> None:
    forms = (
        "ATOL = 1e-4", "LIMITS = {'float32': 1e-5}", "wrong = off > 1e-3", "limit = 2**-7 * scale",
        "torch.allclose(a, b)", "limit = 8 * torch.finfo(a.dtype).eps",
    )  # fmt: skip
    assert all(len(set(small_numbers(form))) == 1 for form in forms)
    assert not set(small_numbers("limit = 2**7 * scale + 0.5\nshare = 3 * eps"))
