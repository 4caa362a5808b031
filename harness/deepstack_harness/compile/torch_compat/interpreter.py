"""Run Triton's interpreter on made-up addresses, with arithmetic that is right where its own is not.

Run on triton 3.6 .. 3.9; `moved.MOVED` has what differs. `triton.runtime.interpreter` runs a kernel's Python
on numpy arrays, one program after the other. Replaced are its loads and stores (`device_memory` has them),
casts to and from bfloat16, which lose a carry (1.9999 becomes 1.0, triton 11585), functions of libdevice,
which are stubs there (triton 8825), and reductions that would run element by element.

`check_names` looks for the private members of triton and of Inductor that this rests on. They are reached by
way of an object, where no import fails when they move, and a replaced method that is no longer called would
do nothing. They are the same in all pairs of `targets.PAIRS`.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor
from torch._inductor.codegen import wrapper
from torch._inductor.codegen.cuda import device_op_overrides
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from triton.language.extra import libdevice
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

from deepstack_harness.compile.torch_compat.device_memory import DeviceMemory
from deepstack_harness.errors import HarnessError, MachineError

_INTERPRETER = "deepstack_harness/compile/torch_compat/interpreter.py"
_GRAPHS = "deepstack_harness/compile/torch_compat/interpreted_graphs.py"

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
    text = inspect.getsource(wrapper) + inspect.getsource(device_op_overrides)
    lost = [
        *_lost_methods(), *_lost_members(),
        *((f"generates no {name} in its wrappers", _GRAPHS) for name in GENERATED if name not in text),
        *_new_ways_to_memory(),
    ]  # fmt: skip
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
        names = tuple(inspect.signature(method).parameters)[1 : len(wanted) + 1]
        if names != wanted:
            yield (
                f"InterpreterBuilder.{name} begins with ({', '.join(names)}), not ({', '.join(wanted)})",
                _INTERPRETER,
            )


_WITHOUT_ADDRESSES = {"fma_fp32", "fma_fp64"}
"""Functions of triton's C++ interpreter that are given values; all others are given addresses."""


def _new_ways_to_memory() -> Iterator[tuple[str, str]]:
    """Yield methods that pass an address to triton's C++, which would follow a made-up one.

    They are those that `InterpretedMemoryBuilder` does not replace.
    """
    for name, method in vars(interpreter.InterpreterBuilder).items():
        used = set(getattr(getattr(method, "__code__", None), "co_names", ()))
        native = {
            function for function in used - _WITHOUT_ADDRESSES if hasattr(interpreter._interpreter, function)
        }
        if "_interpreter" in used and native and name not in vars(InterpretedMemoryBuilder):
            yield f"reaches memory in InterpreterBuilder.{name}, which nothing replaces", _INTERPRETER


def _lost_members() -> Iterator[tuple[str, str]]:
    """Yield members that neither the class has nor its `__init__`, nor that of a base, sets."""
    for owner, (kind, names, where) in MEMBERS.items():
        known = set[str]()
        for base in kind.__mro__:
            code = getattr(vars(base).get("__init__"), "__code__", None)
            known.update(vars(base), vars(base).get("__annotations__", ()), code.co_names if code else ())
        yield from ((f"has no {name} in its {owner}", where) for name in names if name not in known)


_OTHER_NAMES = {"nearbyint": "round", "rint": "round", "fabs": "abs", "finitef": "isfinite"}
"""Functions of libdevice that torch has under another name; all others have the same one."""


