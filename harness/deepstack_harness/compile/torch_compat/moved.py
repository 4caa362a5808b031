"""Differences of torch and triton between the versions that generate and interpret code for an H200.

`MOVED` is the only place that knows a version: each row names what moved, with which release, and how the
harness adapts, so that other code need not check versions. Rows with parameters are compared with the
installed torch and triton by `cases/torch_facts/test_moved.py`; so is every row whose behaviour can be shown
by a call.
"""

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import Version

Parameters = tuple[str, ...] | None
"""Names of a function's parameters without `self`; None where the function does not exist."""
_BUILDER = "triton.runtime.interpreter:InterpreterBuilder"


@dataclass(frozen=True)
class Moved:
    """One difference: `package` is torch or triton, `since` the first minor version that has `after`.

    `before` and `after` are parameters where a signature moved, and both None where only behaviour did.
    `reason` describes what moved, and `answer` how the harness adapts to it.
    """

    package: str
    since: str
    owner: str
    before: Parameters
    after: Parameters
    reason: str
    answer: str

    @property
    def reached(self) -> bool:
        """Return whether the installed package is that release or a later one; its pre-releases count."""
        return Version(Version(importlib.metadata.version(self.package)).base_version) >= Version(self.since)


_OTHER_ARGUMENTS = "a cache policy in place of two arguments"
_TAKEN_AS_REST = "arguments behind those that count are taken as a rest, and left out"
_NO_BLOCK_POINTERS = "block pointers are gone"
_WENT_THROUGH = "none: they loaded and stored by the masked methods, which are replaced"

MOVED: Mapping[str, Moved] = {
    "create_load": Moved(
        "triton", "3.9", f"{_BUILDER}.create_load",
        ("ptr", "_0", "_1", "is_volatile"), ("ptr", "cache_policy", "is_volatile"),
        _OTHER_ARGUMENTS, "none: it calls create_masked_load",
    ),
    "create_store": Moved(
        "triton", "3.9", f"{_BUILDER}.create_store",
        ("ptr", "val", "_0", "_1"), ("ptr", "val", "cache_policy"),
        _OTHER_ARGUMENTS, "none: it calls create_masked_store",
    ),
    "create_masked_load": Moved(
        "triton", "3.9", f"{_BUILDER}.create_masked_load",
        ("ptrs", "mask", "other", "cache_modifier", "eviction_policy", "is_volatile"),
        ("ptrs", "mask", "other", "cache_policy", "is_volatile"),
        _OTHER_ARGUMENTS, _TAKEN_AS_REST,
    ),
    "create_masked_store": Moved(
        "triton", "3.9", f"{_BUILDER}.create_masked_store",
        ("ptrs", "value", "mask", "cache_modifier", "eviction_policy"),
        ("ptrs", "value", "mask", "cache_policy"),
        _OTHER_ARGUMENTS, _TAKEN_AS_REST,
    ),
    "create_atomic_load": Moved(
        "triton", "3.9", f"{_BUILDER}.create_atomic_load", None, ("ptr", "mask", "sem", "scope"),
        "atomic loads are new", "none: it calls create_masked_load",
    ),
    "create_atomic_store": Moved(
        "triton", "3.9", f"{_BUILDER}.create_atomic_store", None, ("ptr", "val", "mask", "sem", "scope"),
        "atomic stores are new", "none: it calls create_masked_store",
    ),
    "create_atomic_poll": Moved(
        "triton", "3.9", f"{_BUILDER}.create_atomic_poll",
        None, ("ptr", "expected", "timeout_ns", "sem", "scope"),
        "a program may wait for a value, and would wait for ever: programs run one after the other",
        "the replaced method refuses it",
    ),
    "create_tensor_pointer_load": Moved(
        "triton", "3.8", f"{_BUILDER}.create_tensor_pointer_load",
        ("ptr", "boundary_check", "padding_option", "cache_modifier", "eviction_policy", "is_volatile"), None,
        _NO_BLOCK_POINTERS, _WENT_THROUGH,
    ),
    "create_tensor_pointer_store": Moved(
        "triton", "3.8", f"{_BUILDER}.create_tensor_pointer_store",
        ("ptr", "value", "boundary_check", "cache_modifier", "eviction_policy"), None,
        _NO_BLOCK_POINTERS, _WENT_THROUGH,
    ),
    "create_minnumf": Moved(
        "triton", "3.8", f"{_BUILDER}.create_minnumf", None, None,
        "the smaller of NaN and a number is the number, as on a GPU; it was NaN before",
        "none: Inductor's minimum and maximum look for NaN themselves",
    ),
    "create_ashr": Moved(
        "triton", "3.8", f"{_BUILDER}.create_ashr", None, None,
        "operands of a right shift keep their type; before, unsigned ones became signed behind it",
        "none: only generators of random numbers shift, and their numbers are not compared",
    ),
    "get_bf16": Moved(
        "triton", "3.9", f"{_BUILDER}.get_bf16", None, ("value",),
        "constants of bfloat16 are new", "none: they are cast by the replaced cast_impl",
    ),
    "__index__": Moved(
        "triton", "3.7", "triton.runtime.interpreter:_patch_lang_tensor", None, None,
        "a tensor of one element is made an integer as numpy 2.4 allows; a looped reduction ended before",
        "interpreter.interpreting does the same on every triton",
    ),
    "process_inputs": Moved(
        "torch", "2.11", "torch._functorch._aot_autograd.frontend_utils:process_inputs", None, None,
        "inputs without storage that another mode made are made anew; 2.10 asserts that there is one mode",
        "modes.without_storage makes them anew where torch does not",
    ),
}  # fmt: skip
"""Name -> what moved. Other names are the same in triton 3.6 .. 3.9 and torch 2.10 .. 2.15."""
