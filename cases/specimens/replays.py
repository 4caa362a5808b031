"""Regions that are captured and replayed: what a replay reads that the capture did not, and what it may."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cases.specimens.kit import Made, specimen
from cases.specimens.layers import Change, assigned
from deepstack_harness import Call

FULL = "eager/full"


@dataclass
class Proxies:
    """Tensors by name, as pipeline stages send them."""

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
        for tensor in (payload, self.side, self.own_rows()):
            if tensor is not None:
                out = out + tensor
        if isinstance(parts, Proxies):
            parts = parts.tensors
        for part in parts.values() if isinstance(parts, dict) else parts or ():
            out = out + part
        return out


def ones(n: int = 3) -> Tensor:
    return torch.ones(n, 4)


def two_calls(first: dict[str, Any], second: dict[str, Any]) -> Made:
    """Return a program that makes two calls on one static tensor."""
    x = ones()
    return Net(), [{"x": x, **first}, {"x": x, **second}]


def between(change: Change, *early: Change, region: nn.Module | None = None) -> Made:
    """Return a program whose region is changed between two equal calls."""
    x = ones()
    return region or Net(), [*early, (x,), change, (x,)]


@specimen("I1", "payload", FULL, fact="presence")
def absent_then_present() -> Made:
    return two_calls({}, {"payload": ones()})


@specimen("I1", "payload", FULL, fact="presence")
def present_then_absent() -> Made:
    return two_calls({"payload": ones()}, {})


@specimen("I2", "payload", FULL, fact="address")
def positional_then_keyword() -> Made:
    x = ones()
    return Net(), [Call(x, torch.zeros(3, 4)), Call(x, payload=ones())]


@specimen("I2", "parts", FULL, fact="address")
def fresh_member() -> Made:
    first, second = torch.zeros(3, 4), ones()
    return two_calls({"parts": Proxies({"residual": first})}, {"parts": Proxies({"residual": second})})


@specimen("I1", "parts", FULL, fact="presence")
def another_member() -> Made:
    part = ones()
    return two_calls({"parts": {"a": part}}, {"parts": {"a": part, "b": ones()}})


@specimen("I1", "parts", FULL, fact="presence")
def members_appear() -> Made:
    return two_calls({}, {"parts": Proxies({"residual": ones()})})


@specimen("I2", "parts[1]", FULL, fact="address")
def swapped_members() -> Made:
    first = torch.zeros(3, 4)
    return two_calls({"parts": (first, first)}, {"parts": (first, ones())})


@specimen("I2", "x", FULL, fact="address")
def other_rows_of_one_buffer() -> Made:
    buffer = torch.arange(24.0).reshape(6, 4)
    return Net(), [(buffer[:3],), (buffer[3:],)]


@specimen("I2", "x", FULL, fact="stride")
def other_strides() -> Made:
    buffer = torch.arange(16.0).reshape(4, 4)
    net = Net()
    net.rows = None
    return net, [(buffer,), (buffer.t(),)]


@specimen("I1", "scale", FULL, fact="value")
def other_number() -> Made:
    return two_calls({"scale": 1}, {"scale": 2})


@specimen("I1", "side", FULL, fact="presence")
def attribute_appears() -> Made:
    return between(assigned("side", ones()))


@specimen("I1", "set_rows", FULL, fact="value")
def counter_of_a_method() -> Made:
    return between(assigned("set_rows", 3), assigned("rows", [ones()]))


@specimen("I2", "rows[0]", FULL, fact="address")
def rows_are_allocated_anew() -> Made:
    return between(assigned("rows", [ones()]), assigned("set_rows", 3))


@specimen("I2", "weight", FULL, fact="address")
def parameter_is_replaced() -> Made:
    return between(assigned("weight", nn.Parameter(torch.full((4,), 3.0), requires_grad=False)))


@specimen("I1", ".side", FULL, fact="presence")
def attribute_of_a_layer() -> Made:
    return between(assigned("0.side", ones()), region=nn.Sequential(Net()))


@specimen("I1", "factor", FULL, fact="value")
def closure_changes() -> Made:
    factor, x = 2, ones()

    def turn(x: Tensor) -> Tensor:
        return x * factor

    def change(_region: object) -> None:
        nonlocal factor
        factor = 3

    return turn, [(x,), change, (x,)]


@specimen(arms=FULL)
def static_inputs() -> Made:
    x, payload = ones(), torch.zeros(3, 4)

    def fill(_region: object) -> None:
        x.fill_(3)
        payload.fill_(5)

    return Net(), [Call(x, payload), fill, Call(x, payload=payload)]


@specimen(arms=FULL)
def a_default_is_written() -> Made:
    x = ones()
    return Net(), [Call(x), lambda _region: x.fill_(2), Call(x, None, scale=1, parts=None)]


@specimen(arms=FULL)
def what_the_code_does_not_name() -> Made:
    x = ones()

    def change(net: Net) -> None:
        x.fill_(2)
        net.seen += 1
        net.extra = torch.ones(2)

    return Net(), [(x,), change, (x,)]


@specimen(arms=FULL, warm_up=2)
def two_sizes() -> Made:
    buffer = ones(8)
    calls = [(buffer,), (buffer[:3],)]
    net = Net()
    net.rows = None
    return net, [*calls, lambda _region: buffer.fill_(2), *calls]


@specimen(arms=FULL)
def weights_loaded_in_place() -> Made:
    return between(lambda net: net.weight.data.copy_(torch.ones(4)))


@specimen(arms=FULL)
def another_list_of_the_same_tensors() -> Made:
    parts = [ones(), ones()]
    x = ones()
    calls = [{"x": x, "parts": list(parts)} for _ in range(2)]
    return Net(), [calls[0], lambda _region: parts[1].fill_(2), calls[1]]


@specimen(arms=FULL)
def other_proxies_of_the_same_tensors() -> Made:
    part, x = ones(), ones()
    calls = [{"x": x, "parts": Proxies({"a": part})} for _ in range(2)]
    return Net(), [calls[0], lambda _region: part.fill_(2), calls[1]]


@specimen(arms=FULL)
def rows_written_in_place() -> Made:
    return between(lambda net: net.rows[0].fill_(5.0), assigned("set_rows", 3))


class Keeps(nn.Module):
    """A layer that stores what it computed last, and tables that it made, by their size."""

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


@specimen("I4", "last", FULL, warm_up=2)
def what_the_code_keeps_itself() -> Made:
    buffer = ones(8)
    calls = [(buffer,), (buffer[:3],)]
    return Keeps(), [*calls, lambda _region: buffer.fill_(2), *calls[:1], *calls[:1]]


@specimen(arms=FULL)
def scratch_of_one_size() -> Made:
    """Each run binds another tensor to an attribute, and a replay writes the one of its capture."""
    x = ones()
    return Keeps(), [(x,), lambda _region: x.fill_(2), (x,), (x,)]


class Table(nn.Module):
    """A layer with a table that it makes where there is none that is long enough, and notes about a run."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.zeros(0)
        self.length = 0
        self.is_ready = self.is_running = False
        self.rows_of_last_run: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, 4)."""
        self.is_running = True
        if not self.is_ready or self.length < len(x):
            self.length = len(x)
            self.table = torch.arange(len(x))[:, None] + 1.0
            self.is_ready = True
        self.rows_of_last_run = len(x)
        out = x * self.table[: len(x)]
        self.is_running = False
        return out


@specimen(arms=FULL)
def what_each_run_leaves_equal() -> Made:
    """A flag, a length and a table of the first run, a number that is always the same, a flag put back."""
    x = ones()
    return Table(), [(x,), lambda _region: x.fill_(2), (x,), (x,)]


@specimen("I4", "self.rows_of_last_run", FULL, warm_up=2)
def number_of_the_last_size() -> Made:
    """A number that each run writes, and replays of two sizes do not."""
    buffer = ones(8)
    calls = [(buffer,), (buffer[:3],)]
    return Table(), [*calls, *calls]
