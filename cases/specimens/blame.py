"""Programs about who is to blame, rows that must not matter, and dtypes that are mixed on the way.

They are written from the contract's text; `names` and `words` are in the report.
"""

from typing import Any

import torch
from torch import Tensor, nn

from cases.specimens.kit import Made, specimen
from cases.specimens.programs import rows
from cases.specimens.replays import FULL
from deepstack_harness import Call

H = 8


def by_any_keyword(x: Tensor, **extra: Tensor) -> Tensor:
    """Return (n, H), plus what is called `bias`."""
    return x + extra["bias"] if "bias" in extra else x * 2


@specimen("I1", "`extra['bias']`")
def any_keyword() -> Made:
    """A function that takes every keyword."""
    return by_any_keyword, [Call(rows(4)), Call(rows(4), bias=rows(4, 1))]


def refuses_long(x: Tensor, times: int = 1) -> Tensor:
    """Return (n, H); raises for more than two times."""
    if times > 2:
        raise ValueError(f"{times} times is too often")
    return x * times


@specimen("I1", "`times`", words=("ValueError",))
def raises_only_uncompiled() -> Made:
    """The check was traced away."""
    return refuses_long, [(rows(4), 1), (rows(4), 3)]


def first_rows_only(x: Tensor, count: int) -> Tensor:
    """Return (H,): the mean of the first rows."""
    return x.narrow(0, 0, count).mean(0)


class Carries(nn.Module):
    """Adds the rows of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("carried", torch.zeros(8, H))
        self.carried: Tensor

    def forward(self, x: Tensor, count: int) -> Tensor:
        """Return (n, H)."""
        self.carried[:count] = x[:count]
        return x + self.carried[: len(x)]


@specimen("I3", "`self.carried`", "eager/stock")
def neutral_rows_of_the_region() -> Made:
    """Rows of a buffer that were never written reach the output."""
    asked = {"neutral": lambda region, _, count: [region.carried[count:]]}
    return Carries(), [(rows(6), 4), (rows(6, 1), 4)], asked


@specimen()
def neutral_views() -> Made:
    """Real views, and the rows have no influence."""
    return first_rows_only, [(rows(6), 3), (rows(6, 1), 3)], {"neutral": lambda x, count: [x[count:]]}


class Mixed(nn.Module):
    """Layers in half precision, and an output in full."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Linear(H, H) for _ in range(4)).to(dtype)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return (n, H) float32."""
        x = x.to(next(self.layers.parameters()).dtype)
        for layer in self.layers:
            x = torch.nn.functional.silu(layer(x)) * 1.7 + x
        return x.float() if bias is None else x.float() + bias


@specimen(arms="inductor/stock")
def half_precision_inside() -> Made:
    """A bfloat16 model with float32 inputs and outputs."""
    return Mixed(torch.bfloat16), [Call(rows(4)), Call(rows(4, 1)), Call(rows(5, 2))]


@specimen(arms="inductor/stock")
def float16_inside() -> Made:
    """The same in float16."""
    return Mixed(torch.float16), [Call(rows(4)), Call(rows(4, 1)), Call(rows(5, 2))]


def by_casts(x: Tensor) -> Tensor:
    """Return (n, H): arithmetic in bfloat16, which no argument and no parameter has."""
    y = x.bfloat16()
    return ((y * 1.37 + y) * y.sigmoid() - y * 0.11).float()


@specimen(arms="inductor/stock")
def casts_inside() -> Made:
    """Only intermediate results are narrow."""
    return by_casts, [(rows(4),), (rows(6, 1),)]


def under_autocast(x: Tensor, weight: Tensor) -> Tensor:
    """Return (n, H) under autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ weight
        return (torch.nn.functional.gelu(y) * y + y).float()


@specimen(arms="inductor/stock")
def autocast_inside() -> Made:
    """All tensors of the caller are float32."""
    return under_autocast, [(rows(4), rows(8)), (rows(5, 1), rows(8))]


def statistics(x: Tensor) -> Tensor:
    """Return (H,): a mean over equal numbers, whose roundings all go one way."""
    return (x.bfloat16() * 1.1 * 1.3).float().mean(0)


@specimen(arms="inductor/stock")
def equal_roundings() -> Made:
    """Ones, as tests have them."""
    return statistics, [(torch.ones(64, H),), (torch.ones(32, H) * 1.01,)]


@specimen("I1", "`bias`", "inductor/drop_all")
def bias_lost_in_half_precision() -> Made:
    """A late argument of a bfloat16 model."""
    return Mixed(torch.bfloat16), [Call(rows(4)), Call(rows(4, 1), bias=torch.full((4, H), 2.0))]


@specimen("I1", "`step`")
def small_fault_beside_a_narrow_table() -> Made:
    """A bfloat16 table that is read exactly gives no tolerance to a fault of 0.005."""
    table = torch.ones(H, dtype=torch.bfloat16)

    def reads(x: Tensor, step: float = 0.0) -> Tensor:
        return x * table.float() + step

    return reads, [Call(rows(4)), Call(rows(4), step=0.005)]


@specimen("I1", "`step`", words=("answer[1]",))
def small_fault_of_a_wide_part() -> Made:
    """The first output is narrow inside, the second is not and loses 0.01."""

    def two(x: Tensor, step: float = 0.0) -> tuple[Tensor, Tensor]:
        y = x.bfloat16()
        return (y * 1.37 + y).float(), x + step

    return two, [Call(rows(4)), Call(rows(4), step=0.01)]


class Cached(nn.Module):
    """Writes a row of a cache at a position that is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(H, H)
        self.cache = torch.zeros(6, H)

    def forward(self, x: Tensor, at: int) -> Tensor:
        """Return (6, H)."""
        self.cache[at] = self.layer(x)[0]
        return self.cache * 2


