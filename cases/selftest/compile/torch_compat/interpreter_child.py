"""Kernels written by hand and interpreted; called by name in a worker whose triton interprets."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from torch._inductor.runtime.hints import HeuristicType  # noqa: TID251
from triton.runtime import interpreter

from cases.selftest.compile.torch_compat import interpreted_kernels as kernels
from deepstack_harness.compile.torch_compat.interpreted_graphs import InterpretedGraphs
from deepstack_harness.compile.torch_compat.interpreter import interpreting
from deepstack_harness.contract.facts import AccessFacts
from deepstack_harness.errors import HarnessError, StepUnavailable


@contextmanager
def graphs() -> Iterator[InterpretedGraphs]:
    with interpreting() as use:
        yield InterpretedGraphs(use)


def launched(
    function: Any,  # noqa: ANN401  # InterpretedFunction
    given: Tensor,
    out: Tensor,
    blocks: Sequence[int] = (8,),
    *,
    compares: bool = False,
    **changes: Any,
) -> AccessFacts:
    """Launch as the generated wrapper does, for the elements of `given`."""
    count = given.numel()
    configurations = [SimpleNamespace(kwargs={"XBLOCK": block}) for block in blocks]
    known = {
        "fn": function, "configs": configurations, "triton_interpret": True,
        "heuristic_type": HeuristicType.POINTWISE,
    }  # fmt: skip
    kernel = SimpleNamespace(**known | changes)

    def run(one: Any, *args: Any, **_: object) -> None:  # noqa: ANN401
        chosen = one.configs[0].kwargs
        one.fn[(-(-count // chosen["XBLOCK"]),)](*args, **chosen)

    with graphs() as made:
        made.compares = compares
        memory = made.begin({"given": given, "out": out})
        made.launch(run, kernel, (given, out, count), {"stream": 0})
        return memory.facts(None, 0)


def refused(function: Any, given: Tensor, **changes: Any) -> str:  # noqa: ANN401
    try:
        launched(function, given, torch.zeros(8), **changes)
    except StepUnavailable as error:
        return str(error)
    return "nothing was refused"


def arithmetic() -> dict[str, Any]:
    """What the interpreter computes, and what torch does."""
    generator = torch.Generator().manual_seed(0)
    given = torch.cat([torch.tensor([1.9999, -1.9999, 0.0, 3e38]), torch.randn(1020, generator=generator)])
    half, wide, roots = given.bfloat16(), torch.zeros(1024), torch.zeros(1024)
    out = torch.zeros(1024, dtype=torch.bfloat16)
    launched(kernels.rounded, given, out, [1024])
    launched(kernels.widened, half, wide, [1024])
    launched(kernels.rooted, given.abs() + 1, roots, [1024])
    most, added = torch.zeros(1), torch.zeros(2)
    launched(kernels.largest, torch.tensor([1.0, torch.nan, 3.0]), most, [4])
    facts = launched(kernels.scattered, torch.arange(6.0), added, [4])
    return {
        "rounded": bool((out == half).all()),
        "widened": bool((wide == half.float() * 2).all()),
        "roots": (roots - torch.rsqrt(given.abs() + 1)).abs().max().item(),
        "nan": str(most.item()),
        "added": added.tolist(),
        "programs": facts.programs,
        "rows": [[access.tensor, access.argument, access.read, access.written] for access in facts.accesses],
    }


def refusals() -> dict[str, str]:
    """What is refused, each with the kernel's name."""
    floats = torch.ones(8)
    return {
        "bfloat16": refused(kernels.summed, floats.bfloat16()),
        "libdevice": refused(kernels.unknown, floats),
        "assembly": refused(kernels.assembled, floats),
        "template": refused(kernels.widened, floats, heuristic_type=HeuristicType.TEMPLATE),
        "cooperative": refused(
            kernels.widened, floats, configs=[SimpleNamespace(kwargs={"XBLOCK": 8, "RSPLIT": 2})]
        ),
        "compiled": refused(kernels.widened, floats, triton_interpret=False),
        "nothing": refused(kernels.widened, floats),
    }


def configurations() -> dict[str, Any]:
    """Two configurations of a kernel whose result depends on its block, and of one whose result does not."""
    found = {}
    for name, function in (("depends", kernels.told_its_block), ("agrees", kernels.widened)):
        out = torch.zeros(8)
        facts = launched(function, torch.ones(8), out, [2, 8, 4], compares=True)
        found[name] = {
            "compared": facts.compared, "programs": facts.programs, "out": out[0].item(),
            "told": [[pair.kernel, pair.argument, *pair.configurations] for pair in facts.disagreements],
        }  # fmt: skip
    return found


def moved() -> dict[str, str]:
    """The sentence for each private member that another triton or torch might not have."""
    from deepstack_harness.compile.torch_compat import interpreter as names

    found = {name: _without(interpreter.InterpreterBuilder, name) for name in names.METHODS}
    for owner, (kind, members, _) in names.MEMBERS.items():
        for name in members:
            found[f"{owner}.{name}"] = _unknown(
                names, "MEMBERS", {owner: (kind, (f"{name}_of_old",), "x.py")}
            )
    for name in names.GENERATED:
        found[f"wrapper.{name}"] = _unknown(names, "GENERATED", (f"{name}_of_old",))
    return found


def reordered() -> str:
    """The sentence for a method whose parameters come in another order."""

    def create_masked_load(self: object, mask: object, ptrs: object, other: object) -> None: ...

    with patch.object(interpreter.InterpreterBuilder, "create_masked_load", create_masked_load):
        return _error()


def unreplaced() -> str:
    """The sentence for a new method that gives an address to triton's C++."""

    def create_far_load(self: object, ptr: Any) -> Any:  # noqa: ANN401
        return interpreter._interpreter.load(ptr.data)

    with patch.object(interpreter.InterpreterBuilder, "create_far_load", create_far_load, create=True):
        return _error()


def _unknown(module: object, table: str, value: object) -> str:
    with patch.object(module, table, value):
        return _error()


def _without(owner: type[Any], name: str) -> str:
    original = getattr(owner, name)
    delattr(owner, name)
    try:
        return _error()
    finally:
        setattr(owner, name, original)


def _error() -> str:
    try:
        with graphs():
            return "nothing was missed"
    except HarnessError as error:
        return str(error)


def restored() -> bool:
    """Return whether nothing is replaced any more after it."""
    before = (
        type(interpreter.interpreter_builder),
        interpreter._implicit_cvt,
        interpreter.ReduceOps.apply_impl,
    )
    with suppress(RuntimeError), graphs():
        assert type(interpreter.interpreter_builder) is not before[0]
        raise RuntimeError
    after = type(interpreter.interpreter_builder), interpreter._implicit_cvt, interpreter.ReduceOps.apply_impl
    with patch.object(triton.knobs.runtime, "interpret", new=False), suppress(HarnessError), graphs():
        return False
    return before == after