class InterpretedMemoryBuilder(interpreter.InterpreterBuilder):  # type: ignore[misc]
    """The interpreter's builder, whose memory is `memory`; see the module for what else is replaced."""

    memory: DeviceMemory

    # The interpreter's names and its order of parameters, of which later releases have fewer.
    def create_masked_load(self, ptrs: Any, mask: Any, other: Any, *_: object, **__: object) -> Any:  # noqa: ANN401
        """Load the bytes at the made-up addresses."""
        kind = interpreter._get_np_dtype(ptrs.get_element_ty())
        data = self.memory.load(ptrs.data, _lanes(mask), 0 if other is None else other.data, kind)
        return interpreter.TensorHandle(data, ptrs.get_element_ty())

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *_: object, **__: object) -> None:  # noqa: ANN401
        """Store to the bytes at the made-up addresses."""
        kind = interpreter._get_np_dtype(ptrs.get_element_ty())
        self.memory.store(ptrs.data, value.data.astype(kind, copy=False), _lanes(mask))

    def create_atomic_rmw(self, rmwOp: Any, ptr: Any, val: Any, mask: Any, *_: object) -> Any:  # noqa: ANN401, N803
        """Add atomically, which is what Inductor generates for `index_add` and `scatter_add`."""
        if rmwOp.name not in {"ADD", "FADD"} or ptr.get_element_ty() == tl.bfloat16:
            raise NotImplementedError(f"atomic {rmwOp.name} on {ptr.get_element_ty()}")
        before = self.create_masked_load(ptr, mask, None)
        self.memory.store(ptr.data, val.data.astype(before.data.dtype), _lanes(mask), adds=True)
        return before

    def create_atomic_cas(self, *_: object) -> Any:  # noqa: ANN401
        """Refuse it: the interpreter would follow the made-up address."""
        raise NotImplementedError("atomic compare and swap")

    def create_atomic_poll(self, *_: object) -> Any:  # noqa: ANN401
        """Refuse it: the program that it waits for is not run before this one ends."""
        raise NotImplementedError("waiting for another program")

    def cast_impl(self, src: Any, dst_type: Any) -> Any:  # noqa: ANN401
        """Cast as torch does where bfloat16 takes part."""
        given, wanted = src.dtype.scalar, dst_type.scalar
        if tl.bfloat16 in {given, wanted} and given != wanted:
            return _cast_bfloat16(src, wanted)
        return super().cast_impl(src, dst_type)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:  # noqa: ANN401
        """Round to the nearest even value, as GPUs do where Inductor requires nothing else."""
        return self.cast_impl(src, dst_type)

    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:  # noqa: ANN401
        """Refuse bfloat16, of which the interpreter would combine bit patterns as integers."""
        _refuse_bfloat16(op, lhs, rhs)
        return super().binary_op(lhs, rhs, op)

    def unary_op(self, arg: Any, op: Any) -> Any:  # noqa: ANN401
        """Refuse bfloat16 likewise."""
        _refuse_bfloat16(op, arg)
        return super().unary_op(arg, op)

    def create_dot(self, a: Any, b: Any, d: Any, *rest: Any) -> Any:  # noqa: ANN401
        """Multiply matrices of bfloat16 in float32, exactly, and not their bit patterns (triton 11584)."""
        wide = [
            _cast_bfloat16(factor, tl.float32) if factor.dtype.scalar == tl.bfloat16 else factor
            for factor in (a, b)
        ]
        return super().create_dot(*wide, d, *rest)


def _lanes(mask: Any) -> NDArray[np.bool_]:  # noqa: ANN401  # a handle; block pointers pass an array
    lanes: NDArray[np.bool_] = getattr(mask, "data", mask) if not isinstance(mask, np.ndarray) else mask
    return lanes


def _refuse_bfloat16(op: Any, *handles: Any) -> None:  # noqa: ANN401
    if any(handle.dtype.scalar == tl.bfloat16 for handle in handles):
        raise NotImplementedError(f"{getattr(op, '__name__', op)} on bfloat16 without a cast to float32")


def _cast_bfloat16(src: Any, wanted: Any) -> Any:  # noqa: ANN401
    kind = interpreter._get_np_dtype(wanted)
    if src.dtype.scalar == tl.bfloat16:
        bits = np.ascontiguousarray(src.data).view(np.int16)
        wide = torch.from_numpy(bits).view(torch.bfloat16).float().numpy()
        return interpreter.TensorHandle(wide.astype(kind), wanted)
    given = torch.from_numpy(np.array(src.data))
    bits = given.bfloat16().view(torch.int16).numpy().view(np.uint16)
    return interpreter.TensorHandle(bits, wanted)


