"""Private members of triton's interpreter and of Inductor that interpreting rests on, checked at its start.

They are reached by way of an object, where no import fails when they move, and a method that is no longer
called is a replaced one that does nothing.  Held on triton 3.7 with torch 2.13, and 3.9 with torch 2.15.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import triton
from torch._inductor.codegen import wrapper
from torch._inductor.codegen.cuda import device_op_overrides
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

from deepstack_harness.errors import MachineError

_INTERPRETER = "deepstack_harness/torch_compat/interpreter.py"
_GRAPHS = "deepstack_harness/torch_compat/interpreted_graphs.py"

METHODS: Mapping[str, tuple[str, ...]] = {
    "create_load": (),
    "create_store": (),
    "create_masked_load": ("ptrs", "mask", "other"),
    "create_masked_store": ("ptrs", "value", "mask"),
    "create_atomic_rmw": ("rmwOp", "ptr", "val", "mask"),
    "create_atomic_cas": (),
    "cast_impl": ("src", "dst_type"),
    "create_fp_to_fp": ("src", "dst_type", "rounding_mode"),
    "binary_op": ("lhs", "rhs", "op"),
    "unary_op": ("arg", "op"),
    "create_dot": ("a", "b", "d"),
    "create_extern_elementwise": (),
    "create_inline_asm": (),
    "set_grid_dim": ("nx", "ny", "nz"),
}
"""Methods of `InterpreterBuilder` that are replaced, or that call those; with the parameters that count."""
MEMBERS: Mapping[str, tuple[type[Any], tuple[str, ...], str]] = {
    "InterpreterOptions": (interpreter.InterpreterOptions, ("sanitize_overflow",), _INTERPRETER),
    "TensorHandle": (interpreter.TensorHandle, ("data", "dtype", "get_element_ty"), _INTERPRETER),
    "ReduceOps": (interpreter.ReduceOps, ("apply_impl", "min_max", "combine_fn"), _INTERPRETER),
    "InterpreterError": (InterpreterError, ("error_message",), _GRAPHS),
    "CachingAutotuner": (
        CachingAutotuner, ("run", "fn", "configs", "triton_interpret", "heuristic_type"), _GRAPHS,
    ),
}  # fmt: skip
"""Members of other classes: methods, and attributes that `__init__` sets; and the module that uses them."""
GENERATED = ("empty_strided_cuda", "_cuda_getCurrentRawStream")
"""Names in generated wrappers that are replaced there; the sources of Inductor's generators have them."""


def check_names() -> None:
    """Raise `MachineError`, which names what moved and what to do, unless all of this is as it was read."""
    lost = [*_lost_methods(), *_lost_members(), *_lost_in_wrappers()]
    if lost:
        raise MachineError(
            f"triton {triton.__version__} with torch {torch.__version__}: "
            + "; ".join(f"{what}: look there for the new name, and change {where}" for what, where in lost)
            + ". Accesses or casts would be missed: until then install torch 2.13 with triton 3.7"
        )


def _lost_methods() -> Iterator[tuple[str, str]]:
    """Yield methods of the builder that are gone, or whose first parameters are others."""
    for name, wanted in METHODS.items():
        method = getattr(interpreter.InterpreterBuilder, name, None)
        if method is None:
            yield f"has no {name} in its InterpreterBuilder", _INTERPRETER
            continue
        found = tuple(inspect.signature(method).parameters)[1 : len(wanted) + 1]
        if found != wanted:
            yield (
                f"InterpreterBuilder.{name} begins with ({', '.join(found)}), not ({', '.join(wanted)})",
                _INTERPRETER,
            )


def _lost_members() -> Iterator[tuple[str, str]]:
    """Yield members that neither the class has nor its `__init__`, nor that of a base, sets."""
    for owner, (one, names, where) in MEMBERS.items():
        known = {name for base in one.__mro__ for name in (*vars(base), *_annotated(base), *_set_by(base))}
        yield from ((f"has no {name} in its {owner}", where) for name in names if name not in known)


def _annotated(one: type[Any]) -> tuple[str, ...]:
    return tuple(vars(one).get("__annotations__", ()))


def _set_by(one: type[Any]) -> tuple[str, ...]:
    code = getattr(vars(one).get("__init__"), "__code__", None)
    return code.co_names if code is not None else ()


def _lost_in_wrappers() -> Iterator[tuple[str, str]]:
    """Yield names that Inductor no longer writes into the wrappers that it generates."""
    text = inspect.getsource(wrapper) + inspect.getsource(device_op_overrides)
    yield from ((f"generates no {name} in its wrappers", _GRAPHS) for name in GENERATED if name not in text)
