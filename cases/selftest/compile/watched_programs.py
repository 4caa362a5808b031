"""Small programs whose guards are dropped, written from the contract: wrong ones, and a right twin of each.

Each compiles one region with `skip_all_guards_unsafe`, calls it as a warm-up does, and then as serving does.
A wrong one computes something else than the uncompiled code in a later call; `WRONG` names the source of the
guard that would have noticed. The right twin changes the same kind of input in a way that the graph follows.
`RIGHT` has further programs whose guards fail, and mean nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Compile = Callable[[Any], Any]


def compile_without_guards(code: Any) -> Any:  # noqa: ANN401  # what torch.compile takes and returns
    return torch.compile(
        code,
        backend="eager",
        fullgraph=True,
        dynamic=True,
        options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
    )


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


class Doubled(Tensor):
    """A subclass of Tensor that changes nothing."""


def rows(n: int = 3) -> Tensor:
    return torch.arange(n * 4, dtype=torch.float32).reshape(n, 4)


def absent_then_present(start: Compile) -> Iterator[None]:
    run = start(Layer())
    run(rows())
    yield
    run(rows(), payload=torch.ones(3, 4))


def present_then_absent(start: Compile) -> Iterator[None]:
    run = start(Layer())
    run(rows(), payload=torch.ones(3, 4))
    yield
    run(rows(), payload=torch.zeros(3, 4))
    run(rows())


def other_int_attribute(start: Compile) -> Iterator[None]:
    layer = Layer()
    run = start(layer)
    run(rows())
    yield
    layer.factor = 3
    run(rows())


def other_dtype(start: Compile) -> Iterator[None]:
    run = start(lambda x: x / 127 if x.dtype == torch.int8 else x / 32767)
    run(torch.arange(6, dtype=torch.int8))
    yield
    run(torch.arange(6, dtype=torch.int16))


def other_strides(start: Compile) -> Iterator[None]:
    run = start(lambda x: x.reshape(-1) if x.is_contiguous() else x.t().reshape(-1))
    run(rows(4))
    yield
    run(rows(4).t())


def tuple_grows(start: Compile) -> Iterator[None]:
    def add(parts: tuple[Tensor, ...]) -> Tensor:
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    run = start(add)
    run((rows(), rows()))
    yield
    run((rows(), rows(), rows()))


def dict_gets_a_key(start: Compile) -> Iterator[None]:
    def pick(parts: dict[str, Tensor]) -> Tensor:
        return parts["a"] + parts["b"] if "b" in parts else parts["a"]

    run = start(pick)
    run({"a": rows()})
    yield
    run({"a": rows(), "b": rows()})


def closure_changes(start: Compile) -> Iterator[None]:
    negated = False

    def turn(x: Tensor) -> Tensor:
        return -x if negated else x

    run = start(turn)
    run(rows())
    yield
    negated = True
    run(rows())


LIMIT = 5


def global_changes(start: Compile) -> Iterator[None]:
    global LIMIT  # noqa: PLW0603  # it is what this program is about

    def clamp(x: Tensor) -> Tensor:
        return x.clamp(max=LIMIT)

    LIMIT = 5
    run = start(clamp)
    run(rows())
    yield
    LIMIT = 7
    run(rows())


def attribute_appears(start: Compile) -> Iterator[None]:
    layer = Layer()
    run = start(layer)
    run(rows())
    yield
    layer.bias = torch.ones(4)
    run(rows())


class Mode(nn.Module):
    """A layer that scales its input while it trains."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, 4)."""
        return x * 3 if self.training else x


def other_module_mode(start: Compile) -> Iterator[None]:
    layer = Mode().eval()
    run = start(layer)
    run(rows())
    yield
    layer.train()
    run(rows())


class Weighted(nn.Module):
    """A product with a weight of any dtype; int8 is a quantised weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4, 4), 2.0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, 4)."""
        weight = self.weight.to(x.dtype)
        return x @ (weight / 127 if self.weight.dtype == torch.int8 else weight)


def parameter_replaced_by_a_quantised(start: Compile) -> Iterator[None]:
    layer = Weighted()
    run = start(layer)
    run(rows())
    yield
    layer.weight = nn.Parameter(torch.full((4, 4), 127, dtype=torch.int8), requires_grad=False)
    run(rows())


def other_subclass(start: Compile) -> Iterator[None]:
    run = start(lambda x: x * 2 if isinstance(x, Doubled) else x * 1)
    run(rows())
    yield
    run(rows().as_subclass(Doubled))


WRONG: dict[Callable[[Compile], Iterator[None]], str] = {
    absent_then_present: "L['payload']",
    present_then_absent: "L['payload']",
    other_int_attribute: ".factor",
    other_dtype: "L['x']",
    other_strides: "L['x']",
    tuple_grows: "L['parts']",
    dict_gets_a_key: "L['parts']",
    closure_changes: "negated",
    global_changes: "LIMIT",
    attribute_appears: ".bias",
    other_module_mode: ".training",
    parameter_replaced_by_a_quantised: "weight",
    other_subclass: "L['x']",
}
"""Wrong programs, and a part of the source of the guard that was dropped."""


