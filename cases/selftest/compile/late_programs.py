"""Programs whose guards are dropped, and that go wrong late: after calls in which every guard held.

The form is that of `watched_programs`. A watch that samples the calls does not see what these do.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from cases.selftest.compile.watched_programs import Compile, Layer, Mode, Weighted, rows

_EARLY = 12
"""Calls before the one that is wrong."""


def compile_by_aot(code: Any) -> Any:  # noqa: ANN401  # what torch.compile takes and returns
    """Compile with a backend that puts settings of the process into the graph, without guards."""
    return torch.compile(
        code,
        backend="aot_eager",
        fullgraph=True,
        dynamic=True,
        options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
    )


def compile_kernels(code: Any) -> Any:  # noqa: ANN401
    """Compile with Inductor, without guards."""
    return torch.compile(
        code, fullgraph=True, dynamic=True,
        options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
    )  # fmt: skip


def settle(run: Any, *args: object) -> None:  # noqa: ANN401
    for _ in range(_EARLY):
        run(*args)


def size_branch(start: Compile) -> Iterator[None]:
    run = start(lambda x: x * 2 if x.shape[0] > 100 else x)
    settle(run, rows(8))
    yield
    run(rows(200))


def branch_on_the_number_of_elements(start: Compile) -> Iterator[None]:
    run = start(lambda x: x * 2 if x.numel() < 24 else x)
    settle(run, rows(8))
    yield
    run(rows(5))


def branch_on_two_sizes(start: Compile) -> Iterator[None]:
    run = start(lambda x, y: x.sum(0) - y.sum(0) if x.shape[0] < y.shape[0] else y.sum(0))
    settle(run, rows(8), rows(5))
    yield
    run(rows(5), rows(8))


def branch_on_one_row(start: Compile) -> Iterator[None]:
    """The only guard is the bound of torch's 0/1 specialisation."""
    run = start(lambda x: x - 1 if x.shape[0] == 1 else x)
    settle(run, rows(8))
    yield
    run(rows(1))


def second_of_two_size_branches(start: Compile) -> Iterator[None]:
    def double_many(x: Tensor) -> Tensor:
        x = x + 0 if x.shape[0] > 10 else x * 1
        return x * 2 if x.shape[0] > 100 else x

    run = start(double_many)
    run(rows(8))
    settle(run, rows(20))
    yield
    run(rows(200))


def int_argument(start: Compile) -> Iterator[None]:
    run = start(lambda x, n: x * 2 if n > 100 else x)
    settle(run, rows(), 5)
    yield
    run(rows(), 200)


def list_length(start: Compile) -> Iterator[None]:
    run = start(lambda parts: torch.stack(parts).sum(0))
    settle(run, [rows(), rows()])
    yield
    run([rows(), rows(), rows()])


def key_of_a_dict(start: Compile) -> Iterator[None]:
    run = start(lambda parts: parts["a"] + parts["b"] if "b" in parts else parts["a"])
    settle(run, {"a": rows()})
    yield
    run({"a": rows(), "b": rows()})


def order_of_a_dict(start: Compile) -> Iterator[None]:
    def chain(parts: dict[str, Tensor]) -> Tensor:
        total = torch.zeros(3, 4)
        for part in parts.values():
            total = total * 2 + part
        return total

    run = start(chain)
    settle(run, {"a": rows(), "b": torch.ones(3, 4)})
    yield
    run({"b": torch.ones(3, 4), "a": rows()})


class Around(nn.Module):
    """A layer and modules of torch inside another module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Layer()
        self.gelu = nn.GELU()
        self.activation: Callable[[Tensor], Tensor] = torch.relu

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, 4)."""
        return self.activation(self.gelu(self.inner(x)))


def attribute_of_a_submodule(start: Compile) -> Iterator[None]:
    around = Around()
    run = start(around)
    settle(run, rows())
    yield
    around.inner.factor = -3
    run(rows())


def attribute_of_a_module_of_torch(start: Compile) -> Iterator[None]:
    around = Around()
    run = start(around)
    settle(run, rows())
    yield
    around.gelu.approximate = "tanh"
    run(rows())


def function_in_an_attribute(start: Compile) -> Iterator[None]:
    around = Around()
    run = start(around)
    settle(run, rows())
    yield
    around.activation = torch.tanh
    run(rows())


def training_mode(start: Compile) -> Iterator[None]:
    layer = Mode().eval()
    run = start(layer)
    settle(run, rows())
    yield
    layer.train()
    run(rows())


def quantised_parameter(start: Compile) -> Iterator[None]:
    layer = Weighted()
    run = start(layer)
    settle(run, rows())
    yield
    layer.weight = nn.Parameter(torch.full((4, 4), 127, dtype=torch.int8), requires_grad=False)
    run(rows())


