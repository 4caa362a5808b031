"""Programs whose settings of the process change late: after calls in which every guard held.

The form is that of `watched_programs`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from cases.selftest.compile.watched_programs import (
    Compile,
    Layer,
    default_dtype,
    rows,
)

_EARLY = 12
"""Calls before the one that is wrong."""


def settle(run: Any, *args: object) -> None:  # noqa: ANN401
    for _ in range(_EARLY):
        run(*args)


def int_argument(start: Compile) -> Iterator[None]:
    run = start(lambda x, n: x * 2 if n > 100 else x)
    settle(run, rows(), 5)
    yield
    run(rows(), 200)


def number_of_the_default_dtype(start: Compile) -> Iterator[None]:
    run = start(lambda x: x * 2 if torch.get_default_dtype() == torch.float64 else x)
    settle(run, rows())
    yield
    with default_dtype(torch.float64):
        run(torch.ones(3, 4, dtype=torch.float32))


LATE_WRONG: dict[Callable[[Compile], Iterator[None]], str] = {
    int_argument: "n",
    number_of_the_default_dtype: "default dtype",
}
"""Wrong programs, and a part of the name of what they change."""


def gradients_after_no_grad(start: Compile) -> Iterator[None]:
    run = start(Layer())
    with torch.no_grad():
        settle(run, rows())
    yield
    run(rows())


def autocast(start: Compile) -> Iterator[None]:
    run = start(Layer())
    settle(run, rows() / 7)
    yield
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run(rows() / 7)


def no_autocast(start: Compile) -> Iterator[None]:
    run = start(Layer())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        settle(run, rows())
    yield
    run(rows())


def new_tensor_of_the_default_dtype(start: Compile) -> Iterator[None]:
    run = start(lambda x: x * torch.ones(4))
    settle(run, rows())
    yield
    with default_dtype(torch.float64):
        run(rows())


class Negates(TorchFunctionMode):
    """A mode that computes the negative of each product."""

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return -out if getattr(func, "__name__", "") in {"mul", "__mul__"} else out


def function_mode(start: Compile) -> Iterator[None]:
    run = start(lambda x: x * 3)
    settle(run, rows())
    yield
    with Negates():
        run(rows())


AOT_WRONG: dict[Callable[[Compile], Iterator[None]], str] = {
    gradients_after_no_grad: "grad mode",
    no_autocast: "autocast",
    function_mode: "torch function modes",
}
"""Programs that are wrong where the backend puts settings of the process into its graph."""
INDUCTOR_WRONG: dict[Callable[[Compile], Iterator[None]], str] = {
    autocast: "autocast",
    new_tensor_of_the_default_dtype: "default dtype",
}
"""Programs that are wrong where kernels are compiled; eager kernels follow these settings."""


def no_grad_and_nothing_that_requires_it(start: Compile) -> Iterator[None]:
    run = start(lambda x: x * 2)
    with torch.no_grad():
        settle(run, rows())
    yield
    run(rows())


def no_grad_after_grad(start: Compile) -> Iterator[None]:
    run = start(Layer())
    settle(run, rows())
    yield
    with torch.no_grad():
        run(rows())


def autocast_in_all_calls(start: Compile) -> Iterator[None]:
    run = start(Layer())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        settle(run, rows())
        yield
        run(rows())


def settings_of_kernels(start: Compile) -> Iterator[None]:
    run = start(Layer())
    settle(run, rows())
    yield
    torch.use_deterministic_algorithms(True)
    try:
        run(rows())
    finally:
        torch.use_deterministic_algorithms(False)


LATE_RIGHT = (
    no_grad_and_nothing_that_requires_it, no_grad_after_grad, autocast_in_all_calls, settings_of_kernels,
)  # fmt: skip
"""Right programs, with both backends."""
