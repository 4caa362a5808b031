"""Buffers of other shapes behind adapters: wrong ones are caught by their rule, right ones are kept."""

import shlex
from argparse import ArgumentParser
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from cases.by_day import by_day
from cases.selftest.models import right_shapes, wrong_shapes
from cases.selftest.models.checking import broken_in
from deepstack_harness.catalogue.plans import AUDIT_TRACES, CAPTURE_TRACES, CONTRACT_TRACES, check_traces
from deepstack_harness.cli.arguments import adapter_options, add_adapter
from deepstack_harness.contract.adapter import AdapterOptions
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import PayloadKind, Rule
from deepstack_harness.errors import StepUnavailable, UsageError
from deepstack_harness.models.adapted import AdaptedClass, adapted, check_interface
from deepstack_harness.models.reference import ReferenceBuffer

DAILY = (*AUDIT_TRACES, *CONTRACT_TRACES, *CAPTURE_TRACES)
CPU = torch.device("cpu")


def options_of(text: str) -> AdapterOptions:
    """Read options as `check` does; brackets need no quotes here."""
    parser = ArgumentParser()
    parser.add_argument("--dtype")
    add_adapter(parser)
    options = adapter_options(parser.parse_args(text.split()))
    assert options is not None
    return options


def behind_adapter(made: Callable[..., object], text: str) -> AdaptedClass:
    return AdaptedClass(made, adapted(made, options_of(text), made.__name__))


def regimes_of(name: str) -> Sequence[Regime]:
    return [Regime.LIVE] if name in right_shapes.LIVE_ALONE else [Regime.LIVE, Regime.CAPTURED]


@pytest.mark.parametrize(
    "name", by_day(wrong_shapes.WRONG, lambda name: wrong_shapes.WRONG[name][0], count=2)
)
def test_a_wrong_buffer_is_caught_by_its_rule(name: str) -> None:
    rule, options, regime = wrong_shapes.WRONG[name]
    make = behind_adapter(getattr(wrong_shapes, name), options)
    traces = (*DAILY, *reversed(check_traces()))
    found = broken_in(make, Regime(regime), traces, until=Rule(rule))
    assert rule in found, f"{found} behind {make.adapter}"


@pytest.mark.parametrize("name", by_day(right_shapes.RIGHT, count=6))
def test_a_right_buffer_is_kept(name: str) -> None:
    make = behind_adapter(getattr(right_shapes, name), right_shapes.RIGHT[name])
    for regime in regimes_of(name):
        assert broken_in(make, regime, DAILY) == {}


@pytest.mark.slow  # 2 s each
@pytest.mark.parametrize("name", right_shapes.RIGHT)
def test_a_right_buffer_is_kept_on_the_whole_sample(name: str) -> None:
    make = behind_adapter(getattr(right_shapes, name), right_shapes.RIGHT[name])
    for regime in regimes_of(name):
        assert broken_in(make, regime) == {}


@pytest.mark.parametrize("regime", [Regime.LIVE, Regime.CAPTURED])
def test_the_reference_behind_an_adapter_keeps_every_rule(regime: Regime) -> None:
    make = behind_adapter(ReferenceBuffer, "--adapter get=get,set=set,clear=clear,resize=resize")
    assert not {*make.adapter.not_asked}
    assert broken_in(make, regime, DAILY) == {}


