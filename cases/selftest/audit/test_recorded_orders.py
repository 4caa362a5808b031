"""A source is judged by recorded orders where its deciding functions equal those of the recording."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cases.selftest.engines.synthetic_vllm import HANDS_ON, ModelFile, Vllm
from deepstack_harness.audit.classes import judge_class
from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.catalogue import orders
from deepstack_harness.catalogue import orders as recorded
from deepstack_harness.catalogue.orders import EngineRecording, RecordedOrder
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Row
from deepstack_harness.engines.known import open_source
from deepstack_harness.engines.syntax import function_hashes

RUNNER = "class Runner:\n    def step(self):\n        return 1\n"
NAME = "vllm.v1.worker.runner.Runner.step"


def tree(folder: Path, runner: str = RUNNER) -> Path:
    root = Vllm("0.10.0", str(ModelFile(more=HANDS_ON))).tree(folder)  # of 0.10.0 no failures are known
    file = root / "vllm/v1/worker/runner.py"
    file.parent.mkdir(parents=True)
    file.write_text(runner)
    return root


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deciding = function_hashes(open_source(str(tree(tmp_path / "recorded"))), [NAME])
    profile = RecordedOrder("cap 16: profile 16; set 9; forward 9", "seen", ((),), replayed=False)
    one = EngineRecording("vllm", "0.10.0", "a runner", deciding, (profile,))
    for module in (orders, recorded):
        monkeypatch.setattr(module, "recordings", lambda package: (one,) if package == "vllm" else ())


def rows_of(root: Path) -> Mapping[Rule, Row]:
    with SourceWorker(str(root)) as worker:
        (found,) = worker.classes()
        judged = judge_class(found, worker).rows
    return {row.rule: row for row in judged if row.regime is Regime.LIVE}


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize(
    ("runner", "evidence"),
    [
        (f"import torch\n\n\n{RUNNER}\n    def more(self):\n        return 3\n", "engine"),
        pytest.param(RUNNER.replace("return 1", "return 2"), "read", marks=pytest.mark.slow),
        pytest.param("", "read", marks=pytest.mark.slow),
    ],
)
def test_evidence_follows_from_the_functions_that_decide(tmp_path: Path, runner: str, evidence: str) -> None:
    rows = rows_of(tree(tmp_path / "audited", runner))
    assert (rows[Rule.R1].reach, rows[Rule.R1].evidence) == ("default", evidence)


def test_an_unknown_reach_says_how_many_orders_were_tried(tmp_path: Path) -> None:
    """A class whose forward cannot be driven: an argument for `latent` holds for driven ones alone."""
    text = str(ModelFile(more=HANDS_ON.replace("self.language_model", "self.nothing")))
    rows = rows_of(Vllm("0.10.0", text).tree(tmp_path))
    unknown = {row.rule: row.detail for row in rows.values() if row.reach == "unknown"}
    assert Rule.R8 in unknown
    tried = f"; {len(orders.VLLM_ORDERS.live)} orders of the engine tried"
    assert all(detail.endswith(tried) for detail in unknown.values())
    assert all("orders of the engine" not in row.detail for row in rows.values() if row.rule not in unknown)
