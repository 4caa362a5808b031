"""Programs with the verdict and the blame that the contract asks for, written from its text.

Each function returns `(region, steps)` or `(region, steps, keywords of compile_steps)`.  `PROGRAMS` has what
the verdict must be: `refused` (`UsageError` with these words), `broken` (this promise; the report has these
words), `kept`, or `untested` (nothing was put to the test, and the report says why).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from deepstack_harness import Call

H = 8
Program = Callable[[], tuple[Any, ...]]


def rows(count: int, seed: int = 0) -> Tensor:
    """Return (count, H) float32."""
    return torch.randn(count, H, generator=torch.Generator().manual_seed(1000 * count + seed))


class Attends(nn.Module):
    """Linear layer with a bias by positions and an optional window."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(H, H)

    def forward(self, x: Tensor, positions: Tensor | None = None, *, window: int = 0) -> Tensor:
        """Return (n, H)."""
        x = self.layer(x)
        if positions is not None:
            x = x + positions[:, None]
        return x[window:] if window else x

    def shifted(self, x: Tensor, by: float) -> Tensor:
        """Return (n, H)."""
        shifted: Tensor = self.layer(x) + by
        return shifted


class Counts:
    """Callable object."""

    def __call__(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Return (n, H)."""
        return x * scale


# Calls that nobody could make.


def misspelt_keyword_of_a_module() -> tuple[Any, ...]:
    """`postions`."""
    return Attends(), [Call(rows(4)), Call(rows(4, 1), postions=torch.arange(4.0))]


def too_many_arguments_of_a_method() -> tuple[Any, ...]:
    """Three where two are taken."""
    return Attends().shifted, [(rows(4), 1.0), (rows(4, 1), 2.0, 3.0)]


def missing_argument_of_a_partial() -> tuple[Any, ...]:
    """`by` has no value."""
    return partial(Attends().shifted, rows(4)), [{"by": 1.0}, {}]


def misspelt_keyword_of_an_object() -> tuple[Any, ...]:
    """`scael`."""
    return Counts(), [Call(rows(4)), Call(rows(4), scael=2.0)]


def one_argument_twice() -> tuple[Any, ...]:
    """By position and by keyword."""
    return Counts(), [Call(rows(4)), Call(rows(4), 1.0, scale=2.0)]


def by_any_keyword(x: Tensor, **extra: Tensor) -> Tensor:
    """Return (n, H), plus what is called `bias`."""
    return x + extra["bias"] if "bias" in extra else x * 2


def any_keyword() -> tuple[Any, ...]:
    """A function that takes every keyword."""
    return by_any_keyword, [Call(rows(4)), Call(rows(4), bias=rows(4, 1))]


def refuses_long(x: Tensor, times: int = 1) -> Tensor:
    """Return (n, H); raises for more than two times."""
    if times > 2:
        raise ValueError(f"{times} times is too often")
    return x * times


def every_arm_raises() -> tuple[Any, ...]:
    """The first call of serving raises everywhere that guards are kept."""

    def adds(x: Tensor, mask: Tensor) -> Tensor:
        return x + mask

    return adds, [(rows(4), rows(4)), (rows(4), rows(4)[:, :3])]


def raises_only_uncompiled() -> tuple[Any, ...]:
    """The check was traced away."""
    return refuses_long, [(rows(4), 1), (rows(4), 3)]


# Rows that must not matter.


def first_rows_mean(x: Tensor, count: int) -> Tensor:
    """Return (H,): the mean of all rows, which is wrong."""
    return x.mean(0) + 0 * count


def first_rows_only(x: Tensor, count: int) -> Tensor:
    """Return (H,): the mean of the first rows."""
    return x.narrow(0, 0, count).mean(0)


def neutral_by_a_mask(*, wrong: bool) -> tuple[Any, ...]:
    """Neutral rows chosen by a mask are a copy."""
    asked = {"neutral": lambda x, count: [x[torch.arange(len(x)) >= count]]}
    return (first_rows_mean if wrong else first_rows_only), [(rows(6), 3), (rows(6, 1), 3)], asked


def neutral_by_index_select() -> tuple[Any, ...]:
    """So are those of `index_select`."""
    asked = {"neutral": lambda x, **_: [x.index_select(0, torch.tensor([4, 5]))]}
    return first_rows_mean, [{"x": rows(6, seed), "count": 3} for seed in range(2)], asked


def neutral_of_nothing() -> tuple[Any, ...]:
    """A new tensor has nothing to do with the call."""
    return (
        first_rows_mean,
        [{"x": rows(6, seed), "count": 3} for seed in range(2)],
        {"neutral": lambda **_: [torch.zeros(3, H)]},
    )


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


def neutral_rows_of_the_region() -> tuple[Any, ...]:
    """Rows of a buffer that were never written reach the answer."""
    asked = {"neutral": lambda region, _, count: [region.carried[count:]]}
    return Carries(), [(rows(6), 4), (rows(6, 1), 4)], asked


def neutral_views() -> tuple[Any, ...]:
    """Real views, and the rows have no influence."""
    return first_rows_only, [(rows(6), 3), (rows(6, 1), 3)], {"neutral": lambda x, count: [x[count:]]}


# Dtypes that are mixed on the way.


class Mixed(nn.Module):
    """Layers in half precision, and an answer in full."""

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


def half_precision_inside() -> tuple[Any, ...]:
    """A bfloat16 model with float32 inputs and answers."""
    return Mixed(torch.bfloat16), [Call(rows(4)), Call(rows(4, 1)), Call(rows(5, 2))]


def float16_inside() -> tuple[Any, ...]:
    """The same in float16."""
    return Mixed(torch.float16), [Call(rows(4)), Call(rows(4, 1)), Call(rows(5, 2))]


def by_casts(x: Tensor) -> Tensor:
    """Return (n, H): arithmetic in bfloat16, which no argument and no parameter has."""
    y = x.bfloat16()
    return ((y * 1.37 + y) * y.sigmoid() - y * 0.11).float()


def casts_inside() -> tuple[Any, ...]:
    """Only intermediate results are narrow."""
    return by_casts, [(rows(4),), (rows(6, 1),)]


def under_autocast(x: Tensor, weight: Tensor) -> Tensor:
    """Return (n, H) under autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ weight
        return (torch.nn.functional.gelu(y) * y + y).float()


def autocast_inside() -> tuple[Any, ...]:
    """All tensors of the caller are float32."""
    return under_autocast, [(rows(4), rows(8)), (rows(5, 1), rows(8))]


def statistics(x: Tensor) -> Tensor:
    """Return (H,): a mean over equal numbers, whose roundings all go one way."""
    return (x.bfloat16() * 1.1 * 1.3).float().mean(0)


def equal_roundings() -> tuple[Any, ...]:
    """Ones, as tests have them."""
    return statistics, [(torch.ones(64, H),), (torch.ones(32, H) * 1.01,)]


def bias_lost_in_half_precision() -> tuple[Any, ...]:
    """A late argument of a bfloat16 model."""
    return Mixed(torch.bfloat16), [Call(rows(4)), Call(rows(4, 1), bias=torch.full((4, H), 2.0))]


def small_fault_beside_a_narrow_table() -> tuple[Any, ...]:
    """A bfloat16 table that is read exactly gives no tolerance to a fault of 0.005."""
    table = torch.ones(H, dtype=torch.bfloat16)

    def reads(x: Tensor, step: float = 0.0) -> Tensor:
        return x * table.float() + step

    return reads, [Call(rows(4)), Call(rows(4), step=0.005)]


def small_fault_of_a_wide_part() -> tuple[Any, ...]:
    """The first answer is narrow inside, the second is not and loses 0.01."""

    def two(x: Tensor, step: float = 0.0) -> tuple[Tensor, Tensor]:
        y = x.bfloat16()
        return (y * 1.37 + y).float(), x + step

    return two, [Call(rows(4)), Call(rows(4), step=0.01)]


# Who is to blame.


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


def position_as_a_number() -> tuple[Any, ...]:
    """The number of the warm-up is in the graph; the cache requires grad from the second call on."""
    return Cached(), [(rows(1), 0), (rows(1), 1), (rows(1), 2)]


def cross_levels(x: Tensor, levels: tuple[Tensor, ...]) -> Tensor:
    """Return (n, H)."""
    return x + levels[0] * levels[1]


def levels_of_one_tensor() -> tuple[Any, ...]:
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


def tied_then_untied() -> tuple[Any, ...]:
    """Two attributes were one tensor in the warm-up."""
    return Tied(), [(rows(4),), untie, (rows(4),)]


def own_buffer_then_another() -> tuple[Any, ...]:
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


def two_changes() -> tuple[Any, ...]:
    """Two inputs change, one of them without any influence."""
    return two_of_one_kind, [(rows(4), True, 2), (rows(4), False, 3)]


def harmless_mask(x: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return (n, H)."""
    return (x if mask is None else x + mask) * scale


def late_zero_mask() -> tuple[Any, ...]:
    """The mask comes late and is zero: the number is to blame."""
    return harmless_mask, [(rows(4), None, 1.0), (rows(4), torch.zeros(4, H), 2.0)]


def by_options(x: Tensor, options: dict[str, Any]) -> Tensor:
    """Return (n, H); only the number in the options matters."""
    y: Tensor = x * options["times"]
    return y.clone() if options["copies"] else y


def members_of_one_dict() -> tuple[Any, ...]:
    """Two members of one argument change."""
    x = rows(4)
    return by_options, [(x, {"copies": True, "times": 2}), (x, {"copies": False, "times": 3})]


def of_two_numbers(x: Tensor, first: int, second: int) -> Tensor:
    """Return (n, H)."""
    return x * first + second


def two_causes() -> tuple[Any, ...]:
    """Neither number explains the answer without the other."""
    x = rows(4)
    return of_two_numbers, [(x, 2, 5), (x, 3, 7)]


def adds_in_place(x: Tensor, memory: Tensor) -> Tensor:
    """Return (n, H)."""
    x.add_(1)
    return x * memory


def two_tensors_then_one() -> tuple[Any, ...]:
    """What is written is read by another name, from the second call on."""
    x = rows(4)
    return adds_in_place, [(rows(4), rows(4, 1)), (x, x)]


# Children with names that Python does not write.


class Wraps(nn.Module):
    """Runs a child in training, so that its statistics change."""

    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, H)."""
        out: Tensor = self.child(x)
        return out


def child_by_number() -> tuple[Any, ...]:
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


def child_by_key() -> tuple[Any, ...]:
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


def counters_by_any_name() -> tuple[Any, ...]:
    """Children called `a-b` and `1`."""
    region = nn.Sequential()
    for name in ("a-b", "1", "class"):
        region.add_module(name, CountsCalls())
    x = rows(4)
    return region, [(x,), (x,), (x,)]


@dataclass(frozen=True)
class Judged:
    """A program, its arms, and what has to come of it."""

    program: Program
    verdict: Literal["refused", "broken", "kept", "untested"]
    words: tuple[str, ...] = ()
    promise: str = ""
    arms: tuple[str, ...] = ("eager/drop_all",)
    never: str = ""
    """Words that the report must not have."""
    slow: bool = False
    """True where Inductor compiles what another program shows daily."""


_INDUCTOR = ("inductor/stock",)
_REPLAYED = ("eager/full",)
_AOT = ("aot_eager/drop_all",)

PROGRAMS = (
    Judged(misspelt_keyword_of_a_module, "refused", ("step 2", "'postions'", "'positions'")),
    Judged(too_many_arguments_of_a_method, "refused", ("step 2", "too many positional arguments")),
    Judged(missing_argument_of_a_partial, "refused", ("step 2", "'by'")),
    Judged(misspelt_keyword_of_an_object, "refused", ("step 2", "'scael'", "'scale'")),
    Judged(one_argument_twice, "refused", ("step 2", "'scale'")),
    Judged(any_keyword, "broken", ("`extra['bias']`",), "I1"),
    Judged(every_arm_raises, "untested", ("step 2", "RuntimeError"), arms=("eager/stock",)),
    Judged(raises_only_uncompiled, "broken", ("`times`", "ValueError"), "I1"),
    Judged(partial(neutral_by_a_mask, wrong=True), "refused", ("copy", "neutral")),
    Judged(partial(neutral_by_a_mask, wrong=False), "refused", ("copy", "neutral")),
    Judged(neutral_by_index_select, "refused", ("copy", "neutral")),
    Judged(neutral_of_nothing, "refused", ("copy", "neutral")),
    Judged(neutral_rows_of_the_region, "broken", ("`self.carried`",), "I3"),
    Judged(neutral_views, "kept"),
    Judged(half_precision_inside, "kept", arms=_INDUCTOR, slow=True),
    Judged(float16_inside, "kept", arms=_INDUCTOR, slow=True),
    Judged(casts_inside, "kept", arms=_INDUCTOR),
    Judged(autocast_inside, "kept", arms=_INDUCTOR, slow=True),
    Judged(equal_roundings, "kept", arms=_INDUCTOR, slow=True),
    Judged(bias_lost_in_half_precision, "broken", ("`bias`",), "I1", ("inductor/drop_all",)),
    Judged(small_fault_beside_a_narrow_table, "broken", ("`step`",), "I1"),
    Judged(small_fault_of_a_wide_part, "broken", ("`step`", "answer[1]"), "I1"),
    Judged(position_as_a_number, "broken", ("`at` was int 0",), "I1", _REPLAYED, never="requires_grad"),
    Judged(levels_of_one_tensor, "broken", ("`levels[0]` and `levels[1]` were one tensor",), "I1"),
    Judged(tied_then_untied, "broken", ("`self.first` and `self.second` were one tensor",), "I1"),
    Judged(own_buffer_then_another, "broken", ("`self.table` and `table` were one tensor",), "I1"),
    Judged(two_changes, "broken", ("`times` was int 2",), "I1", never="`flag` was"),
    Judged(late_zero_mask, "broken", ("`scale` was float 1.0",), "I1", never="`mask` was"),
    Judged(
        members_of_one_dict, "broken", ("`options['times']` was",), "I1", _REPLAYED,
        never="`options['copies']` was",
    ),
    Judged(two_causes, "broken", ("`first` was int 2", "`second` was int 5"), "I1", _REPLAYED),
    Judged(two_tensors_then_one, "broken", ("`x` and `memory` were two tensors",), "I1", _AOT),
    Judged(child_by_number, "kept", arms=_INDUCTOR, slow=True),
    Judged(child_by_key, "kept", arms=_INDUCTOR, slow=True),
    Judged(counters_by_any_name, "broken", ("self.a-b.calls is int 1, not", "3 calls"), "I4", _REPLAYED),
)  # fmt: skip
