"""Small programs that capture a graph and replay it: wrong ones, and right ones, written from the contract.

Each captures in its first calls, and replays in the later ones. In a wrong one a replay computes something
else than the uncompiled code would; `WRONG` names the input that differs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Step = Callable[..., Tensor]
"""`step(size, *args, **kwargs)`: None runs without a graph; else a graph for that size, and its replays."""
Start = Callable[[Any], Step]


@dataclass
class Proxies:
    """Tensors by name, as pipeline stages hand them on."""

    tensors: dict[str, Tensor] = field(default_factory=dict)


class Net(nn.Module):
    """A layer with an optional payload, a list of rows of its own, a counter and a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 2.0), requires_grad=False)
        self.rows: list[Tensor] | None = [torch.zeros(3, 4)]
        self.side: Tensor | None = None
        self.set_rows = 0
        self.seen = 0

    def own_rows(self) -> Tensor | None:
        """Return the rows of a step, (3, 4), where there are any."""
        return self.rows[0] if self.rows and self.set_rows else None

    def forward(
        self,
        x: Tensor,
        payload: Tensor | None = None,
        scale: int = 1,
        parts: Any = None,  # noqa: ANN401
    ) -> Tensor:
        """Return (3, 4)."""
        out = x * self.weight * scale
        for each in (payload, self.side, self.own_rows()):
            if each is not None:
                out = out + each
        if isinstance(parts, Proxies):
            parts = parts.tensors
        for part in parts.values() if isinstance(parts, dict) else parts or ():
            out = out + part
        return out


def x() -> Tensor:
    return torch.ones(3, 4)


def absent_then_present(start: Start) -> None:
    step, given = start(Net()), x()
    step(3, given)
    step(3, given, payload=torch.ones(3, 4))


def present_then_absent(start: Start) -> None:
    step, given = start(Net()), x()
    step(3, given, payload=torch.ones(3, 4))
    step(3, given)


def fresh_tensor(start: Start) -> None:
    step, first, second = start(Net()), x(), torch.zeros(3, 4)
    step(3, first)
    step(3, second)


def fresh_keyword(start: Start) -> None:
    step, given = start(Net()), x()
    first, second = torch.zeros(3, 4), torch.ones(3, 4)
    step(3, given, payload=first)
    step(3, given, payload=second)


def positional_then_keyword(start: Start) -> None:
    step, given = start(Net()), x()
    first, second = torch.zeros(3, 4), torch.ones(3, 4)
    step(3, given, first)
    step(3, given, payload=second)


def fresh_member(start: Start) -> None:
    step, given = start(Net()), x()
    first, second = torch.zeros(3, 4), torch.ones(3, 4)
    step(3, given, parts=Proxies({"residual": first}))
    step(3, given, parts=Proxies({"residual": second}))


def another_member(start: Start) -> None:
    step, given, part = start(Net()), x(), torch.ones(3, 4)
    step(3, given, parts={"a": part})
    step(3, given, parts={"a": part, "b": torch.ones(3, 4)})


def members_appear(start: Start) -> None:
    step, given = start(Net()), x()
    step(3, given)
    step(3, given, parts=Proxies({"residual": torch.ones(3, 4)}))


def swapped_members(start: Start) -> None:
    step, given = start(Net()), x()
    first, second = torch.zeros(3, 4), torch.ones(3, 4)
    step(3, given, parts=(first, first))
    step(3, given, parts=(first, second))


def other_rows_of_one_buffer(start: Start) -> None:
    buffer, step = torch.arange(24.0).reshape(6, 4), start(Net())
    step(3, buffer[:3])
    step(3, buffer[3:])


def other_strides(start: Start) -> None:
    buffer, step = torch.arange(16.0).reshape(4, 4), start(Net())
    step(3, buffer)
    step(3, buffer.t())


def other_number(start: Start) -> None:
    step, given = start(Net()), x()
    step(3, given, scale=1)
    step(3, given, scale=2)


def attribute_appears(start: Start) -> None:
    net, given = Net(), x()
    step = start(net)
    step(3, given)
    net.side = torch.ones(3, 4)
    step(3, given)


def counter_of_a_method(start: Start) -> None:
    net, given = Net(), x()
    net.rows = [torch.ones(3, 4)]
    step = start(net)
    step(3, given)
    net.set_rows = 3
    step(3, given)


def rows_are_allocated_anew(start: Start) -> None:
    net, given = Net(), x()
    net.set_rows = 3
    step = start(net)
    step(3, given)
    net.rows = [torch.ones(3, 4)]
    step(3, given)


def parameter_is_replaced(start: Start) -> None:
    net, given = Net(), x()
    step = start(net)
    step(3, given)
    net.weight = nn.Parameter(torch.full((4,), 3.0), requires_grad=False)
    step(3, given)


