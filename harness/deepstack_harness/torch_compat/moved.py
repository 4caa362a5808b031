"""Private names that not every supported torch has: the only place that says which torch has which.

`cases/selftest/torch_compat/test_names.py` looks for every private name that `torch_compat` uses, in the
installed torch and in the newest one on the index; of a name declared here, one spelling is enough.
"""

import importlib
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import torch

from deepstack_harness.errors import MachineError

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    # `torch.cond` in Inductor's IR: a Switch with two branches from torch 2.14 on, a Conditional before.
    "torch._inductor.ir:Switch": ("Switch", "Conditional"),
    # The value of a size at compile time: optimization_hint from torch 2.11 on, size_hint on 2.10.
    "torch._inductor.sizevars:SizeVarAllocator.optimization_hint": (
        "SizeVarAllocator.optimization_hint",
        "SizeVarAllocator.size_hint",
    ),
}
"""All spellings of a name in its module, the newest first."""


def look_up(name: str) -> Any:  # noqa: ANN401  # a class or a function of torch
    """Return the class or function that `MODULE:NAME`, a key of `SPELLINGS`, is in this torch.

    Raises `MachineError` where this torch has none of the spellings.
    """
    module_name = name.partition(":")[0]
    module = importlib.import_module(module_name)
    for spelling in SPELLINGS[name]:
        try:
            return attrgetter(spelling)(module)
        except AttributeError:
            continue
    raise MachineError(
        f"torch {torch.__version__} has none of {', '.join(SPELLINGS[name])} in {module_name}: "
        "use another torch, or add its spelling to deepstack_harness/torch_compat/moved.py"
    )
