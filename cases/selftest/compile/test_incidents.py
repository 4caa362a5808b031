"""R10 of generated kernels: the oracle on kernels written by hand, and the incident that it catches."""

from dataclasses import replace
from typing import cast

import msgspec
import pytest

from deepstack_harness.audit import systems
from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.audit.systems import VARIANTS, Kernels, system_of
from deepstack_harness.catalogue.incidents import find
from deepstack_harness.compile.kernels import Measurement
from deepstack_harness.contract.facts import GraphCall, Kernel
from deepstack_harness.contract.oracles.compiler import judge_kernels as judge
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.errors import NotMeasured, UsageError

ADD = Kernel(
    graph=0, kernel="fused_add", kind="generated", points=9856, symbolic_points="128*n", reduction=1,
    symbolic_reduction="1", rows=77, symbolic_rows="n", bytes=39424, ideal_bytes=39424, carries_tokens=True,
)  # fmt: skip
ATTENTION = replace(ADD, kind="extern", points=None, symbolic_points=None)
FIXED = replace(ADD, points=1048576, symbolic_points="1048576", carries_tokens=False)
WEIGHT = replace(FIXED, rows=None, symbolic_rows=None)
INCIDENT = find("granite-rows")


def said_of(*kernels: Kernel, symbolic: bool = True) -> Judgement:
    return judge([GraphCall(0, symbolic=symbolic, symbols={"n": 77}, kernels=kernels)], 77)


@pytest.mark.parametrize(
    ("kernels", "verdict", "value", "limit", "unit"),
    [
        ((ADD, ATTENTION, WEIGHT), Verdict.PASS, 77, 77, "rows"),
        ((ADD, replace(ADD, rows=8192)), Verdict.FAIL, 8192, 77, "rows"),
        ((ADD, replace(ATTENTION, rows=8192)), Verdict.FAIL, 8192, 77, "rows"),
        ((ADD, replace(FIXED, rows=8192)), Verdict.FAIL, 8192, 77, "rows"),
        ((ADD, FIXED, FIXED), Verdict.FAIL, 2, 0, "kernels"),
        ((replace(ADD, bytes=42000),), Verdict.FAIL, 42000, 1.05 * 39424, "bytes"),
        ((replace(ADD, bytes=41000),), Verdict.PASS, 77, 77, "rows"),
    ],
)
def test_kernels_are_held_against_the_rows_the_symbol_and_the_bytes_of_the_step(
    kernels: tuple[Kernel, ...], verdict: Verdict, value: float, limit: float, unit: str
) -> None:
    judgement = said_of(*kernels)
    assert (judgement.rule, judgement.verdict, judgement.value, judgement.unit) == (
        Rule.WORK,
        verdict,
        value,
        unit,
    )
    assert judgement.limit == pytest.approx(limit)


def test_sizes_that_were_compiled_in_need_no_symbol() -> None:
    assert said_of(ADD, FIXED, symbolic=False).verdict is Verdict.PASS


@pytest.mark.parametrize("calls", [(), ((),), ((ATTENTION,),), ((ADD,), ())])
def test_nothing_measured_is_not_judged(calls: tuple[tuple[Kernel, ...], ...]) -> None:
    judgement = judge([GraphCall(0, symbolic=True, symbols={}, kernels=kernels) for kernels in calls], 77)
    assert judgement.verdict is Verdict.ERROR


def test_the_detail_names_which_of_the_three_were_seen() -> None:
    assert said_of(ADD, replace(ADD, rows=8192), FIXED).detail == (
        "1 of 3 kernels run more than the step's 77 rows, 1 have a size without the token symbol; "
        "118,272 bytes moved, 118,272 must"
    )


def test_the_incident_names_the_variants_that_are_measured() -> None:
    assert sorted(INCIDENT.revisions) == sorted(VARIANTS)
    assert isinstance(system_of(INCIDENT), Kernels)


def test_what_was_not_measured_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def cached(_: object) -> list[Measurement]:
        raise NotMeasured("1 graphs came out of a warm compile cache")

    monkeypatch.setattr(systems, "measure", cached)
    found = list(Kernels().ours(INCIDENT))
    assert [judged.unjudged for judged in found] == [{Rule.WORK}] * len(VARIANTS)
    assert not any(judged.as_expected for judged in found)


def test_a_revision_that_is_as_it_should_not_be_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    call = GraphCall(0, symbolic=True, symbols={"n": 77}, kernels=(ADD,))
    sizes = ((call,), 1, "2.13.0", None, "cpu", 1.0, 1.0, 1)
    monkeypatch.setattr(
        systems,
        "measure",
        lambda subjects: [Measurement(subject, "granite4_vision", *sizes) for subject in subjects],
    )
    wrong = [judged.model_class for judged in Kernels().ours(INCIDENT) if not judged.as_expected]
    assert wrong == list(INCIDENT.faulty)


def test_no_source_is_compiled() -> None:
    source = type("Named", (), {"label": "vllm 0.33.0"})
    worker = cast(SourceWorker, type("Named", (), {"source": source}))
    with pytest.raises(UsageError, match="no class of vllm 0.33.0 is compiled for it: leave --source out"):
        Kernels().theirs(INCIDENT, worker)


def test_a_variant_that_nobody_knows_is_refused() -> None:
    with pytest.raises(
        UsageError, match="unknown variant 'granite_no' of system kernels; known are granite_rows, "
    ):
        list(Kernels().ours(msgspec.structs.replace(INCIDENT, faulty=("granite_no",), faulty_since={})))
