"""Which decoders do work on rows that the step does not have: on the CPU, and on an H200 that is not here.

Vllm 40917 (Granite, 13 instead of 63 tokens/s): 8192-row buffers, 77 tokens a step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from cases.baselines import (
    BaselineEntry,
    agreement,
    column_of,
    differences,
    figure_of,
    load,
    made_with,
    path_of,
    update,
)
from deepstack_harness.audit import systems
from deepstack_harness.catalogue.incidents import find
from deepstack_harness.compile.kernels import CPU, CUDA, Measurement, Subject, measure
from deepstack_harness.compile.torch_compat.targets import why_not
from deepstack_harness.contract.facts import GraphCall, Measured
from deepstack_harness.contract.oracles.compiler import judge_kernels as judge
from deepstack_harness.contract.verdicts import Verdict

TOKENS, CAPACITY = 77, 8192
WHY_NOT = why_not()
ON_H200 = [pytest.mark.xdist_group("kernels-h200"), pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]
TARGETS = [
    # All subjects, 44 s and 26 s: nightly; the test of the incident is for every day.
    pytest.param(CPU, marks=[pytest.mark.slow, pytest.mark.xdist_group("kernels-cpu")]),
    pytest.param("h200", marks=[pytest.mark.slow, *ON_H200]),
]
SUBJECTS: Mapping[str, dict[str, Any]] = {
    "sliced": {"revision": "granite_sliced"},
    "full": {"revision": "granite_full"},
    "sliced in the graph": {"revision": "granite_full", "profile_tokens": 512},
    "rows": {"revision": "granite_rows", "profile_tokens": 512},
    "sliced, static": {"revision": "granite_sliced", "static": True},
    "rows, static": {"revision": "granite_rows", "static": True},
    "qwen3_vl": {"family": "qwen3_vl", "revision": "pr43617", "layers": 3},
    "qwen3_omni_moe_thinker": {"family": "qwen3_omni_moe_thinker", "revision": "pr43617", "layers": 3},
}
# Before torch 2.12 the symbol of both sizes is bound to the step's rows, whichever is read first.
FAULTY = {"rows", "rows, static"}
FAULTY |= {"full"} if find("granite-rows").is_faulty("granite_full", version("torch")) else set()
OF_FAMILIES = ("sliced", "qwen3_vl", "qwen3_omni_moe_thinker")
Calls: TypeAlias = Mapping[str, GraphCall]


def subject(target: str, **changes: Any) -> Subject:
    """One layer of Granite, which has a level: a compile costs what its layers cost."""
    granite = {"family": "granite4_vision", "revision": "granite_sliced", "layers": 1}
    asked = {**granite, "profile_tokens": CAPACITY, **changes}
    return Subject(tokens=TOKENS, capacity=CAPACITY, target=target, **asked)


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def measured(target: str) -> Mapping[str, Measurement]:
    """Each subject, measured by one child, once for each target."""
    return _measured(target)


@cache  # pytest forgets what a module's fixture gave as soon as another target is requested
def _measured(target: str) -> Mapping[str, Measurement]:
    found = measure([subject(target, **changes) for changes in SUBJECTS.values()])
    return dict(zip(SUBJECTS, found, strict=True))


@pytest.fixture(scope="module")
def calls(measured: Mapping[str, Measurement]) -> Calls:
    """The one call of each subject's step."""
    return {name: measurement.calls[0] for name, measurement in measured.items()}


@pytest.mark.parametrize("target", [pytest.param("h200", marks=ON_H200)])
def test_the_incident_has_the_kernels_of_its_baseline(target: str, request: pytest.FixtureRequest) -> None:
    names = ("sliced", "full", "rows")
    asked = [subject(target, **SUBJECTS[name]) for name in names]
    found = measure(asked)
    verdicts = {
        name: judge(kernels.calls, TOKENS).verdict for name, kernels in zip(names, found, strict=True)
    }
    assert {name for name, verdict in verdicts.items() if verdict is not Verdict.PASS} == FAULTY & {*names}
    entries = [*map(BaselineEntry.from_measurement, found)]
    hold_against_baseline(request, target, found[0], entries, all_of_it=False)