def _from_torch(name: str) -> Callable[..., Any]:
    """Return a function of libdevice that computes with torch's function of the same name."""
    function = getattr(torch, _OTHER_NAMES.get(name, name), None)

    def call(*operands: Any, **_: object) -> Any:  # noqa: ANN401
        if function is None:
            raise NotImplementedError(f"libdevice.{name}: torch has no such function")
        tensors = [interpreter.interpreter_semantic.to_tensor(operand) for operand in operands]
        _refuse_bfloat16(function, *(tensor.handle for tensor in tensors))
        out = function(*(torch.from_numpy(np.array(tensor.handle.data)) for tensor in tensors)).numpy()
        kind = tl.int1 if out.dtype == bool else tensors[0].dtype
        shape = (
            tl.block_type(kind, list(out.shape))
            if any(tensor.type.is_block() for tensor in tensors)
            else kind
        )
        return tl.tensor(interpreter.TensorHandle(out, kind), shape)

    return call


@contextmanager
def interpreting() -> Iterator[Callable[[DeviceMemory], None]]:
    """Replace parts of the interpreter while open; yield the function that sets the memory of the next step.

    Raises `MachineError` where triton was imported to compile kernels, or has other names.
    """
    if not triton.knobs.runtime.interpret:
        raise MachineError(
            "triton was imported without TRITON_INTERPRET=1, which it reads once: start a worker"
        )
    check_names()
    builder = interpreter.interpreter_builder
    if isinstance(builder, InterpretedMemoryBuilder):
        raise HarnessError("close the session that interprets before another is opened: they share triton")

    set_dim, convert, index = builder.set_grid_dim, interpreter._implicit_cvt, interpreter._patch_lang_tensor
    reduce: Callable[..., Any] = interpreter.ReduceOps.apply_impl
    in_numpy = {id(triton_helpers.maximum): np.max, id(triton_helpers.minimum): np.min}

    def count_programs(x: int, y: int, z: int) -> None:
        builder.memory.programs += math.prod((x, y, z))
        set_dim(x, y, z)

    def convert_argument(argument: Any) -> Any:  # noqa: ANN401
        """Convert an argument of a kernel; a tensor's address becomes one of the made-up space."""
        converted = convert(argument)
        if isinstance(argument, Tensor):
            converted.handle.data[0] = builder.memory.address(argument)
        return converted

    def index_scalars(tensor: Any, scope: Any) -> None:  # noqa: ANN401
        """Let a tensor of one element end a loop; triton 3.6 does it in a way that numpy 2.4 refuses."""
        index(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    def reduce_at_once(self: Any, operands: Any) -> Any:  # noqa: ANN401
        """Reduce by Inductor's maximum and minimum in one call of numpy, which passes NaN on as they do."""
        function = in_numpy.get(id(self.combine_fn))
        return (
            reduce(self, operands) if function is None else self.min_max(operands[0], val_reduce_op=function)
        )

    with ExitStack() as stack:
        # Sums and products of integers are else done three times, for an assertion that nobody turns on.
        quick = interpreter.InterpreterOptions(sanitize_overflow=False)
        for owner, name, value in (
            (builder, "options", quick),
            (builder, "set_grid_dim", count_programs),
            (interpreter, "_implicit_cvt", convert_argument),
            (interpreter, "_patch_lang_tensor", index_scalars),
            (interpreter.ReduceOps, "apply_impl", reduce_at_once),
        ):
            stack.enter_context(patch.object(owner, name, value))
        for name in [name for name, stub in vars(libdevice).items() if callable(stub) and name[0] != "_"]:
            stack.enter_context(patch.object(libdevice, name, _from_torch(name)))
        # The builder is one object, which other modules have imported: its class is changed in place.
        stack.callback(setattr, builder, "__class__", type(builder))
        builder.__class__ = InterpretedMemoryBuilder
        yield partial(setattr, builder, "memory")
