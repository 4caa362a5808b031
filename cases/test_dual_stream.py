"""vLLM #36795: two projections on two streams, whether they are ordered, and how many subgraphs they make."""

import pytest

from deepstack_harness.audit.streams.projections import dual_stream_named, dual_streams_of
from deepstack_harness.audit.system_work import observe_ordering
from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.registry import DUAL_STREAM
from deepstack_harness.contract.facts import System, SystemSubject
from deepstack_harness.contract.oracles.judge import effect_of
from deepstack_harness.contract.oracles.neighbours import judge_ordering as judge
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.engines.known import open_source

pytestmark = pytest.mark.xdist_group("aot_eager")


@pytest.mark.parametrize("name", DUAL_STREAM)
def test_each_fault_is_caught_and_each_correct_way_passes(name: str) -> None:
    way = dual_stream_named(name)
    seen = observe_ordering(SystemSubject(System.DUAL_STREAM, name), way)
    found = judge(seen)
    assert found.verdict is (Verdict.FAIL if DUAL_STREAM[name].fault else Verdict.PASS), found
    incident = find("36795")
    if incident.script is not None and name == incident.script.subject:
        assert (effect_of(found),) == incident.effects
    compiled = [(counted.layers, counted.distinct, counted.compiled) for counted in seen.subgraphs]
    of_names, of_weights = [(1, 1, 1), (4, 4, 4), (16, 16, 16)], [(1, 1, 1), (4, 1, 1), (16, 1, 1)]
    assert compiled == ((of_names if way.named else of_weights) if way.subgraphs else [])


RELEASES = {
    "0.19.1": {"maybe_execute_in_parallel": 2},
    "0.20.0": {"maybe_execute_in_parallel": 2},
    "0.20.2": {"maybe_execute_in_parallel": 2, "execute_in_parallel": 3},
    "0.33.0": {"maybe_execute_in_parallel": 3, "execute_in_parallel": 4},
}
"""The helpers of a release, and in how many settings each is rehearsed."""


@pytest.mark.slow  # by day a source in audit/test_systems.py
@pytest.mark.network
@pytest.mark.parametrize("release", RELEASES)
def test_the_helpers_of_releases_are_ordered_in_every_setting(release: str) -> None:
    ways = dual_streams_of(open_source(f"vllm=={release}"))
    assert {name: len(way.settings) for name, way in ways.items()} == RELEASES[release]
    for name, way in ways.items():
        seen = observe_ordering(SystemSubject(System.DUAL_STREAM, f"vllm {release}", name, "vllm"), way)
        assert judge(seen).verdict is Verdict.PASS, judge(seen)
        used = {
            recording.setting: {operation.stream for operation in recording.operations}
            for recording in seen.recordings
        }
        assert used["two streams"] == {"main", "aux"}
