"""A clock that a trace moves: for the thread that plays, while its case is played."""

import threading
import time

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from cases.selftest.models.checking import broken_in
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.play.clock import let_pass, own_time

CLOCKS = ("time", "monotonic", "perf_counter")


@pytest.mark.parametrize("name", CLOCKS)
def test_a_clock_moves_on_and_is_as_it_was_afterwards(name: str) -> None:
    before = getattr(time, name)()
    with own_time():
        let_pass(5000)
        assert getattr(time, name)() - before >= 5000
        assert getattr(time, f"{name}_ns")() - before * 10**9 >= 4999 * 10**9
        with own_time():
            let_pass(5000)
            assert getattr(time, name)() - before >= 10_000
        assert 5000 <= getattr(time, name)() - before < 10_000
    assert 0 <= getattr(time, name)() - before < 5000


def test_other_threads_keep_their_time() -> None:
    seen: list[float] = []
    with own_time():
        let_pass(5000)
        thread = threading.Thread(target=lambda: seen.append(time.monotonic()))
        thread.start()
        thread.join()
        assert time.monotonic() - seen[0] >= 5000


class Expires(ReferenceBuffer):
    """Forgets a payload after a minute."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        self.since = time.monotonic()

    @override
    def set(self, payload: Tensor) -> None:
        super().set(payload)
        self.since = time.monotonic()

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        if time.monotonic() - self.since > 60:
            self.clear(0)
        return super().get(tokens)


def test_a_buffer_whose_payload_expires_is_caught_where_time_passes() -> None:
    assert broken_in(Expires, Regime.LIVE, ["cap 16: set 9; get 16; get 9"]) == {}
    late = broken_in(Expires, Regime.LIVE, ["cap 16: set 9; get 16; get 9 after=61", "cap 16: set 9; get 9"])
    assert {*late} == {Rule.BOUNDARY}
    assert "step 3 'get 9 after=61'" in late[Rule.BOUNDARY]
