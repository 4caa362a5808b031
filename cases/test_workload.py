"""Incident 43602 as an evaluation sees it: the traffic of Geometry3K, hundreds of steps on one graph."""

import pytest

from cases.played import observed
from deepstack_harness.catalogue.geometry3k import load_workload
from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.plans import Where, plan_workload
from deepstack_harness.catalogue.workload import serve, to_trace
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.oracles.outputs import Evaluation, evaluate
from deepstack_harness.contract.trace import Trace

REQUESTS = 80


@pytest.fixture(scope="module")
def trace() -> Trace:
    return to_trace(serve(load_workload()[:REQUESTS]))


def served(trace: Trace, revision: str) -> tuple[Observation, Evaluation]:
    plan = plan_workload(find("43602"), Where("qwen3_vl"), trace)
    arm = ArmSpec.parse("eager/drop_all")
    planned = next(case for case in plan if (case.case.buffer.name, case.case.arm) == (revision, arm))
    seen = observed(planned.case, few_layers=True)
    return seen, evaluate(planned.case, seen)


@pytest.mark.parametrize(
    ("revision", "lowest", "highest"),
    [
        ("pr40932", 0.0, 0.5),
        pytest.param("pr43617", 1.0, 1.0, marks=pytest.mark.slow),
    ],
)
def test_greedy_agreement_with_eager(trace: Trace, revision: str, lowest: float, highest: float) -> None:
    seen, found = served(trace, revision)
    assert found.agreement is not None
    assert lowest <= found.agreement <= highest
    assert (found.runs >= 150, found.counts >= 50, found.died, found.leaked) == (True, True, 0, 0)
    assert seen.graphs is not None
    assert (seen.graphs.graphs, seen.graphs.recompiles) == (1, 0)