class Around(nn.Module):
    """A model whose layer has the state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Net()

    def forward(self, x: Tensor) -> Tensor:
        """Return (3, 4)."""
        out: Tensor = self.layer(x)
        return out


def attribute_of_a_layer(start: Start) -> None:
    model, given = Around(), x()
    step = start(model)
    step(3, given)
    model.layer.side = torch.ones(3, 4)
    step(3, given)


def closure_changes(start: Start) -> None:
    factor, given = 2, x()

    def turn(x: Tensor) -> Tensor:
        return x * factor

    step = start(turn)
    step(3, given)
    factor = 3
    step(3, given)


WRONG: dict[Callable[[Start], None], tuple[str, str]] = {
    absent_then_present: ("payload", "presence"),
    present_then_absent: ("payload", "presence"),
    fresh_tensor: ("x", "address"),
    fresh_keyword: ("payload", "address"),
    positional_then_keyword: ("payload", "address"),
    fresh_member: ("parts.tensors['residual']", "address"),
    another_member: ("parts['b']", "presence"),
    members_appear: ("parts", "presence"),
    swapped_members: ("parts[1]", "address"),
    other_rows_of_one_buffer: ("x", "address"),
    other_strides: ("x", "stride"),
    other_number: ("scale", "value"),
    attribute_appears: ("self.side", "presence"),
    counter_of_a_method: ("self.set_rows", "value"),
    rows_are_allocated_anew: ("self.rows[0]", "address"),
    parameter_is_replaced: ("self.weight", "address"),
    attribute_of_a_layer: ("self.layer.side", "presence"),
    closure_changes: ("outer factor", "value"),
}
"""Wrong programs, and the input that differs, with what differs of it."""


def static_inputs(start: Start) -> None:
    step, given, payload = start(Net()), x(), torch.zeros(3, 4)
    step(3, given, payload)
    for number in range(3):
        given.fill_(number)
        payload.fill_(number)
        step(3, given, payload=payload)


def a_default_is_said(start: Start) -> None:
    step, given = start(Net()), x()
    step(3, given)
    step(3, given, None, scale=1, parts=None)


def what_the_code_does_not_name(start: Start) -> None:
    net, given = Net(), x()
    step = start(net)
    step(3, given)
    net.seen += 1
    net.extra = torch.ones(2)
    step(3, given)


def steps_without_a_graph(start: Start) -> None:
    step, given = start(Net()), x()
    step(3, given)
    step(None, x(), payload=torch.ones(3, 4))
    step(3, given)


def two_sizes(start: Start) -> None:
    step, buffer = start(Net()), torch.ones(8, 4)
    for _ in range(2):
        step(8, buffer)
        step(3, buffer[:3])


def weights_loaded_in_place(start: Start) -> None:
    net, given = Net(), x()
    step = start(net)
    step(3, given)
    net.weight.data.copy_(torch.ones(4))
    step(3, given)


def another_dict_of_the_same_tensors(start: Start) -> None:
    step, given, parts = start(Net()), x(), [torch.ones(3, 4), torch.ones(3, 4)]
    step(3, given, parts=list(parts))
    step(3, given, parts=list(parts))
    proxies = Proxies({"a": parts[0]})
    step(4, given, parts=proxies)
    step(4, given, parts=Proxies(dict(proxies.tensors)))


def rows_written_in_place(start: Start) -> None:
    net, given = Net(), x()
    net.set_rows = 3
    step = start(net)
    step(3, given)
    net.rows[0].fill_(5.0)  # type: ignore[index]
    step(3, given)


def a_second_model_of_the_class(start: Start) -> None:
    first, second, given, other = start(Net()), start(Net()), x(), x()
    for _ in range(2):
        first(3, given)
        second(3, other)


def a_captured_layer_in_a_captured_model(start: Start) -> None:
    model, given = Around(), x()
    inner = start(model.layer.forward)
    vars(model.layer)["forward"] = lambda x: inner(3, x)
    outer = start(model)
    for _ in range(3):
        outer(None, given)  # the pieces alone are captured


class Keeps(nn.Module):
    """A layer that keeps what it computed last, and tables that it made, by their size."""

    last: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[int, Tensor] = {}
        self.last = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the shape of the input."""
        if len(x) not in self.tables:
            self.tables[len(x)] = torch.arange(len(x))[:, None] + 1
        self.last = x * self.tables[len(x)]
        return self.last


def what_the_code_keeps_itself(start: Start) -> None:
    step, buffer = start(Keeps()), torch.ones(8, 4)
    for _ in range(3):
        for size in (8, 3):
            step(size, buffer[:size])


RIGHT: tuple[Callable[[Start], None], ...] = (
    static_inputs, a_default_is_said, what_the_code_does_not_name, steps_without_a_graph, two_sizes,
    weights_loaded_in_place, another_dict_of_the_same_tensors, rows_written_in_place,
    a_second_model_of_the_class, a_captured_layer_in_a_captured_model, what_the_code_keeps_itself,
)  # fmt: skip
"""Right programs: each replay computes what the uncompiled code would."""
