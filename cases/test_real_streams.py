"""Dual streams (vLLM #36795) on a GPU, judged by R13; on a CPU the same player rehearses on one stream.

Delays before each operation bring a missing wait to light: `cases.real_streams` counts the repetitions
whose bits differ from those of the sequential projections.  Without a GPU the `gpu` cases are skipped.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cases import real_streams
from cases.selftest.engines.synthetic_vllm import STREAM_FILE, write_systems
from cases.selftest.workers.misbehaving import ALWAYS
from deepstack_harness.audit.streams import device
from deepstack_harness.audit.streams.device import Lanes, Project
from deepstack_harness.audit.streams.projections import dual_stream_named
from deepstack_harness.audit.streams.subgraphs import one_stream
from deepstack_harness.audit.system_work import observe_ordering
from deepstack_harness.contract.facts import Measured, OnDevice, System, SystemSubject
from deepstack_harness.contract.oracles.neighbours import judge_ordering
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.errors import NotMeasured, UsageError

RACES = ("start_forgotten", "done_forgotten", "done_recorded_outside")
"""Variants in which a stream reads too early; the other faults need the allocator or a rehearsal to show."""


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["dual", "dual_of_copy", "sequential"])
def test_real_streams_give_the_sequential_bits(name: str, keep_figure: Callable[[Measured], None]) -> None:
    on_gpu = real_streams.observe_on_gpu(name)
    keep_figure(
        Measured(
            "dual streams at the sizes of Qwen3-Next", on_gpu.microseconds, "us",
            on_gpu.sequential_microseconds, {"variant": name, "device": on_gpu.device},
            f"{on_gpu.different} of {on_gpu.repetitions} repetitions with random delays differ in their bits",
        )
    )  # fmt: skip
    assert (on_gpu.different, on_gpu.ended, on_gpu.repetitions) == (0, "", real_streams.REPETITIONS)
    assert min(on_gpu.microseconds, on_gpu.sequential_microseconds) > 0
    subject = SystemSubject(System.DUAL_STREAM, name)
    seen = observe_ordering(subject, dual_stream_named(name), backends=(), layers=(), on_device=on_gpu)
    assert judge_ordering(seen).verdict is Verdict.PASS, judge_ordering(seen)


@pytest.mark.gpu
@pytest.mark.parametrize("name", RACES)
def test_delays_bring_races_of_real_streams_to_light(
    name: str, keep_figure: Callable[[Measured], None]
) -> None:
    on_gpu = real_streams.observe_on_gpu(name)
    conditions: dict[str, str | int | float] = {"variant": name, "device": on_gpu.device}
    repetitions = float(on_gpu.repetitions)
    keep_figure(
        Measured(
            "repetitions of a race that differ", on_gpu.different, "repetitions", repetitions, conditions
        )
    )
    assert on_gpu.different > 0


@pytest.mark.slow  # the same refusal by day in cli/test_refusals.py
@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_machine_without_a_gpu_measures_nothing() -> None:
    with pytest.raises(NotMeasured, match="dual on cuda: device 'cuda' is not available"):
        real_streams.observe_on_gpu("dual")


@pytest.mark.slow  # 3 s each
@pytest.mark.parametrize("name", [*RACES, "dual"])
def test_on_a_cpu_a_worker_plays_every_repetition_and_one_stream_shows_no_race(name: str) -> None:
    rehearsed = real_streams.observe_on_gpu(name, device="cpu", repetitions=20)
    assert rehearsed == OnDevice("cpu", 20, 0)


@pytest.mark.parametrize("name", ["hang_always", "crash_always", "flood_always"])
def test_a_worker_that_hangs_dies_or_floods_is_a_finding(name: str) -> None:
    timeout_s = 0.5 if name == "hang_always" else 60
    assert misbehaving(name, timeout_s).ended.startswith(ALWAYS[name])


def test_a_worker_that_raises_measured_nothing() -> None:
    with pytest.raises(NotMeasured, match="dual on cuda: ValueError: because"):
        misbehaving("refuse_always")


def misbehaving(name: str, timeout_s: float = 60) -> OnDevice:
    target = f"cases.selftest.workers.misbehaving:{name}"
    return real_streams.observe_on_gpu("dual", source="x", timeout_s=timeout_s, target=target)


def test_an_unknown_variant_or_helper_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match="unknown dual-stream variant 'duel'; did you mean 'dual'. known are sequential, dual,",
    ):
        real_streams.way_of("duel", None)
    tree = str(write_systems(tmp_path, streams=STREAM_FILE))
    assert real_streams.way_of("maybe_execute_in_parallel", tree).settings
    with pytest.raises(UsageError, match=r"has no 'execute_in_parallel'; it has maybe_execute_in_parallel$"):
        real_streams.way_of("execute_in_parallel", tree)


def repeat(project: Project, spin: Callable[[int], None] = lambda _: None) -> tuple[int, str]:
    return real_streams.repeat(project, one_stream(), torch.device("cpu"), 40, spin)


def test_a_result_of_an_earlier_repetition_is_seen() -> None:
    old: list[tuple[Tensor, ...]] = []

    def late(x: Tensor, weights: tuple[Tensor, ...], lanes: Lanes) -> tuple[Tensor, ...]:
        results = device.sequential(x, weights, lanes)
        old.append(results)
        return old[-3] if len(old) == 60 else results  # two layers ago, in the last layer of repetition 29

    assert repeat(device.sequential) == (0, "")
    different, first = repeat(late)
    assert different == 1
    assert first.startswith("repetition 29, cycles before each operation: [")


def test_inputs_that_give_one_result_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_streams, "run_layers", lambda *_: torch.zeros(1))
    with pytest.raises(NotMeasured, match="two inputs give one result: an old result would go unseen"):
        repeat(device.sequential)


def test_delays_come_before_every_operation_and_differ() -> None:
    cycles: list[int] = []
    repeat(device.sequential, cycles.append)
    assert len(cycles) == 40 * 2 * 4  # two layers: input, two projections, sum
    assert set(cycles) == {0, 20_000, 200_000}


def test_draws_are_the_same_every_time() -> None:
    drawn = []
    for _ in range(2):
        with real_streams.Delays(random.Random(3), lambda _: None) as delays:
            torch.ones(2) + 1
            nn.functional.linear(torch.ones(2), torch.ones(2, 2))
        drawn.append(delays.spent)
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 2