def test_a_full_buffer_runs_its_capacity_where_its_size_is_read_first(calls: Calls) -> None:
    full, sliced = calls["full"], calls["sliced"]
    if "full" not in FAULTY:
        assert (full.rows, full.bytes) == (TOKENS, sliced.bytes)
        return
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


def test_kernels_over_the_capacity_have_no_token_symbol(calls: Calls) -> None:
    rows, sliced = calls["rows"], calls["sliced"]
    assert all(kernel.carries_tokens for kernel in sliced.kernels)
    lacking = [kernel for kernel in rows.kernels if not kernel.carries_tokens]
    assert {kernel.rows for kernel in lacking} == {CAPACITY}
    assert len(lacking) == 1  # one for each level


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
        assert measurement.peak_bytes < 2 * 2**30


@pytest.mark.slow  # the baseline holds this run's process against another every day, toys two threads
def test_another_process_with_other_compile_threads_gives_equal_facts(
    target: str, measured: Mapping[str, Measurement]
) -> None:
    (again,) = measure([subject(target, **SUBJECTS["qwen3_vl"], compile_threads=2)])
    assert again.calls == measured["qwen3_vl"].calls


def test_the_rule_of_work_is_broken_by_whole_buffers_only(calls: Calls) -> None:
    judgements = {name: judge([call], TOKENS) for name, call in calls.items()}
    assert {name for name, judgement in judgements.items() if judgement.verdict is not Verdict.PASS} == FAULTY
    for name in FAULTY:
        judgement = judgements[name]
        assert (judgement.verdict, judgement.value, judgement.limit) == (Verdict.FAIL, CAPACITY, TOKENS)


