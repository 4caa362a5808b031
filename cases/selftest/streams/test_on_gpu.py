"""Real streams: what can be tested without a GPU, and, with one, that they give the sequential bits."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cases.selftest.auditing.synthetic_helpers import HELPER_FILE, source
from cases.selftest.workers.misbehaving import ALWAYS
from deepstack_harness.contract.facts.ordering import OnDevice
from deepstack_harness.errors import NotMeasured, UsageError
from deepstack_harness.streams import on_gpu, projection
from deepstack_harness.streams.stream_api import Lanes, Project
from deepstack_harness.streams.subgraphs import one_stream

MISBEHAVING = "cases.selftest.workers.misbehaving"


def seen_on_gpu(target: str, timeout_s: float = 60) -> OnDevice:
    return on_gpu.observe_on_gpu("dual", source="x", timeout_s=timeout_s, target=target)


def test_an_answer_is_told() -> None:
    answered = seen_on_gpu("cases.selftest.streams.silent_streams:answer")
    assert answered == OnDevice("cuda", 1000, 2, first="dual of x")


@pytest.mark.parametrize("name", ["hang_always", "crash_always", "flood_always"])
def test_a_worker_that_hangs_dies_or_floods_is_a_finding(name: str) -> None:
    timeout_s = 0.5 if name == "hang_always" else 60
    assert seen_on_gpu(f"{MISBEHAVING}:{name}", timeout_s).ended.startswith(ALWAYS[name])


def test_a_worker_that_raises_measured_nothing() -> None:
    with pytest.raises(NotMeasured, match="dual on cuda: ValueError: because"):
        seen_on_gpu(f"{MISBEHAVING}:refuse_always")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_machine_without_a_gpu_measures_nothing() -> None:
    with pytest.raises(NotMeasured, match="dual on cuda: device 'cuda' is not available"):
        on_gpu.observe_on_gpu("dual")


def test_an_unknown_variant_or_helper_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match="unknown dual-stream variant 'duel'; did you mean 'dual'. known are sequential, dual,",
    ):
        on_gpu.way_of("duel", None)
    tree = str(source(tmp_path, helpers=HELPER_FILE))
    assert on_gpu.way_of("maybe_execute_in_parallel", tree).settings
    with pytest.raises(UsageError, match=r"has no 'execute_in_parallel'; it has maybe_execute_in_parallel$"):
        on_gpu.way_of("execute_in_parallel", tree)


def repeat(project: Project, spin: Callable[[int], None] = lambda _: None) -> tuple[int, str]:
    return on_gpu.repeat(project, one_stream(), torch.device("cpu"), 40, spin)


def test_a_result_of_the_repetition_before_is_seen() -> None:
    old: list[tuple[Tensor, ...]] = []

    def late(x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes) -> tuple[Tensor, ...]:
        results = projection.sequential(x, weights, lanes)
        old.append(results)
        return old[-3] if len(old) == 60 else results  # two layers ago, in the last layer of repetition 29

    assert repeat(projection.sequential) == (0, "")
    different, first = repeat(late)
    assert different == 1
    assert first.startswith("repetition 29, cycles before each operation: [")


def test_inputs_that_give_one_result_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_gpu, "run_layers", lambda *_: torch.zeros(1))
    with pytest.raises(NotMeasured, match="two inputs give one result: an old result would go unseen"):
        repeat(projection.sequential)


def test_delays_come_before_every_operation_and_differ() -> None:
    spun: list[int] = []
    repeat(projection.sequential, spun.append)
    assert len(spun) == 40 * 2 * 4  # two layers: input, two projections, sum
    assert set(spun) == {0, 20_000, 200_000}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["dual", "dual_of_copy", "sequential"])
def test_real_streams_give_the_sequential_bits(name: str) -> None:
    seen = on_gpu.observe_on_gpu(name)
    assert (seen.different, seen.ended, seen.repetitions) == (0, "", 1000)
    assert min(seen.microseconds, seen.sequential_microseconds) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["start_forgotten", "done_forgotten", "done_recorded_outside"])
def test_delays_bring_races_of_real_streams_to_light(name: str) -> None:
    assert on_gpu.observe_on_gpu(name).different > 0


def test_draws_are_the_same_every_time() -> None:
    one, other = (on_gpu.Delays(random.Random(3), lambda _: None) for _ in range(2))
    for delays in (one, other):
        with delays:
            torch.ones(2) + 1
            nn.functional.linear(torch.ones(2), torch.ones(2, 2))
    assert one.spent == other.spent
    assert len(one.spent) == 2
