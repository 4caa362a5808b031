"""Which decoders do work on rows that the step does not have: on the CPU, and on an H200 that is not here.

Vllm 40917 (Granite, 13 instead of 63 tokens/s): 8192-row buffers, 77 tokens a step.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

import pytest

from harness.kernel_facts import GraphCall
from harness.kernels.compare import agreement
from harness.kernels.isolated import measure
from harness.kernels.measurement import Measurement
from harness.kernels.subject import CPU, Subject
from harness.registry import FAMILIES

TOKENS, CAPACITY = 77, 8192
HAS_TRITON = importlib.util.find_spec("triton") is not None
TARGETS = [
    pytest.param(CPU, marks=pytest.mark.xdist_group("kernels-cpu")),
    pytest.param(
        "h200",
        marks=[
            pytest.mark.xdist_group("kernels-h200"),
            pytest.mark.skipif(not HAS_TRITON, reason="code for a GPU that is not here needs triton"),
        ],
    ),
]
SUBJECTS: Mapping[str, dict[str, object]] = {
    "sliced": {"revision": "granite_sliced"},
    "full": {"revision": "granite_full"},
    "sliced in the graph": {"revision": "granite_full", "profile_tokens": 512},
    "rows": {"revision": "granite_rows", "profile_tokens": 512},
    "sliced, static": {"revision": "granite_sliced", "static": True},
    "rows, static": {"revision": "granite_rows", "static": True},
}
Calls: TypeAlias = Mapping[str, GraphCall]


def subject(target: str, **changes: object) -> Subject:
    asked = {"revision": "granite_sliced", "profile_tokens": CAPACITY, **changes}
    return Subject("granite4_vision", tokens=TOKENS, capacity=CAPACITY, target=target, **asked)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=TARGETS)
def measured(request: pytest.FixtureRequest) -> Mapping[str, Measurement]:
    """Each subject, measured by one child."""
    found = measure([subject(request.param, **changes) for changes in SUBJECTS.values()])
    return dict(zip(SUBJECTS, found, strict=True))


@pytest.fixture(scope="module")
def calls(measured: Mapping[str, Measurement]) -> Calls:
    """The one call of each subject's step."""
    return {name: measurement.calls[0] for name, measurement in measured.items()}


def test_a_full_buffer_runs_its_capacity_where_its_size_is_read_first(calls: Calls) -> None:
    full, sliced = calls["full"], calls["sliced"]
    assert (full.rows, sliced.rows) == (CAPACITY, TOKENS)
    assert (full.symbols["n"], sliced.symbols["n"]) == (CAPACITY, TOKENS)
    assert full.bytes > 50 * sliced.bytes
    assert {kernel.rows for kernel in full.extern} == {CAPACITY}
    assert full.ideal_bytes == sliced.bytes


def test_the_code_of_a_full_buffer_is_that_of_the_sliced_one(calls: Calls) -> None:
    full, sliced = (
        [(kernel.kernel, kernel.symbolic_points) for kernel in calls[name].kernels]
        for name in ("full", "sliced")
    )
    assert full == sliced


@pytest.mark.parametrize("shapes", ["", ", static"])
def test_rows_that_must_exist_show_in_the_code_itself(calls: Calls, shapes: str) -> None:
    rows, sliced = calls[f"rows{shapes}"], calls[f"sliced{shapes}"]
    assert rows.largest.points >= 50 * sliced.largest.points  # type: ignore[operator]
    assert rows.bytes >= 5 * sliced.bytes
    assert (rows.rows, sliced.rows) == (CAPACITY, TOKENS)


def test_kernels_over_the_capacity_lack_the_token_symbol(calls: Calls) -> None:
    rows, sliced = calls["rows"], calls["sliced"]
    assert all(kernel.carries_tokens for kernel in sliced.kernels)
    lacking = [kernel for kernel in rows.kernels if not kernel.carries_tokens]
    assert {kernel.rows for kernel in lacking} == {CAPACITY}
    assert len(lacking) == 4  # one for each level


def test_a_slice_inside_the_graph_costs_nothing(calls: Calls) -> None:
    inside, sliced = calls["sliced in the graph"], calls["sliced"]
    assert inside.bytes == pytest.approx(sliced.bytes, rel=0.05)
    assert inside.bytes == inside.ideal_bytes
    assert inside.rows == TOKENS


def test_static_and_symbolic_sizes_give_the_same_figures(calls: Calls) -> None:
    for name in ("sliced", "rows"):
        symbolic, static = calls[name], calls[f"{name}, static"]
        assert (symbolic.symbolic, static.symbolic) == (True, False)
        for what in ("points", "bytes", "ideal_bytes", "rows"):
            assert getattr(symbolic, what) == getattr(static, what), what


def test_one_graph_is_compiled_and_costs_little(measured: Mapping[str, Measurement]) -> None:
    for measurement in measured.values():
        assert (measurement.graphs, len(measurement.calls)) == (1, 1)
        assert measurement.cost.peak_bytes < 2 * 2**30


def test_another_process_with_other_compile_threads_gives_equal_facts(
    measured: Mapping[str, Measurement],
) -> None:
    target = CPU if measured["sliced"].triton is None else "h200"
    (again,) = measure([subject(target, **SUBJECTS["rows, static"], compile_threads=2)])
    assert again.calls == measured["rows, static"].calls


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_a_decoder_of_real_size_is_measured_without_its_weights(target: str) -> None:
    (found,) = measure([replace(subject(target), tokens=1024, layers=36, hidden=2560)])
    (call,) = found.calls
    assert found.cost.peak_bytes < 2 * 2**30
    assert call.largest.points == 1024 * 5120
    assert call.bytes == call.ideal_bytes


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_TRITON, reason="code for a GPU that is not here needs triton")
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_predicted_for_an_h200_is_what_one_runs(family: str) -> None:
    import torch

    if "H200" not in torch.cuda.get_device_name():
        pytest.skip(f"predicts an H200, here is {torch.cuda.get_device_name()}")
    asked = Subject(family, "granite_sliced", TOKENS, CAPACITY, profile_tokens=512, target="h200", cubin=True)
    (predicted,), (real,) = measure([asked]), measure([replace(asked, target="cuda", cubin=False)])
    found = agreement(predicted.calls[0], real.calls[0])
    assert all(kernel.grid for kernel in real.calls[0].generated)
    assert found.share >= 0.9, found.differing