def test_the_incident_is_judged_as_the_catalogue_has_it(
    target: str, measured: Mapping[str, Measurement], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `repro granite-rows` judges, measured above already: of one layer, for the target."""
    known = {subject(target, **SUBJECTS[name]): found for name, found in measured.items()}
    monkeypatch.setattr(
        systems,
        "measure",
        lambda asked: [known[replace(request, target=target, layers=1)] for request in asked],
    )
    incident = find("granite-rows")
    judged = {variant.model_class: variant for variant in systems.Kernels().ours(incident)}
    assert all(judgement.as_expected for judgement in judged.values()), judged
    for name in (name for name in incident.faulty if judged[name].must_break):
        (row,) = judged[name].rows
        assert (row.system, row.incident, row.rule) == ("kernels", "granite-rows", "R10")
        assert (row.value, row.limit, row.arm) == (CAPACITY, TOKENS, "inductor/drop_all/no_size_asserts")
        assert (row.effect,) == incident.effects
    assert "1,048,576 points (128*s" in judged["granite_rows"].figures
    assert f"n = {CAPACITY if 'full' in FAULTY else TOKENS}" in judged["granite_full"].figures


def test_facts_are_those_of_the_baseline(
    target: str, measured: Mapping[str, Measurement], request: pytest.FixtureRequest
) -> None:
    entries = [*map(BaselineEntry.from_measurement, measured.values())]
    hold_against_baseline(request, target, measured["sliced"], entries)


def hold_against_baseline(
    request: pytest.FixtureRequest,
    target: str,
    made_by: Measurement,
    entries: Sequence[BaselineEntry],
    *,
    all_of_it: bool = True,
) -> None:
    """Whatever differs fails, improvements included; without `all_of_it` other entries of the column stay.

    A torch without a column is compared with nothing: skipped, with the command that writes the column.
    """
    path, column = path_of(target, made_by.device), column_of(made_by)
    node = request.node.nodeid.partition("@")[0]  # pytest-xdist appends the group
    command = f"python -m pytest -m '' '{node}' --deepstack-update-baselines=all"
    known = load(path) if path.exists() else None
    names = {entry.name for entry in entries}
    if not all_of_it and known:
        names |= {entry.name for entry in known.entries(column)}
    wanted = request.config.getoption("--deepstack-update-baselines")
    if wanted:
        update(path, column, made_with(made_by), entries, names, only_new=wanted == "new")
        known = load(path)
    elif known is None or column not in known.columns:
        pytest.skip(f"not compared: no baseline for torch {column}; write it with {command}")
    found = differences(known.entries(column), entries, names)
    assert not found, "\n".join([*map(str, found), f"where this is right: {command}"])


@pytest.mark.slow  # a minute for each target
@pytest.mark.parametrize("target", TARGETS)
def test_a_decoder_of_real_size_is_measured_without_its_weights(target: str) -> None:
    (found,) = measure([replace(subject(target), tokens=1024, layers=36, hidden=2560)])
    (call,) = found.calls
    assert found.peak_bytes < 2 * 2**30
    assert call.largest.points == 1024 * 5120
    assert call.bytes == call.ideal_bytes


@pytest.mark.gpu
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_what_is_predicted_for_an_h200_is_what_one_runs(
    request: pytest.FixtureRequest, keep_figure: Callable[[Measured], None]
) -> None:
    """On another GPU everything is measured and stored, and the share that was predicted is not judged."""
    asked = [subject("h200", **SUBJECTS[name], cubin=True) for name in OF_FAMILIES]
    on_gpu = [replace(request, target=CUDA, cubin=False) for request in asked]
    predicted, real = measure(asked), measure(on_gpu)
    found = [
        agreement(predicted_kernels.calls[0], other.calls[0])
        for predicted_kernels, other in zip(predicted, real, strict=True)
    ]
    for seen, agreeing in zip(real, found, strict=True):
        keep_figure(figure_of(seen, agreeing))
    entries = [
        BaselineEntry.from_measurement(seen, agreeing.share)
        for seen, agreeing in zip(real, found, strict=True)
    ]
    if folder := request.config.getoption("--baselines-out"):
        keep_baseline(Path(folder), real[0], entries)
    assert all(kernel.grid for kernels in real for kernel in kernels.calls[0].generated)
    if "H200" in real[0].device:
        assert min(share.share for share in found) >= 0.9, [share.differing for share in found]
    hold_against_baseline(request, CUDA, real[0], entries)


def keep_baseline(folder: Path, made_by: Measurement, entries: Sequence[BaselineEntry]) -> None:
    """Write the file of baselines of a GPU into a folder, with its column next to those that are known."""
    known = path_of(CUDA, made_by.device)
    file = folder / known.name
    folder.mkdir(parents=True, exist_ok=True)
    if known.exists() and not file.exists():
        file.write_bytes(known.read_bytes())
    names = {entry.name for entry in entries}
    update(file, column_of(made_by), made_with(made_by), entries, names, only_new=False)


@pytest.mark.parametrize(
    ("device", "name", "beside"),
    [("NVIDIA H200", "kernels-h200.json", True), ("NVIDIA H100", "kernels-cuda.json", False)],
)
def test_a_gpu_is_recorded_as_a_column_next_to_what_is_known(
    tmp_path: Path, device: str, name: str, *, beside: bool
) -> None:
    cuda = subject(CUDA, **SUBJECTS["sliced"])
    seen = Measurement(cuda, "granite4_vision", (), 1, "2.11.0+cu130", "3.6.0", device, 1.0, 1.0, 1)
    known = load(path_of("h200", "")).entries("2.13")[0]
    keep_baseline(tmp_path / "new", seen, [known])
    kept = load(tmp_path / "new" / name)
    assert kept.entries(f"2.11 on {device}") == (known,)
    assert kept.columns[f"2.11 on {device}"] == "torch 2.11.0, triton 3.6.0"
    assert ("2.13" in kept.columns) is beside
