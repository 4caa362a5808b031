# mypy: ignore-errors
"""Kernels as a person writes them: one element of `given` for each of `out`."""

import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers  # noqa: TID251  # as generated kernels import them
from torch._inductor.runtime.triton_helpers import libdevice  # noqa: TID251

# ruff: noqa: ANN001, ANN201


@triton.jit
def rounded(given, out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(out + x, tl.load(given + x, x < n).to(tl.bfloat16), x < n)


@triton.jit
def widened(given, out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(out + x, tl.load(given + x, x < n).to(tl.float32) * 2, x < n)


@triton.jit
def summed(given, out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    value = tl.load(given + x, x < n)
    tl.store(out + x, value + value, x < n)


@triton.jit
def rooted(given, out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(out + x, libdevice.rsqrt(tl.load(given + x, x < n)), x < n)


@triton.jit
def unknown(given, out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(out + x, libdevice.cyl_bessel_i0(tl.load(given + x, x < n)), x < n)


@triton.jit
def largest(given, out, n, XBLOCK: tl.constexpr):
    x = tl.arange(0, XBLOCK)
    value = tl.load(given + x, x < n, other=float("-inf"))
    tl.store(out + tl.arange(0, 1), triton_helpers.max2(value[None, :], 1))


@triton.jit
def scattered(given, out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.atomic_add(out + x % 2, tl.load(given + x, x < n), x < n)


@triton.jit
def assembled(given, out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    value = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out + x, value, x < n)


@triton.jit
def told_its_block(given, out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(out + x, tl.load(given + x, x < n) + XBLOCK, x < n)
