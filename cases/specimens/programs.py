"""Small programs with a side input, written from the text of the promises I1, I2 and I4.

With torch's own guards all of them are right, those excepted that are captured and replayed.
"""

import enum
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from cases.specimens.kit import Made, specimen
from deepstack_harness import Call

H = 8


def rows(count: int, seed: int = 0) -> Tensor:
    """Return (count, H) float32."""
    return torch.randn(count, H, generator=torch.Generator().manual_seed(100 * count + seed))


class Scorer(nn.Module):
    """Linear layer with an optional mask, a factor, a mode and a table that steps may change."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(H, H)
        self.factor = 1.0
        self.bias_rows: Tensor | None = None
        self.calls = 0
        self.options = {"shift": 0}
        self.mode = "plain"

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Score (n, H) -> (n, H)."""
        x = self.layer(x) * self.factor + self.options["shift"]
        if self.bias_rows is not None:
            x = x + self.bias_rows
        if self.mode == "sharp":
            x = x * x
        return x if mask is None else x + mask


@specimen("I1", "mask")
def optional_tensor() -> Made:
    """A mask that is absent in the warm-up, given by keyword later."""
    return Scorer(), [Call(rows(4)), Call(rows(4, 1), mask=rows(4, 2))]


@specimen("I1", "mask")
def present_then_none() -> Made:
    """A mask of the warm-up that is None later."""
    return Scorer(), [Call(rows(4), rows(4, 1)), Call(rows(4, 2), None)]


def sum_levels(x: Tensor, levels: Sequence[Tensor] = ()) -> Tensor:
    """Add levels (n, H) to x (n, H)."""
    for level in levels:
        x = x + level
    return x


@specimen("I1", "levels")
def empty_container() -> Made:
    """Levels that are () in the warm-up."""
    return sum_levels, [Call(rows(3)), Call(rows(3), levels=(rows(3, 1), rows(3, 2)))]


@specimen("I1", "levels")
def longer_list() -> Made:
    """A list with one level more than in the warm-up."""
    return sum_levels, [Call(rows(3), [rows(3, 1)]), Call(rows(3), [rows(3, 1), rows(3, 2)])]


def from_dict(x: Tensor, extra: dict[str, Tensor]) -> Tensor:
    """Add what the dict has under `image`."""
    return x + extra["image"] if "image" in extra else x * 2


@specimen("I1", "extra")
def new_key() -> Made:
    """A key of a dict that the warm-up did not have."""
    return from_dict, [Call(rows(2), {}), Call(rows(2), {"image": rows(2, 1)})]


def scaled(x: Tensor, times: int) -> Tensor:
    """Multiply by a Python number."""
    return x * times


@specimen("I1", "times")
def python_int() -> Made:
    """A number that changes."""
    return scaled, [Call(rows(2), 3), Call(rows(2), times=5)]


class Kind(enum.Enum):
    """A mode as an enum."""

    SUM = 1
    MEAN = 2


def reduce_rows(x: Tensor, kind: Kind) -> Tensor:
    """Reduce (n, H) -> (H,)."""
    return x.sum(0) if kind is Kind.SUM else x.mean(0)


@specimen("I1", "kind")
def enum_value() -> Made:
    """An enum that changes."""
    return reduce_rows, [Call(rows(4), Kind.SUM), Call(rows(4), Kind.MEAN)]


def _set_factor(module: Scorer) -> None:
    module.factor = 2.5


@specimen("I1", "factor")
def attribute() -> Made:
    """A float attribute that is written between steps."""
    return Scorer(), [Call(rows(4)), _set_factor, Call(rows(4))]


def _set_bias(module: Scorer) -> None:
    module.bias_rows = torch.ones(H)


@specimen("I1", "bias_rows")
def lazy_attribute() -> Made:
    """A tensor attribute that exists from the second step on."""
    return Scorer(), [Call(rows(4)), _set_bias, Call(rows(4))]


def _set_option(module: Scorer) -> None:
    module.options["shift"] = 3


@specimen("I1", "options")
def nested_option() -> Made:
    """A number in a dict of the module."""
    return Scorer(), [Call(rows(4)), _set_option, Call(rows(4))]


@specimen("I1", "state")
def closure_cell() -> Made:
    """A variable of the enclosing function that a step assigns."""
    state = 1.0

    def run(x: Tensor) -> Tensor:
        return x * state

    def change(_region: object) -> None:
        nonlocal state
        state = 4.0

    return run, [Call(rows(2)), change, Call(rows(2))]


SETTINGS = {"scale": 1.0}
"""A global that `global_value` changes; the harness copies it."""


def use_global(x: Tensor) -> Tensor:
    """Multiply by a global."""
    return x * SETTINGS["scale"]


