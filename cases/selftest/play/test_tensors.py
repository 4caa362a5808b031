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
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.pytest_plugin.fixtures import judge_in_process


def broken(make: BufferFactory, trace: str) -> set[Rule]:
    buffer = live_buffer("made here")
    (judged,) = judge_in_process(plan_check(Where("qwen3_vl"), buffer, [trace]), {buffer: make})
    return {said.rule for said in judged.judgements if said.verdict in {Verdict.FAIL, Verdict.ERROR}}


class TrustsAddresses(ReferenceBuffer):
    """Takes a payload at the address of the last one for the same payload."""

    last: tuple[int, ...] = ()

    @override
    def set(self, payload: Tensor) -> None:
        here = (payload.data_ptr(), *payload.shape)
        if here != self.last:
            super().set(payload)
        self.last = here


@pytest.mark.parametrize(
    "layout", ["", " layout=permuted", " layout=strided", " layout=slice", " layout=expanded"]
)
def test_a_caller_gives_the_next_payload_in_the_same_memory(layout: str) -> None:
    assert broken(TrustsAddresses, f"cap 16: set 9{layout}; get 16; set 9{layout}; get 16") == {Rule.R3}


class NeverWritten(ReferenceBuffer):
    """Starts on memory that nobody has written, of which a fresh page is zero by accident."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        self._levels = [torch.empty(capacity, hidden, dtype=dtype, device=device) for _ in range(levels)]


@pytest.mark.parametrize("header", ["cap 16", "cap 9000 levels 1 hidden 64", "cap 16 mode inference"])
def test_rows_that_nobody_has_written_are_no_zeros(header: str) -> None:
    assert broken(NeverWritten, f"{header}: set 3; get 9") == {Rule.R2}


def test_memory_is_filled_while_a_buffer_alone_is_played_and_not_afterwards() -> None:
    with filled_with_nan():
        assert torch.empty(3).isnan().all()
        assert torch.zeros(3).new_empty(2, 2).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


class KeepsRoom(ReferenceBuffer):
    """Copies its answers, so that an allocation can fail behind a growth that is done."""

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...]:
        answer = super().get(tokens)
        assert answer is not None
        return tuple(level.clone() for level in answer)


class StatesRoomFirst(ReferenceBuffer):
    """Says that it has grown before it has, and forgets that."""

    stated = 0

    @property
    @override
    def capacity(self) -> int:
        return max(self.stated, super().capacity)

    @override
    def resize(self, tokens: int) -> None:
        self.stated = tokens
        super().resize(tokens)


GROWS = "cap 16: set 9; get 9; get 24 fail={}; get 9; get 24; get 16"


@pytest.mark.parametrize("fails", range(1, 7))
def test_room_that_was_made_before_an_allocation_failed_may_stay(fails: int) -> None:
    assert broken(KeepsRoom, GROWS.format(fails)) == set()


def test_room_that_is_stated_and_was_not_made_is_a_fault_of_growth() -> None:
    assert broken(StatesRoomFirst, GROWS.format(1)) == {Rule.R4}
