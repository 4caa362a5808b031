"""Cases: what they are about, which regime they are in, and ids that distinguish them."""

from dataclasses import replace

import msgspec
import pytest

from deepstack_harness.contract.arm import EAGER, ArmSpec
from deepstack_harness.contract.case import (
    BufferKind,
    BufferRef,
    Case,
    PlannedCase,
    Regime,
    live_buffer,
    parse_subject,
    registered,
    source_buffer,
    user_buffer,
)
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace

CASE = Case("qwen3_vl", registered("pr43617"), Trace.parse("cap 4: set 2; get 4"), EAGER)


@pytest.mark.parametrize(
    ("label", "package", "version"),
    [
        ("vllm 0.22.1", "vllm", "0.22.1"),
        ("vllm 0.22.0rc1", "vllm", "0.22.0rc1"),
        ("vllm at /src/vllm (v0.33.0-4-gabc)", "vllm", None),
        ("sglang 0.5.23", "sglang", "0.5.23"),
    ],
)
def test_a_source_is_known_by_package_version_and_class(
    label: str, package: str, version: str | None
) -> None:
    buffer = source_buffer(package, version, label, "Qwen3VL")
    assert buffer == BufferRef(BufferKind.SOURCE, label, package, version, "Qwen3VL")
    assert buffer.source == label


@pytest.mark.parametrize("buffer", [registered("reference"), user_buffer("m:C"), live_buffer("m:C")])
def test_a_buffer_of_ours_or_of_a_user_comes_from_no_source(buffer: BufferRef) -> None:
    assert (buffer.source, buffer.package, buffer.version, buffer.model_class) == (None,) * 4


def test_ids_differ_where_cases_do() -> None:
    others = [
        replace(CASE, buffer=registered("pr40932")),
        replace(CASE, caller="micro_batches"),
        replace(CASE, trace=Trace.parse("cap 4: set 3; get 4")),
        replace(CASE, arm=ArmSpec.parse("eager/full")),
        replace(CASE, dtype="float16"),
        replace(CASE, device="cuda"),
        replace(CASE, seed=1),
        replace(CASE, buffer=source_buffer("vllm", "0.33.0", "vllm 0.33.0", "One")),
        replace(CASE, buffer=source_buffer("vllm", "0.33.0", "vllm 0.33.0", "Other")),
        replace(CASE, buffer=replace(source_buffer("vllm", "0.33.0", "vllm 0.33.0", "Other"), replayed=True)),
    ]
    ids = {case.id for case in [CASE, *others]}
    assert len(ids) == len(others) + 1
    assert {len(id_) for id_ in ids} == {12}


@pytest.mark.parametrize(
    ("trace", "buffer", "regime"),
    [
        ("cap 4: set 2; forward 4", registered("reference"), Regime.LIVE),
        ("cap 4: capture 4; set 2; forward 4", registered("reference"), Regime.LIVE),
        ("cap 4: capture 4; set 2; replay 4; forward 4", registered("reference"), Regime.CAPTURED),
        (
            "cap 4: set 2; forward 4",
            replace(source_buffer("vllm", "0.33.0", "vllm 0.33.0", "Any"), replayed=True),
            Regime.CAPTURED,
        ),
    ],
)
def test_a_replayed_graph_makes_the_regime(trace: str, buffer: BufferRef, regime: Regime) -> None:
    assert replace(CASE, trace=Trace.parse(trace), buffer=buffer).regime is regime


def test_a_subject_names_a_caller_that_is_no_engine() -> None:
    assert (CASE.subject, parse_subject(CASE.subject)) == ("pr43617", ("pr43617", "engine"))
    other = replace(CASE, caller="micro_batches")
    assert parse_subject(other.subject) == ("pr43617", "micro_batches")
    assert other.subject == "pr43617@micro_batches"


def test_a_planned_case_goes_to_a_worker_as_json() -> None:
    buffer = source_buffer("vllm", None, "vllm at /src (v1)", "Any")
    planned = PlannedCase(replace(CASE, buffer=buffer), frozenset({Rule.CLEAR, Rule.OUTPUT}), "note", "43602")
    assert msgspec.json.decode(msgspec.json.encode(planned), type=PlannedCase) == planned
    assert planned.wanted == (Rule.OUTPUT, Rule.CLEAR)
    assert [planned.expects(rule) for rule in (Rule.OUTPUT, Rule.STRUCTURE)] == [True, False]
    assert (planned.id, planned.group) == (planned.case.id, "qwen3_vl eager cpu")
    unknown = replace(planned, must_break=None)
    assert (unknown.wanted, unknown.expects(Rule.OUTPUT)) == (None, None)