def _change_global(_region: object) -> None:
    SETTINGS["scale"] = 7.0


@specimen("I1", "SETTINGS")
def global_value() -> Made:
    """A value in a global dict."""
    return use_global, [Call(rows(2)), _change_global, Call(rows(2))]


def by_dtype(ids: Tensor) -> Tensor:
    """Take another branch for int64."""
    return ids * 2 if ids.dtype == torch.int32 else ids * 3


@specimen("I2", "ids")
def dtype_branch() -> Made:
    """A dtype that differs from the warm-up (vLLM #17211)."""
    return by_dtype, [Call(torch.arange(4, dtype=torch.int32)), Call(torch.arange(4))]


def by_stride(x: Tensor) -> Tensor:
    """Take another branch for a transposed tensor."""
    return x * 2 if x.is_contiguous() else x * 3


@specimen("I2", "x")
def stride_branch() -> Made:
    """A tensor with other strides."""
    return by_stride, [Call(rows(H)), Call(rows(H).t())]


def by_size(x: Tensor) -> Tensor:
    """Take another branch for many rows."""
    return x * 2 if x.shape[0] > 5 else x * 3


@specimen("I1", "x")
def size_branch() -> Made:
    """A branch on the number of rows."""
    return by_size, [Call(rows(4)), Call(rows(9))]


class Counter(nn.Module):
    """Module that counts its calls in Python, and returns a value by the count."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, H)."""
        self.calls += 1
        return x + 1


@specimen("I4", "calls")
def counted_effect() -> Made:
    """A count that the graph writes as the constant of the first call."""
    return Counter(), [Call(rows(2)), Call(rows(2)), Call(rows(2))]


class Wrapped:
    """A callable object that is no module."""

    def __init__(self) -> None:
        self.table: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Add the table where there is one."""
        return x if self.table is None else x + self.table


def _set_table(wrapped: Wrapped) -> None:
    wrapped.table = torch.full((H,), 2.0)


@specimen("I1", "table")
def callable_object() -> Made:
    """An attribute of a callable object."""
    return Wrapped(), [(rows(3),), _set_table, (rows(3),)]


@specimen("I1", "factor")
def partial_argument() -> Made:
    """A bound method in a `functools.partial`, whose module changes."""
    module = Scorer()
    return partial(module.forward, mask=None), [(rows(3),), _set_factor_of_partial, (rows(3),)]


def _set_factor_of_partial(run: partial[Tensor]) -> None:
    run.func.__self__.factor = 3.0  # type: ignore[attr-defined]


@specimen("I1", "mask")
def keyword_of_an_object() -> Made:
    """A callable object that is no module, with a keyword that is absent in the warm-up."""

    class Adder:
        def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return x if mask is None else x + mask

    return Adder(), [Call(rows(4)), Call(x=rows(4, 1), mask=rows(4, 2))]


@specimen("I2", "ids")
def dtype_of_an_object() -> Made:
    """A callable object that takes another branch for int64."""

    class Taker:
        def __call__(self, ids: Tensor) -> Tensor:
            return by_dtype(ids)

    return Taker(), [Call(torch.arange(4, dtype=torch.int32)), Call(torch.arange(4))]


@specimen()
def zeros_for_none() -> Made:
    """The right twin of `optional_tensor`: zeros in place of an absent mask."""
    return Scorer(), [Call(rows(4), torch.zeros(4, H)), Call(rows(4, 1), mask=rows(4, 2))]


class Cached(nn.Module):
    """Attention-like module with a cache buffer that is written in place at a tensor position."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(16, H))
        self.layer = nn.Linear(H, H)

    def forward(self, x: Tensor, slots: Tensor) -> Tensor:
        """Write rows (n, H) to slots (n,), and return them with the mean of the cache added."""
        self.cache.index_copy_(0, slots, self.layer(x))
        return x + self.cache.mean(0)


@specimen()
def cache_buffer() -> Made:
    """A cache of rows, written and read in the graph."""
    return Cached(), [
        Call(rows(4), torch.arange(4)), Call(rows(3), torch.arange(4, 7)),
        Call(rows(2), torch.tensor([0, 9])),
    ]  # fmt: skip


@specimen()
def recurrent() -> Made:
    """A state that is an argument, written in place by each step."""
    state = torch.zeros(H)

    def step(x: Tensor, state: Tensor) -> Tensor:
        state.mul_(0.5).add_(x.sum(0))
        return x + state

    return step, [Call(rows(2), state), Call(rows(3), state), Call(rows(2, 5), state)]


@specimen()
def output_buffer() -> Made:
    """A buffer into which the region writes its output."""
    out = torch.zeros(6, H)

    def run(x: Tensor, out: Tensor) -> Tensor:
        out[: x.shape[0]].copy_(x * 2)
        return out[: x.shape[0]]

    return run, [Call(rows(4), out), Call(rows(6), out), Call(rows(3), out)]


