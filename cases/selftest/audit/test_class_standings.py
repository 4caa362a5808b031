"""The standing of one class, judged in this process: what it is judged by, its reach and its places."""

from pathlib import Path

from cases.selftest.audit.written_standings import MEMBER, audited_class, row, standing
from cases.selftest.engines.in_process_worker import InProcessWorker
from cases.selftest.engines.synthetic_plugins import VL, ascend_files, over, vllm_files
from cases.selftest.engines.synthetic_sglang_runners import BREAKABLE, BREAKABLE_FILE, with_runner
from cases.selftest.engines.synthetic_vllm import GRANITE, write, write_driven
from deepstack_harness.audit.audited_source import located
from deepstack_harness.audit.classes import judge_class, known_rules_of
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.engines.known import open_source

R = Rule


def test_a_class_without_methods_is_judged_by_the_orders_of_its_engine(tmp_path: Path) -> None:
    with InProcessWorker(str(write_driven(tmp_path))) as worker:
        found = next(one for one in worker.classes() if one.cut.member == GRANITE)
        assert (found.ways.methods, found.ways.forward) == (False, True)
        judged = judge_class(found, worker)
        orders = {str(order.trace) for order in (*worker.orders.live, *worker.orders.replayed)}
    assert judged.broken_in(Regime.LIVE) == {R.R3, R.R4}
    assert judged.broken_in(Regime.CAPTURED) == {R.R5}
    assert {one.trace for one in judged.rows if one.verdict is Verdict.FAIL} <= orders


def test_the_reach_of_a_graph_names_the_options_of_its_runner(tmp_path: Path) -> None:
    files = with_runner(BREAKABLE, BREAKABLE_FILE, "0.5.12")
    with InProcessWorker(str(write(tmp_path, files))) as worker:
        (found,) = worker.classes()
        rows = {(one.rule, one.regime): one for one in judge_class(found, worker).rows}
    lost = rows[R.R2, Regime.CAPTURED]
    assert lost.verdict is Verdict.XFAIL
    assert lost.reach == "flag: --enforce-piecewise-cuda-graph with --enable-breakable-cuda-graph"


def test_failures_of_the_base_are_known_where_a_plugin_keeps_its_storage(tmp_path: Path) -> None:
    base = open_source(str(write(tmp_path / "alone", vllm_files(VL))))
    known = known_rules_of(base, VL)
    assert R.R6 in known
    assert (
        known_rules_of(open_source(over(tmp_path, ascend_files(), vllm_files(VL))), VL).items()
        >= known.items()
    )


def test_a_class_that_is_made_by_a_statement_has_the_place_of_its_file(tmp_path: Path) -> None:
    root = write(tmp_path, {MEMBER: "Qwen3VL = type('Qwen3VL', (), {})  # deepstack\n"})
    found = audited_class("Qwen3VL")
    (placed,) = located(standing(row(R.R3, Verdict.FAIL)), open_source(str(root)), found).rows
    assert placed.where == MEMBER
