"""Incident 43602 as an evaluation sees it: the traffic of Geometry3K, hundreds of steps on one graph."""

import pytest

from deepstack_harness.catalogue.incidents import find
from deepstack_harness.catalogue.matrix import Where, plan_workload
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.trace import Trace
from deepstack_harness.oracles.evaluation import Evaluation, evaluate
from deepstack_harness.play.cells import Cell, Runner
from deepstack_harness.workload.geometry3k import load_workload
from deepstack_harness.workload.padding import unpadded
from deepstack_harness.workload.schedule import serve, to_trace

REQUESTS = 200


@pytest.fixture(scope="module")
def trace() -> Trace:
    return to_trace(serve(load_workload()[:REQUESTS]), pad=unpadded)


def served(trace: Trace, revision: str) -> tuple[Cell, Evaluation]:
    plan = plan_workload(find("43602"), Where("qwen3_vl"), trace)
    arm = ArmSpec.parse("eager/drop_all")
    planned = next(one for one in plan if (one.case.revision, one.case.arm) == (revision, arm))
    cell = Runner().play(planned)
    return cell, evaluate(cell.case, cell.observation)


@pytest.mark.parametrize(("revision", "lowest", "highest"), [("pr40932", 0.0, 0.5), ("pr43617", 1.0, 1.0)])
def test_greedy_agreement_with_eager(trace: Trace, revision: str, lowest: float, highest: float) -> None:
    cell, found = served(trace, revision)
    assert found.agreement is not None
    assert lowest <= found.agreement <= highest
    assert (found.runs >= 400, found.counts >= 100, found.died, found.leaked) == (True, True, 0, 0)
    assert cell.observation.graphs is not None
    assert (cell.observation.graphs.graphs, cell.observation.graphs.recompiles) == (1, 0)