@specimen()
def nan_answers() -> Made:
    """Outputs with NaN and infinity, equal in both."""
    return torch.log, [(torch.tensor([-1.0, 0.0, 2.0]),), (torch.tensor([3.0, -2.0, 0.0, 5.0]),)]


@specimen()
def nested_answers() -> Made:
    """Outputs in containers, with None and numbers among them."""

    def run(x: Tensor) -> dict[str, object]:
        return OrderedDict(last=x[-1], rest=[x.sum(), None, (3, "text")])

    return run, [(rows(2),), (rows(5),)]


@specimen()
def other_order() -> Made:
    """Arguments by position, then by keyword in another order."""
    return Scorer(), [Call(rows(3), rows(3, 1)), Call(mask=rows(3, 2), x=rows(3, 3))]


@specimen()
def replaced_parameter() -> Made:
    """Weights that are loaded in place."""

    def load(module: nn.Module) -> None:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.full_like(parameter, 0.5))

    return Scorer(), [(rows(2),), load, (rows(2),)]


@specimen()
def no_gradient() -> Made:
    """Steps whose inputs were made by autograd."""
    layer = nn.Linear(H, H)
    return Scorer(), [(layer(rows(3)),), (layer(rows(3, 1)),)]


@specimen()
def one_row() -> Made:
    """One row in the warm-up, many later, and none."""
    return Scorer(), [(rows(4),), (rows(1),), (rows(7),)]


@specimen()
def unused_state() -> Made:
    """An attribute that changes and is not read."""

    def change(module: Scorer) -> None:
        module.calls += 5

    return Scorer(), [(rows(2),), change, (rows(3),)]


@specimen()
def random_numbers() -> Made:
    """Numbers of torch's generator: each step draws the same ones in every arm."""

    def run(x: Tensor) -> Tensor:
        return x + torch.rand(x.shape[-1])

    return run, [(rows(2),), (rows(3),)]


@specimen()
def shared_memory() -> Made:
    """Two arguments that are views of one tensor."""
    both = rows(6)

    def run(first: Tensor, second: Tensor) -> Tensor:
        first.add_(1)
        return first.sum() + second.sum()

    return run, [Call(both[:3], both[3:]), Call(both[:3], both[3:])]


@dataclass
class Batch:
    """Arguments in an object of the user's."""

    ids: Tensor
    scale: Tensor


@specimen()
def object_argument() -> Made:
    """An object with tensors as the argument."""

    def run(batch: Batch) -> Tensor:
        return batch.ids * batch.scale

    return run, [(Batch(rows(2), torch.ones(H)),), (Batch(rows(3, 1), torch.full((H,), 2.0)),)]


@specimen(arms="eager/full")
def static_slots() -> Made:
    """Inputs that the caller copies into the captured tensor."""
    slot = rows(4)

    def fill(_region: object) -> None:
        slot.copy_(rows(4, 9))

    return Scorer(), [Call(slot), fill, Call(slot)]


@specimen("I2", "x", "eager/full")
def fresh_tensor() -> Made:
    """A tensor of its own in each step, which a replay never sees (vLLM #37363)."""
    return Scorer(), [Call(rows(4)), Call(rows(4, 1))]


@specimen("I2", "mask", "eager/full")
def one_of_two_moves() -> Made:
    """A static first argument, and a mask that is another tensor each time."""
    slot = rows(4)
    return Scorer(), [Call(slot, mask=rows(4, 1)), Call(slot, mask=rows(4, 2))]


@specimen("I4", "calls", "eager/full")
def python_effect() -> Made:
    """A count in Python, which no replay does."""
    slot = rows(3)
    return Counter(), [Call(slot), Call(slot)]


@specimen(arms="eager/full")
def in_place_effect() -> Made:
    """A cache that the captured operations write."""
    slot, at = rows(2), torch.tensor([0, 1])

    def fill(_region: object) -> None:
        slot.copy_(rows(2, 3))
        at.add_(5)

    return Cached(), [Call(slot, at), fill, Call(slot, at)]


@specimen(arms="eager/full")
def other_size_runs_live() -> Made:
    """A size that was not captured, and so runs without a graph."""
    slot = rows(4)
    return Scorer(), [Call(slot), Call(slot), Call(rows(6))]


@specimen(arms="eager/full")
def integer_index() -> Made:
    """Rows that are picked by integers, which a graph may do."""
    table, places = rows(6), torch.tensor([0, 1])

    def pick(places: Tensor) -> Tensor:
        return table[places]

    def fill(_region: object) -> None:
        places.copy_(torch.tensor([5, 3]))

    return pick, [Call(places), fill, Call(places)]