@specimen("I1", "`at` was int 0", FULL, never="requires_grad")
def position_as_a_number() -> Made:
    """The number of the warm-up is in the graph; the cache requires grad from the second call on."""
    return Cached(), [(rows(1), 0), (rows(1), 1), (rows(1), 2)]


def cross_levels(x: Tensor, levels: tuple[Tensor, ...]) -> Tensor:
    """Return (n, H)."""
    return x + levels[0] * levels[1]


@specimen("I1", "levels[0]", words=("`levels[0]` and `levels[1]` were one tensor",))
def levels_of_one_tensor() -> Made:
    """Both members of a tuple were one tensor in the warm-up."""
    x = rows(4)
    return cross_levels, [(x, (rows(4, 1),) * 2), (x, (rows(4, 2), rows(4, 3)))]


class Tied(nn.Module):
    """Two attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = torch.ones(H)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, H)."""
        return x * self.first + self.second


def untie(region: Tied) -> None:
    """Give the second attribute a tensor of its own."""
    region.second = torch.full((H,), 3.0)


@specimen("I1", "self.first", words=("`self.first` and `self.second` were one tensor",))
def tied_then_untied() -> Made:
    """Two attributes were one tensor in the warm-up."""
    return Tied(), [(rows(4),), untie, (rows(4),)]


@specimen("I1", "self.table", words=("`self.table` and `table` were one tensor",))
def own_buffer_then_another() -> Made:
    """In the warm-up the argument is the region's own buffer."""
    region = Carries()
    region.carried.copy_(rows(8))

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = region.carried

        def forward(self, x: Tensor, table: Tensor) -> Tensor:
            return x @ self.table.T @ table

    module = Reads()
    return module, [(rows(4), module.table), (rows(4), rows(8, 3))]


def two_of_one_kind(x: Tensor, flag: bool, times: int) -> Tensor:
    """Return (n, H); the flag does not matter."""
    return x.mul(times) if flag else x * times


@specimen("I1", "`times` was int 2", never="`flag` was")
def two_changes() -> Made:
    """Two inputs change, one of them without any influence."""
    return two_of_one_kind, [(rows(4), True, 2), (rows(4), False, 3)]


def harmless_mask(x: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return (n, H)."""
    return (x if mask is None else x + mask) * scale


@specimen("I1", "`scale` was float 1.0", never="`mask` was")
def late_zero_mask() -> Made:
    """The mask comes late and is zero: the number is to blame."""
    return harmless_mask, [(rows(4), None, 1.0), (rows(4), torch.zeros(4, H), 2.0)]


def by_options(x: Tensor, options: dict[str, Any]) -> Tensor:
    """Return (n, H); only the number in the options matters."""
    y: Tensor = x * options["times"]
    return y.clone() if options["copies"] else y


@specimen("I1", "`options['times']` was", FULL, never="`options['copies']` was")
def members_of_one_dict() -> Made:
    """Two members of one argument change."""
    x = rows(4)
    return by_options, [(x, {"copies": True, "times": 2}), (x, {"copies": False, "times": 3})]


def of_two_numbers(x: Tensor, first: int, second: int) -> Tensor:
    """Return (n, H)."""
    return x * first + second


@specimen("I1", "`first` was int 2", FULL, words=("`second` was int 5",))
def two_causes() -> Made:
    """Neither number explains the output without the other."""
    x = rows(4)
    return of_two_numbers, [(x, 2, 5), (x, 3, 7)]


def adds_in_place(x: Tensor, memory: Tensor) -> Tensor:
    """Return (n, H)."""
    x.add_(1)
    return x * memory


@specimen("I1", "memory", "aot_eager/drop_all", words=("`x` and `memory` were two tensors",))
def two_tensors_become_one() -> Made:
    """What is written is read by another name, from the second call on."""
    x = rows(4)
    return adds_in_place, [(rows(4), rows(4, 1)), (x, x)]


@specimen(arms="inductor/stock")
def child_by_number() -> Made:
    """`self.2.running_mean`."""
    region = nn.Sequential(nn.Linear(H, H), nn.ReLU(), nn.BatchNorm1d(H))
    return region, [(rows(4),), (rows(4, 1),), (rows(5, 2),)]


class ByKey(nn.Module):
    """Runs the members of a ModuleDict."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleDict(
            {"image": nn.BatchNorm1d(H), "a-b (c)": nn.BatchNorm1d(H), "1": nn.BatchNorm1d(H)}
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, H)."""
        for norm in self.norms.values():
            x = norm(x)
        return x


@specimen(arms="inductor/stock")
def child_by_key() -> Made:
    """`self.norms.a-b (c).running_mean`."""
    return ByKey(), [(rows(4),), (rows(4, 1),), (rows(5, 2),)]


class CountsCalls(nn.Module):
    """Counts its calls in Python, which a replay loses."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, H)."""
        self.calls += 1
        return x * 2


@specimen("I4", "self.a-b.calls is int 1, not", FULL, words=("3 calls",))
def counters_by_any_name() -> Made:
    """Children called `a-b` and `1`."""
    region = nn.Sequential()
    for name in ("a-b", "1", "class"):
        region.add_module(name, CountsCalls())
    x = rows(4)
    return region, [(x,), (x,), (x,)]
