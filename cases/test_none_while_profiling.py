"""The figures of vLLM issue 43602: how far off, and equal to what."""

import pytest

from cases.by_day import by_day
from cases.played import observed
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, registered
from deepstack_harness.contract.observation import Distances, Observation
from deepstack_harness.contract.trace import Trace

TRACE = Trace.parse("cap 16: profile 16; set 16; forward 16")
FAULTY = ("pr40145", "pr40932")
FIX = "pr43617"
OTHERS = ("original", "pr49397", "reference")
"""Right as well; `cases/test_incidents.py` plays them every day, so that their figures are nightly."""
CLOSE = 1e-4
FAR = 0.1
BACKENDS = [
    pytest.param("eager", marks=pytest.mark.xdist_group("eager")),
    # Between the two others: nightly.
    pytest.param("aot_eager", marks=[pytest.mark.slow, pytest.mark.xdist_group("aot_eager")]),
    pytest.param("inductor", marks=pytest.mark.xdist_group("inductor")),
]


def played(revision: str, arm: str) -> Observation:
    return observed(Case("qwen3_vl", registered(revision), TRACE, ArmSpec.parse(arm)), few_layers=True)


def last_forward(observation: Observation) -> Distances:
    distances = observation.steps[-1].distances
    assert distances is not None
    assert distances.effect > FAR, "the payload does not show in the output"
    return distances


@pytest.mark.parametrize("revision", [pytest.param(FAULTY[0], marks=pytest.mark.slow), FAULTY[1]])
@pytest.mark.parametrize("backend", BACKENDS)
def test_guards_dropped_the_faulty_equal_a_model_without_deepstack(backend: str, revision: str) -> None:
    observation = played(revision, f"{backend}/drop_all")
    distances = last_forward(observation)
    assert distances.eager > FAR
    assert distances.no_deepstack is not None
    assert distances.no_deepstack < CLOSE
    assert observation.graphs is not None
    assert (observation.graphs.graphs, observation.graphs.recompiles) == (1, 0)
    assert [guard.rule for guard in observation.graphs.failed] == ["L['payload'] is None"]


@pytest.mark.parametrize(
    "revision", [FIX, *(pytest.param(other, marks=pytest.mark.slow) for other in OTHERS)]
)
@pytest.mark.parametrize("backend", by_day(BACKENDS))
def test_guards_dropped_the_fixed_equal_eager(backend: str, revision: str) -> None:
    observation = played(revision, f"{backend}/drop_all")
    distances = last_forward(observation)
    assert distances.eager < CLOSE
    assert (distances.no_deepstack or 0) > FAR
    assert observation.graphs is not None
    assert observation.graphs.failed == ()


@pytest.mark.xdist_group("eager")
@pytest.mark.parametrize(
    "revision",
    [FAULTY[1], FIX, *(pytest.param(revision, marks=pytest.mark.slow) for revision in (FAULTY[0], *OTHERS))],
)
@pytest.mark.slow  # 2 s each; eager/stock of test_incidents.py by day
def test_with_all_guards_all_are_right(revision: str) -> None:
    observation = played(revision, "eager/stock")
    assert last_forward(observation).eager < CLOSE
    assert observation.graphs is not None
    assert observation.graphs.graphs == (2 if revision in FAULTY else 1)


@pytest.mark.slow  # by day without any guard
@pytest.mark.xdist_group("eager")
@pytest.mark.parametrize("arm", ["eager/shape_env_only", "eager/keep_tensor"])
def test_weaker_guards_miss_it_silently(arm: str) -> None:
    observation = played("pr40932", arm)
    assert last_forward(observation).eager > FAR
    assert not [facts for facts in observation.steps if facts.raised]
