"""The verdicts of a class: what it is judged by, its reach, its places, and recorded orders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from cases.selftest.audit.written_verdicts import MEMBER, audited_class, class_verdicts, row
from cases.selftest.engines.in_process_worker import InProcessWorker
from cases.selftest.engines.synthetic_plugins import VL, ascend_files, over, vllm_files
from cases.selftest.engines.synthetic_sglang_runners import BREAKABLE, BREAKABLE_FILE, with_runner
from cases.selftest.engines.synthetic_vllm import GRANITE, HANDS_ON, ModelFile, Vllm, write, write_driven
from deepstack_harness.audit import classes
from deepstack_harness.audit.audited_source import located
from deepstack_harness.audit.classes import judge_class, known_rules_of
from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.catalogue import orders
from deepstack_harness.catalogue.known import KnownFailure, KnownRules
from deepstack_harness.catalogue.orders import EngineRecording, RecordedOrder
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Row, Verdict
from deepstack_harness.engines.known import open_source
from deepstack_harness.engines.syntax import function_hashes

R = Rule


@pytest.mark.parametrize(
    ("worst_reach", "reach", "verdict"),
    [
        ("flag", "flag: --enable-dbo", Verdict.XFAIL),
        ("flag", "latent", Verdict.XFAIL),
        ("flag", "default", Verdict.FAIL),
        ("default", "default", Verdict.XFAIL),
    ],
)
def test_a_known_failure_that_default_settings_lead_to_is_new(
    worst_reach: Literal["flag", "default"], reach: str, verdict: Verdict
) -> None:
    entry = KnownFailure("vllm", "", ("*",), (R.CLEAR,), "unreported", worst_reach=worst_reach)
    known = classes._against_known_reach(row(R.CLEAR, Verdict.XFAIL, reach), KnownRules([entry]))
    assert known.verdict is verdict
    assert ("worse than the known failure" in known.detail) is (verdict is Verdict.FAIL)


def test_a_class_without_methods_is_judged_by_the_orders_of_its_engine(tmp_path: Path) -> None:
    with InProcessWorker(str(write_driven(tmp_path))) as worker:
        found = next(audited for audited in worker.classes() if audited.found.member == GRANITE)
        assert (found.ways.methods, found.ways.forward) == (False, True)
        judged = judge_class(found, worker)
        orders = {str(order.trace) for order in (*worker.orders.live, *worker.orders.replayed)}
    assert judged.broken_in(Regime.LIVE) == {R.FRESHNESS, R.CAPACITY}
    assert judged.broken_in(Regime.CAPTURED) == {R.CLEAR}
    assert {row.trace for row in judged.rows if row.verdict is Verdict.FAIL} <= orders


def test_the_reach_of_a_graph_names_the_options_of_its_runner(tmp_path: Path) -> None:
    files = with_runner(BREAKABLE, BREAKABLE_FILE, "0.5.12")
    with InProcessWorker(str(write(tmp_path, files))) as worker:
        (found,) = worker.classes()
        rows = {(row.rule, row.regime): row for row in judge_class(found, worker).rows}
    lost = rows[R.BOUNDARY, Regime.CAPTURED]
    assert lost.verdict is Verdict.XFAIL
    assert lost.reach == "flag: --enforce-piecewise-cuda-graph with --enable-breakable-cuda-graph"


def test_failures_of_the_base_are_known_where_a_plugin_uses_its_storage(tmp_path: Path) -> None:
    base = open_source(str(write(tmp_path / "alone", vllm_files(VL))))
    known = known_rules_of(base, VL)
    assert R.ADDRESS in known
    assert (
        known_rules_of(open_source(over(tmp_path, ascend_files(), vllm_files(VL))), VL).items()
        >= known.items()
    )


def test_a_class_that_is_made_by_a_statement_has_the_place_of_its_file(tmp_path: Path) -> None:
    root = write(tmp_path, {MEMBER: "Qwen3VL = type('Qwen3VL', (), {})  # deepstack\n"})
    found = audited_class("Qwen3VL")
    (placed,) = located(class_verdicts(row(R.FRESHNESS, Verdict.FAIL)), open_source(str(root)), found).rows
    assert placed.where == MEMBER


RUNNER = "class Runner:\n    def step(self):\n        return 1\n"
NAME = "vllm.v1.worker.runner.Runner.step"


def with_runner_file(folder: Path, runner: str = RUNNER) -> Path:
    root = Vllm("0.10.0", str(ModelFile(more=HANDS_ON))).tree(folder)  # of 0.10.0 no failures are known
    file = root / "vllm/v1/worker/runner.py"
    file.parent.mkdir(parents=True)
    file.write_text(runner)
    return root


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deciding = function_hashes(open_source(str(with_runner_file(tmp_path / "recorded"))), [NAME])
    profile = RecordedOrder("cap 16: profile 16; set 9; forward 9", "seen", ((),), replayed=False)
    one = EngineRecording("vllm", "0.10.0", "a runner", deciding, (profile,))
    monkeypatch.setattr(orders, "recordings", lambda package: (one,) if package == "vllm" else ())


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
    rows = rows_of(with_runner_file(tmp_path / "audited", runner))
    assert (rows[Rule.STRUCTURE].reach, rows[Rule.STRUCTURE].evidence) == ("default", evidence)


@pytest.mark.slow  # 2 s
def test_an_unknown_reach_states_how_many_orders_were_tried(tmp_path: Path) -> None:
    """A class whose forward cannot be called: an argument for `latent` only holds for others."""
    text = str(ModelFile(more=HANDS_ON.replace("self.language_model", "self.nothing")))
    rows = rows_of(Vllm("0.10.0", text).tree(tmp_path))
    unknown = {row.rule: row.detail for row in rows.values() if row.reach == "unknown"}
    assert Rule.REJECTION in unknown
    tried = f"; {len(orders.VLLM_ORDERS.live)} orders of the engine tried"
    assert all(detail.endswith(tried) for detail in unknown.values())
    assert all("orders of the engine" not in row.detail for row in rows.values() if row.rule not in unknown)
