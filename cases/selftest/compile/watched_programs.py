"""Programs whose settings of the process, models or hooks change, and what watched programs are compiled by.

A region that its steps change is a specimen: `cases.specimens`. Each of these compiles one with
`skip_all_guards_unsafe`, calls it as a warm-up does, and then as serving does; their guards fail, and mean
nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Compile = Callable[[Any], Any]


def compile_without_guards(code: Any, backend: str = "eager") -> Any:  # noqa: ANN401  # as torch.compile
    return torch.compile(
        code, backend=backend, fullgraph=True, dynamic=True,
        options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
    )  # fmt: skip


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Layer(nn.Module):
    """A linear layer with a factor, an optional bias and a mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.factor = 2
        self.bias: Tensor | None = None
        self.scale = torch.ones(4)

    def forward(self, x: Tensor, payload: Tensor | None = None) -> Tensor:
        """Return hidden states (n, 4)."""
        hidden: Tensor = self.linear(x) * self.factor * self.scale
        if self.bias is not None:
            hidden = hidden + self.bias
        if payload is not None:
            hidden = hidden + payload
        return hidden


def rows(n: int = 3) -> Tensor:
    return torch.arange(n * 4, dtype=torch.float32).reshape(n, 4)


class Weighted(nn.Module):
    """A product with a weight of any dtype; int8 is a quantised weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4, 4), 2.0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, 4)."""
        weight = self.weight.to(x.dtype)
        return x @ (weight / 127 if self.weight.dtype == torch.int8 else weight)


def no_grad_and_inference(start: Compile) -> Iterator[None]:
    run = start(Layer())
    with torch.no_grad():
        run(rows())
    yield
    with torch.inference_mode():
        run(torch.ones(3, 4))


def a_hook_of_a_profiler(start: Compile) -> Iterator[None]:
    layer = Layer()
    run = start(layer)
    run(rows())
    yield
    hook = layer.linear.register_forward_hook(lambda *_: None)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        run(rows())
    hook.remove()


def a_second_model_of_the_class(start: Compile) -> Iterator[None]:
    first, second = start(Layer()), start(Layer())
    first(rows())
    second(rows())
    yield
    first(rows())
    second(rows())


def other_thread_count(start: Compile) -> Iterator[None]:
    run = start(Layer())
    run(rows())
    yield
    with threads(torch.get_num_threads() + 1):
        run(rows())


def other_settings_of_the_process(start: Compile) -> Iterator[None]:
    run = start(Layer())
    with torch.no_grad():
        run(rows())
        yield
        with default_dtype(torch.float64):
            run(rows())
    run(rows())


SPECIAL: tuple[Callable[[Compile], Iterator[None]], ...] = (
    no_grad_and_inference, a_hook_of_a_profiler, a_second_model_of_the_class, other_thread_count,
    other_settings_of_the_process,
)  # fmt: skip


@dataclass(frozen=True)
class Played:
    """Outputs of the calls of a program, compiled and uncompiled, in order."""

    compiled: list[Tensor]
    eager: list[Tensor]


def play(program: Callable[[Compile], Iterator[None]], start: Compile = compile_without_guards) -> Played:
    """Run a program compiled and uncompiled, from equal weights; an exception of a call is no output."""
    found: list[list[Tensor]] = []
    for way in (start, lambda code: code):
        torch.manual_seed(0)
        outputs: list[Tensor] = []

        def noting(code: Any, way: Compile = way, outputs: list[Tensor] = outputs) -> Any:  # noqa: ANN401
            run = way(code)

            def call(*args: Any, **kwargs: Any) -> None:
                output = run(*args, **kwargs)
                outputs.append(output.detach().clone().requires_grad_(output.requires_grad))

            return call

        for _ in program(noting):
            pass
        found.append(outputs)
    return Played(*found)
