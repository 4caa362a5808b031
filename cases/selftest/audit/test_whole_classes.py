"""Classes are judged whole: what their own `embed_input_ids` and `forward` break is broken."""

from dataclasses import replace
from pathlib import Path

import pytest

from cases.selftest.engines.in_process_worker import InProcessWorker
from cases.selftest.engines.synthetic_vllm import line_of
from cases.selftest.engines.synthetic_whole import FORWARD, QWEN, RIGHT, WRONG, WholeClass
from deepstack_harness.audit.account import account_of
from deepstack_harness.audit.audited_source import located
from deepstack_harness.audit.class_verdicts import ClassVerdicts
from deepstack_harness.audit.classes import judge_class
from deepstack_harness.catalogue.orders import DEFAULT, FLAG
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, Row, Verdict


def judged(root: Path, written: WholeClass) -> ClassVerdicts:
    """The standing of a class, which is driven in both ways."""
    with InProcessWorker(str(written.write(root))) as worker:
        (found,) = worker.classes()
        assert (found.ways.methods, found.ways.forward) == (True, True), found.ways.refusals
        return located(judge_class(found, worker), worker.source, found)


def broken_rows(standing: ClassVerdicts) -> list[Row]:
    return [row for row in standing.rows if row.verdict in BROKEN]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_class_is_kept_however_it_is_written(tmp_path: Path, name: str) -> None:
    standing = judged(tmp_path, RIGHT[name])
    assert not [(row.rule, row.regime, row.detail) for row in broken_rows(standing)]
    assert not standing.unjudged
    assert standing.kept >= {"R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8"}


@pytest.mark.parametrize("name", WRONG)
def test_what_the_whole_class_breaks_is_broken_though_its_methods_keep_it(tmp_path: Path, name: str) -> None:
    written = WRONG[name]
    standing = judged(tmp_path, written)
    (row,) = (row for row in standing.rows if (row.rule, row.regime) == (written.breaks, written.regime))
    assert row.verdict is Verdict.FAIL
    assert row.reach is not None
    assert row.reach == DEFAULT if written.regime is Regime.LIVE else row.reach.startswith(FLAG)
    assert row.detail.endswith("; its methods keep it when they are called alone")


def test_a_fault_of_the_forward_has_its_lines(tmp_path: Path) -> None:
    written = WRONG["clears before it asks"]
    first = line_of(str(written), "def forward")
    rows = {row.rule: row for row in broken_rows(judged(tmp_path, written))}
    assert rows.keys() == {Rule.R2}
    assert (rows[Rule.R2].where or "").startswith(f"{QWEN}:{first}-")


def test_a_class_whose_forward_cannot_be_driven_is_not_judged_whole(tmp_path: Path) -> None:
    written = replace(RIGHT["plain"], forward=FORWARD.replace("return hidden", "return self.no_such(hidden)"))
    root = str(written.write(tmp_path))
    with InProcessWorker(root) as worker:
        (audited,) = worker.classes()
        (carrier,) = account_of(worker.source, [audited]).failing
    assert (audited.ways.methods, audited.ways.forward) == (True, False)
    assert carrier.name == audited.model_class
    assert carrier.why.startswith("only its methods were driven, not its embed_input_ids and forward: ")
    assert "no_such" in carrier.why
