"""Fuzzing our buffers: released ones are found out with no hint, `reference` passes every rule."""

import pytest
from hypothesis import example, given

from cases.selftest.fuzz.hunting import Until, hunted, target
from deepstack_harness.contract.trace import Trace
from deepstack_harness.fuzz.hunt import Hunt
from deepstack_harness.fuzz.player import InProcessPlayer
from deepstack_harness.fuzz.strategies import engine_traces, lifecycles

RELEASED = {
    "original": {"R3", "R4", "R5", "R8"},
    "pr40145": {"R1", "R2", "R5", "R8"},
    "pr40932": {"R1", "R3", "R4", "R5", "R8"},
    "pr43617": {"R3", "R4", "R5", "R8"},
}
"""Rules that are broken on a buffer without a decoder."""


# 5 s to 30 s each; every day `cases/selftest/fuzz/test_hunt.py` hunts on the newest of them.
@pytest.mark.slow
@pytest.mark.parametrize("revision", RELEASED)
def test_what_a_released_buffer_breaks_is_found_with_no_hint(revision: str) -> None:
    found = hunted(revision, 1000, watch=Until(*RELEASED[revision])).findings
    assert {finding.name for finding in found} == RELEASED[revision]


@pytest.mark.slow
def test_reference_survives_a_hundred_thousand_steps() -> None:
    result = hunted("reference", 3500)
    assert result.findings == []
    assert result.progress.steps >= 100_000


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["eager/drop_all", "eager/stock", "inductor/drop_all", "eager/full"])
def test_reference_survives_under_an_arm(arm: str) -> None:
    result = hunted("reference", 300, arm)
    assert result.findings == []
    assert result.progress.graphs == result.progress.budget


@pytest.fixture(scope="module")
def reference() -> Hunt:
    return Hunt(target("reference"), InProcessPlayer())


# Each is the shortest sequence of an incident (fixtures/incidents.toml); the pairs are those of crashes.
@given(lifecycles())
@example(Trace.parse("cap 16: profile 16; set 16; forward 16"))
@example(Trace.parse("cap 16: set 9; get 16; clear 16; get 16"))
@example(Trace.parse("cap 16: set 11; forward 16; set 14; forward 16"))
@example(Trace.parse("cap 80: set 76; forward 80; get 80"))
@example(Trace.parse("cap 480: set 309; forward 320; set 329; forward 336; set 479; forward 480; get 480"))
@example(Trace.parse("cap 16: set 9; clear 5; get 9"))
@example(Trace.parse("cap 16: set 9; clear 5; set 3; get 9"))
@example(Trace.parse("cap 16: set 16; get 20"))
@example(Trace.parse("cap 16: get 16; set 20; get 20; get 16"))
@example(Trace.parse("cap 16: set 8; get 4; clear 4; get 4; clear 4; get 16"))
@example(Trace.parse("cap 16: set 9; set 3; get 9"))
@example(Trace.parse("cap 16: get -1; set 4 levels=4; set 4 hidden=1; set 9; get 9; set 20 hidden=7; get 9"))
@example(Trace.parse("cap 16: set 9; get 9; resize 20; get 9; resize 4; get 9"))
def test_reference_passes_every_rule_on_any_trace(reference: Hunt, trace: Trace) -> None:
    assert reference.replay(trace, new_session=False) == ([], False)


@given(engine_traces(capacity=16, ranks=4))
def test_reference_passes_every_rule_in_an_engines_order(reference: Hunt, trace: Trace) -> None:
    assert reference.replay(trace, new_session=False) == ([], False)
