"""Memory as callers and allocators give it: reused at one address, never written, or not to be had."""

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from deepstack_harness.catalogue.plans import Where, plan_check
from deepstack_harness.compile.torch_compat.modes import filled_with_nan
from deepstack_harness.contract.case import live_buffer
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import LAYOUTS, Step
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.play.tensors import laid_out, same_bytes, values_of
from deepstack_harness.pytest_plugin.fixtures import judge_in_process


def broken(make: BufferFactory, trace: str) -> set[Rule]:
    buffer = live_buffer("made here")
    (judged,) = judge_in_process(plan_check(Where("qwen3_vl"), buffer, [trace]), {buffer: make})
    return {
        judgement.rule
        for judgement in judged.judgements
        if judgement.verdict in {Verdict.FAIL, Verdict.ERROR}
    }


class TrustsAddresses(ReferenceBuffer):
    """Takes a payload at the address of the last one for the same payload."""

    last: tuple[int, ...] = ()

    @override
    def set(self, payload: Tensor) -> None:
        here = (payload.data_ptr(), *payload.shape)
        if here != self.last:
            super().set(payload)
        self.last = here


class NeverWritten(ReferenceBuffer):
    """Starts on memory that nobody has written, of which a fresh page is zero by accident."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        self._levels = [torch.empty(capacity, hidden, dtype=dtype, device=device) for _ in range(levels)]


def test_memory_is_filled_while_only_a_buffer_is_played_and_not_afterwards() -> None:
    with filled_with_nan():
        assert torch.empty(3).isnan().all()
        assert torch.zeros(3).new_empty(2, 2).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


class KeepsRoom(ReferenceBuffer):
    """Copies what get returns, so that an allocation can fail after a growth that is done."""

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...]:
        answer = super().get(tokens)
        assert answer is not None
        return tuple(level.clone() for level in answer)


class StatesRoomFirst(ReferenceBuffer):
    """Reports that it has grown before it has, and forgets that."""

    stated = 0

    @property
    @override
    def capacity(self) -> int:
        return max(self.stated, super().capacity)

    @override
    def resize(self, tokens: int) -> None:
        self.stated = tokens
        super().resize(tokens)


CALLS_ON_CALLER = {
    "bytes": lambda payload: payload.fill_(1),
    "shape": lambda payload: payload.unsqueeze_(0),
    "strides": lambda payload: payload.as_strided_(payload.shape, (1, 1, 1)),
    "requires_grad": lambda payload: payload.requires_grad_(not payload.requires_grad),
    "version": lambda payload: payload.add_(0),
}


class ChangesItsArgument(ReferenceBuffer):
    """Does something to the tensor of its caller once it has copied it."""

    what = "bytes"

    @override
    def set(self, payload: Tensor) -> None:
        super().set(payload)
        CALLS_ON_CALLER[self.what](payload)


@pytest.mark.parametrize("what", CALLS_ON_CALLER)
@pytest.mark.parametrize("layout", ["", " layout=sparse"])
def test_whatever_set_does_to_the_tensor_of_its_caller_is_seen(what: str, layout: str) -> None:
    class Changes(ChangesItsArgument):
        pass

    Changes.what = what
    assert broken(Changes, f"cap 16: set 9{layout}; get 16") == {Rule.FRESHNESS}


@pytest.mark.parametrize("layout", [f" layout={layout}" for layout in LAYOUTS])
@pytest.mark.parametrize("dtype", ["", " dtype=float64", " dtype=int32"])
def test_every_layout_lies_in_memory_as_named_and_holds_its_values(layout: str, dtype: str) -> None:
    step = Step.parse(f"set 5{layout}{dtype}")
    drawn = values_of(step, torch.randn(3, 5, 7))
    payload = laid_out(step, drawn).payload
    assert payload.shape == (3, 5, 7)
    assert same_bytes(payload, drawn)
    assert not payload.is_contiguous()
    strides = {"transposed": 5, "sparse": 2}
    assert payload.stride(2) == strides.get(step.layout or "", 1)
    assert (payload.stride(0) == 0) == (step.layout == "one_level")


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [("flat", (15, 7)), ("joined", (5, 21)), ("swapped", (5, 3, 7)), ("transposed", (3, 7, 5)),
     ("batched", (1, 3, 5, 7))],
)  # fmt: skip
def test_a_payload_of_another_shape_has_the_same_elements(shape: str, sizes: tuple[int, ...]) -> None:
    payload = torch.randn(3, 5, 7)
    given = laid_out(Step.parse(f"set 5 shape={shape}"), payload).payload
    assert given.shape == sizes
    assert torch.equal(given.flatten().sort().values, payload.flatten().sort().values)


def test_swapped_sizes_that_are_equal_are_a_right_payload() -> None:
    payload = torch.randn(3, 3, 7)
    assert laid_out(Step.parse("set 3 shape=swapped"), payload).payload.shape == (3, 3, 7)


def test_values_that_float32_cannot_hold_are_no_float32() -> None:
    fine = values_of(Step.parse("set 4 values=fine dtype=float64"), torch.randn(2, 4, 8))
    assert (fine.float().double() != fine).all()


def test_a_column_of_any_stride_has_bytes() -> None:
    column = torch.arange(6.0).view(2, 3).t()[:2, :1]
    assert same_bytes(column, column.clone(memory_format=torch.contiguous_format))
    assert not same_bytes(column, column + 1)


class RefusesIntegers(ReferenceBuffer):
    """Takes no payload of integers, and forgets what it had."""

    forgets = False

    @override
    def set(self, payload: Tensor) -> None:
        if not payload.is_floating_point():
            if self.forgets:
                self.clear(0)
            raise TypeError("integers")
        super().set(payload)


class ForgetsAtIntegers(RefusesIntegers):
    """Forgets its payload when it refuses another one."""

    forgets = True


class RaisesMemoryError(ReferenceBuffer):
    """Refuses a call that does not fit with a MemoryError of its own."""

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        if tokens > self.capacity:
            raise MemoryError(f"{tokens} rows")
        return super().get(tokens)


class ChangesOnce(ReferenceBuffer):
    """Returns zeros from the 50th get, and from no other."""

    calls = 0

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        self.calls += 1
        answer = super().get(tokens) or ()
        return tuple(torch.zeros_like(level) for level in answer) if self.calls == 50 else answer


class ClearsByAProduct(ReferenceBuffer):
    """Leaves NaN in its rows, because it multiplies by zero."""

    @override
    def clear(self, tokens: int) -> None:
        rows = self._tokens_set
        super().clear(tokens)
        for level in self._levels:
            level[:rows] = torch.nan


INTEGERS = "cap 16: set 9; get 9; set 4 dtype=int32; get 9; set 4 dtype=int64; get 4"
GROWS = "cap 16: set 9; get 9; get 24 fail={}; get 9; get 24; get 16"
NANS = "cap 1: set 1 values=nans; get 1; set 1 values=nans; clear 1; get 1"
SWAPPED = "cap 16 levels 3: set 3 shape=swapped; get 3; set 4 shape=swapped; get 3"
# Of an expanded payload all rows, or all levels, are equal, so that none of another order can be.
REORDERED = "cap 2: set 2; set 2 layout={} dtype=float16 values=reordered; get 2"
CASES: dict[str, tuple[BufferFactory, str, set[Rule]]] = {
    **{
        f"the next payload is in the same memory,{layout}": (
            TrustsAddresses, f"cap 16: set 9{layout}; get 16; set 9{layout}; get 16", {Rule.FRESHNESS},
        )
        for layout in ("", " layout=permuted", " layout=strided", " layout=slice", " layout=expanded")
    },
    **{
        f"rows that nobody has written are no zeros, {header}": (
            NeverWritten, f"{header}: set 3; get 9", {Rule.BOUNDARY},
        )
        for header in ("cap 16", "cap 9000 levels 1 hidden 64", "cap 16 mode inference")
    },
    **{
        f"room that was made before allocation {number} failed may stay": (
            KeepsRoom, GROWS.format(number), set(),
        )
        for number in range(1, 7)
    },
    "room that is stated and was not made is a fault of growth":
        (StatesRoomFirst, GROWS.format(1), {Rule.CAPACITY}),
    "a write under inference mode is seen by its bytes":
        (ChangesItsArgument, "cap 16 mode inference: set 9; get 16", {Rule.FRESHNESS}),
    "swapped sizes that are equal are a right payload": (ReferenceBuffer, SWAPPED, set()),
    "integers may be taken": (ReferenceBuffer, INTEGERS, set()),
    "integers may be refused": (RefusesIntegers, INTEGERS, set()),
    "integers that are refused change nothing": (ForgetsAtIntegers, INTEGERS, {Rule.REJECTION}),
    "a memory error with a text is a refusal": (RaisesMemoryError, "cap 16: set 9; get 20; get 9", set()),
    "one wrong answer comes later": (ChangesOnce, "cap 16: set 9; get 9 calls=49", set()),
    "one wrong answer among many calls": (ChangesOnce, "cap 16: set 9; get 9 calls=200", {Rule.BOUNDARY}),
    "expanded rows have no other order": (ReferenceBuffer, REORDERED.format("expanded"), set()),
    "equal levels have no other order": (ReferenceBuffer, REORDERED.format("one_level"), set()),
    "NaN that survives a product is of the last payload": (ClearsByAProduct, NANS, {Rule.CLEAR}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_memory_breaks_the_rule_that_it_should(name: str) -> None:
    make, trace, rules = CASES[name]
    assert broken(make, trace) == rules