def after_a_failure_that_means_nothing(start: Compile) -> Iterator[None]:
    layer = Layer().eval()
    run = start(layer)
    run(rows())
    layer.train()
    settle(run, rows())
    yield
    layer.factor = 3
    run(rows())


LATE_LIMIT = 5


def late_global(start: Compile) -> Iterator[None]:
    global LATE_LIMIT  # noqa: PLW0603  # it is what this program is about
    LATE_LIMIT = 5
    run = start(lambda x: x.clamp(max=LATE_LIMIT))
    settle(run, rows())
    yield
    LATE_LIMIT = 7
    run(rows())


def late_strides(start: Compile) -> Iterator[None]:
    run = start(lambda x: x.reshape(-1) if x.is_contiguous() else x.t().reshape(-1))
    settle(run, rows(4))
    yield
    run(rows(4).t())


def late_requires_grad(start: Compile) -> Iterator[None]:
    run = start(lambda x: x * 2 if x.requires_grad else x)
    settle(run, rows())
    yield
    run(rows().requires_grad_())


def one_tensor_then_two(start: Compile) -> Iterator[None]:
    run = start(lambda x, memory: x + 2 * memory)
    same = rows()
    settle(run, same, same)
    yield
    run(same, torch.ones(3, 4))


def two_tensors_then_one(start: Compile) -> Iterator[None]:
    run = start(lambda x, memory: x * 3 if x is memory else x + memory)
    same = rows()
    settle(run, same, torch.ones(3, 4))
    yield
    run(same, same)


def default_dtype(start: Compile) -> Iterator[None]:
    run = start(lambda x: x * 2 if torch.get_default_dtype() == torch.float64 else x)
    settle(run, rows())
    yield
    torch.set_default_dtype(torch.float64)
    try:
        run(torch.ones(3, 4, dtype=torch.float32))
    finally:
        torch.set_default_dtype(torch.float32)


LATE_WRONG: dict[Callable[[Compile], Iterator[None]], str] = {
    size_branch: "x",
    branch_on_the_number_of_elements: "x",
    branch_on_two_sizes: "x",
    branch_on_one_row: "x",
    second_of_two_size_branches: "x",
    int_argument: "n",
    list_length: "parts",
    key_of_a_dict: "parts",
    order_of_a_dict: "parts",
    attribute_of_a_submodule: "factor",
    attribute_of_a_module_of_torch: "approximate",
    function_in_an_attribute: "activation",
    training_mode: "training",
    quantised_parameter: "weight",
    after_a_failure_that_means_nothing: "factor",
    late_global: "LATE_LIMIT",
    late_strides: "x",
    late_requires_grad: "x",
    one_tensor_then_two: "x and memory",
    two_tensors_then_one: "x and memory",
    default_dtype: "default dtype",
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
    torch.set_default_dtype(torch.float64)
    try:
        run(rows())
    finally:
        torch.set_default_dtype(torch.float32)


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


def sizes_on_the_same_side(start: Compile) -> Iterator[None]:
    run = start(lambda x: x * 2 if x.shape[0] > 100 else x)
    settle(run, rows(8))
    yield
    for n in (2, 50, 99, 100):
        run(rows(n))


def one_row_without_a_branch(start: Compile) -> Iterator[None]:
    run = start(Layer())
    settle(run, rows(8))
    yield
    settle(run, rows(1))


def one_tensor_and_another(start: Compile) -> Iterator[None]:
    run = start(lambda x, memory: x + 2 * memory)
    same, other = rows(), torch.ones(3, 4)
    settle(run, same, same)
    yield
    run(other, other)


def two_tensors_that_become_one(start: Compile) -> Iterator[None]:
    run = start(lambda x, memory: x + 2 * memory)
    same = rows()
    settle(run, same, torch.ones(3, 4))
    yield
    run(same, same)


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


def same_numbers_in_another_list(start: Compile) -> Iterator[None]:
    run = start(lambda x, by: x * by[0] + by[1])
    settle(run, rows(), [2.0, 3.0])
    yield
    run(rows(), [2.0, 3.0])


def settings_of_kernels(start: Compile) -> Iterator[None]:
    run = start(Layer())
    settle(run, rows())
    yield
    torch.use_deterministic_algorithms(True)
    try:
        run(rows())
    finally:
        torch.use_deterministic_algorithms(False)


def a_mode_of_an_unread_submodule(start: Compile) -> Iterator[None]:
    around = Around().eval()
    run = start(around)
    settle(run, rows())
    yield
    around.inner.train()
    settle(run, rows())


LATE_RIGHT = (
    sizes_on_the_same_side, one_row_without_a_branch, one_tensor_and_another, two_tensors_that_become_one,
    no_grad_and_nothing_that_requires_it, no_grad_after_grad, autocast_in_all_calls,
    same_numbers_in_another_list, settings_of_kernels, a_mode_of_an_unread_submodule,
)  # fmt: skip
"""Right programs, with both backends."""