def a_number_in_a_tensor(start: Compile) -> Iterator[None]:
    layer = Layer()
    run = start(layer)
    run(rows())
    yield
    layer.scale = torch.full((4,), 3.0)
    run(rows())


def cast_before_the_call(start: Compile) -> Iterator[None]:
    run = start(lambda x: x / 127 if x.dtype == torch.int8 else x / 32767)
    run(torch.arange(6, dtype=torch.int8))
    yield
    run(torch.arange(6, dtype=torch.int16).to(torch.int8))


def contiguous_before_the_call(start: Compile) -> Iterator[None]:
    run = start(lambda x: x.reshape(-1) if x.is_contiguous() else x.t().reshape(-1))
    run(rows(4))
    yield
    run(rows(4).t().contiguous())


def same_keys_in_another_dict(start: Compile) -> Iterator[None]:
    def pick(parts: dict[str, Tensor]) -> Tensor:
        return parts["a"] + parts["b"] if "b" in parts else parts["a"]

    run = start(pick)
    run({"a": rows(), "b": rows()})
    yield
    run({"a": rows(), "b": torch.ones(3, 4)})


def closure_of_a_tensor(start: Compile) -> Iterator[None]:
    sign = torch.ones(1)

    def turn(x: Tensor) -> Tensor:
        return x * sign

    run = start(turn)
    run(rows())
    yield
    sign.fill_(-1)
    run(rows())


OTHER = 5


def another_global_changes(start: Compile) -> Iterator[None]:
    global OTHER  # noqa: PLW0603  # it is what this program is about

    def clamp(x: Tensor) -> Tensor:
        return x.clamp(max=LIMIT)

    run = start(clamp)
    run(rows())
    yield
    OTHER = 7
    run(rows())


def mode_that_nothing_reads(start: Compile) -> Iterator[None]:
    layer = Layer().eval()
    run = start(layer)
    run(rows())
    yield
    layer.train()
    run(rows())


def parameter_replaced_by_an_equal_one(start: Compile) -> Iterator[None]:
    layer = Weighted()
    run = start(layer)
    run(rows())
    yield
    layer.weight = nn.Parameter(torch.full((4, 4), 5.0), requires_grad=False)
    run(rows())


def parameter_in_place_of_a_tensor(start: Compile) -> Iterator[None]:
    run = start(lambda x: x * 2 if isinstance(x, Doubled) else x * 1)
    run(rows())
    yield
    run(nn.Parameter(rows(), requires_grad=False))


def same_calls(start: Compile) -> Iterator[None]:
    run = start(Layer())
    run(rows())
    yield
    for _ in range(3):
        run(rows())


def other_row_counts(start: Compile) -> Iterator[None]:
    run = start(Layer())
    run(rows(8))
    yield
    for n in (1, 2, 5, 13):
        run(rows(n))


def zeros_in_place_of_none(start: Compile) -> Iterator[None]:
    run = start(Layer())
    run(rows(), payload=torch.zeros(3, 4))
    yield
    run(rows(), payload=torch.ones(3, 4))


def other_addresses(start: Compile) -> Iterator[None]:
    run = start(Layer())
    run(rows())
    yield
    kept = [rows() for _ in range(4)]
    for each in kept:
        run(each)


def weights_loaded_in_place(start: Compile) -> Iterator[None]:
    layer = Layer()
    run = start(layer)
    run(rows())
    yield
    with torch.no_grad():
        layer.linear.weight.copy_(torch.ones(4, 4))
    run(rows())


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
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        run(rows())
    finally:
        torch.set_num_threads(before)


def a_buffer_written_in_place(start: Compile) -> Iterator[None]:
    layer = Layer()
    run = start(layer)
    run(rows())
    yield
    layer.scale.fill_(3.0)
    run(rows())


def other_settings_of_the_process(start: Compile) -> Iterator[None]:
    run = start(Layer())
    with torch.no_grad():
        run(rows())
        yield
        torch.set_default_dtype(torch.float64)
        try:
            run(rows())
        finally:
            torch.set_default_dtype(torch.float32)
    run(rows())


def one_token_decodes(start: Compile) -> Iterator[None]:
    run = start(Layer())
    run(rows(8), payload=torch.zeros(8, 4))
    yield
    for _ in range(3):
        run(rows(1), payload=torch.ones(1, 4))


RIGHT: tuple[Callable[[Compile], Iterator[None]], ...] = (
    zeros_in_place_of_none, a_number_in_a_tensor, cast_before_the_call, contiguous_before_the_call,
    same_keys_in_another_dict, closure_of_a_tensor, another_global_changes, mode_that_nothing_reads,
    parameter_replaced_by_an_equal_one, parameter_in_place_of_a_tensor,
    same_calls, other_row_counts, other_addresses, weights_loaded_in_place, no_grad_and_inference,
    a_hook_of_a_profiler, a_second_model_of_the_class, other_thread_count, a_buffer_written_in_place,
    other_settings_of_the_process, one_token_decodes,
)  # fmt: skip
"""Right programs: first the twins of the wrong ones, kind by kind."""


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