class HandsOn:
    """Has the members of another buffer by `__getattr__`, which `dir` does not list."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._inner = ReferenceBuffer(capacity, hidden, levels, dtype=dtype, device=device)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_members_that_are_handed_on_are_there() -> None:
    check_interface(HandsOn, "HandsOn")  # type: ignore[arg-type]  # what it has, no type says


def shown_command(error: UsageError) -> list[str]:
    (line,) = [line for line in str(error).splitlines() if line.startswith("  deepstack-harness check ")]
    return shlex.split(line)[2:]


@pytest.mark.parametrize(
    "name", ["OutputRows", "RecurrentState", "CacheRows", "KeywordsOnly", "Stacked", "made_by_a_function"]
)
def test_the_command_that_would_fit_is_shown_and_fits(name: str) -> None:
    made = getattr(right_shapes, name)
    with pytest.raises(UsageError) as refused:
        check_interface(made, f"mine:{name}")
    assert "lacks get(tokens), set(payload), clear(tokens)" in str(refused.value)
    parser = ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--dtype")
    add_adapter(parser)
    args = parser.parse_args(shown_command(refused.value))
    options = adapter_options(args)
    assert options is not None
    assert args.target == f"mine:{name}"
    assert adapted(made, options, name).set.method in ("publish", "store", "write", "scatter")


def test_all_that_lacks_is_told_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        adapted(
            wrong_shapes.Numbers, options_of("--adapter get=raed,clear=resett,capacity=rows"), "mine:Numbers"
        )
    said = str(refused.value)
    assert (
        "the method raed of --adapter get=raed (did you mean read?), set(payload), the method resett" in said
    )
    assert "the attribute rows of --adapter capacity=rows" in said
    assert "--adapter get=read,set=write,clear=reset" in said


class OtherArguments(ReferenceBuffer):
    """Has the names of the contract, and takes other arguments."""

    def get(self) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(self._levels)

    def set(self, where: Tensor, values: Tensor) -> None:  # type: ignore[override]
        """Write values at positions."""


def test_arguments_that_do_not_match_are_told_with_the_names() -> None:
    with pytest.raises(UsageError) as refused:
        check_interface(OtherArguments, "mine:OtherArguments")  # type: ignore[arg-type]
    assert "it lacks get(tokens) (it has get()" in str(refused.value)
    assert "set(payload) (it has set(where" in str(refused.value)
    assert shown_command(refused.value)[1:] == ["--adapter", "get=get,set=set"]


def test_names_that_say_nothing_are_listed() -> None:
    with pytest.raises(UsageError, match="its methods are assign, first, forget"):
        check_interface(right_shapes.RequestSeeds, "mine:RequestSeeds")  # type: ignore[arg-type]


def test_what_signatures_and_a_small_buffer_tell_is_not_asked_for() -> None:
    stacked = behind_adapter(right_shapes.Stacked, "--adapter get=read,set=write,clear=erase").adapter
    assert (str(stacked.shape), stacked.answers_levels, stacked.dtype) == ("(levels, N, hidden)", False, "")
    numbers = behind_adapter(wrong_shapes.Numbers, "--adapter get=read,set=write,clear=reset").adapter
    assert (str(numbers.shape), numbers.dtype, numbers.payload_kind) == ("(N,)", "int64", PayloadKind.VISUAL)
    cache = behind_adapter(right_shapes.CacheRows, right_shapes.RIGHT["CacheRows"]).adapter
    assert (str(cache.get), cache.payload_kind) == ("view(count)", PayloadKind.KEPT)
    assert {Rule.R3, Rule.R5} <= {*cache.not_asked}


class Recorder:
    """Keeps what it is given."""

    def __init__(self, rows: int) -> None:
        self.capacity, self.seen = rows, list[tuple[object, ...]]()

    def write(self, values: Tensor, slots: Tensor) -> None:
        self.seen.append((values.tolist(), slots.tolist()))

    def read(self) -> Tensor:
        return torch.arange(self.capacity)


def test_positions_are_given_in_order_and_then_reversed() -> None:
    make = behind_adapter(Recorder, "--adapter get=read,set=write,clear=none --dtype int64")
    buffer = make(4, 1, 1, dtype=torch.int64, device=CPU)
    for _ in range(2):
        buffer.set(torch.tensor([[[5], [6], [7]]]))
    recorder = buffer._made  # type: ignore[attr-defined]
    assert recorder.seen == [([5, 6, 7], [0, 1, 2]), ([7, 6, 5], [2, 1, 0])]


def test_a_get_without_a_count_answers_the_first_rows_and_no_more_than_there_are() -> None:
    make = behind_adapter(Recorder, "--adapter get=read,set=write,clear=none --dtype int64")
    buffer = make(4, 1, 1, dtype=torch.int64, device=CPU)
    (level,) = buffer.get(2) or ()
    assert level.tolist() == [[0], [1]]
    with pytest.raises(StepUnavailable, match="takes no count"):
        buffer.get(5)
