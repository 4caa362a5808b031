"""The arm `h200`: a planted fault in interpreted code is named first by its rule, right code by none."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from deepstack_harness.arms.interpreted import ENVIRONMENT
from deepstack_harness.contract.facts.accesses import AccessFacts
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.oracles.executed import judge_step
from deepstack_harness.torch_compat.target_support import check_interpreter, why_not
from deepstack_harness.workers.outcomes import value_of
from deepstack_harness.workers.worker import Worker

WHY_NOT = why_not(check_interpreter)
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
CHILD = "cases.selftest.arms.interpreted_child"
TOKENS = 17


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(environment=ENVIRONMENT) as started:
        yield started


def test_one_graph_serves_every_count_and_touches_its_rows_alone(worker: Worker) -> None:
    """The daily case: one worker, one graph."""
    found = value_of(worker.call(f"{CHILD}:right"), "interpreting")
    facts = msgspec.convert(found["facts"], AccessFacts)
    assert (found["graphs"], found["checked"]) == (1, 0)
    assert found["apart"] < 1e-6
    read = {access.tensor: (access.read, access.elements_read) for access in facts.accesses if access.read}
    assert read == {
        "hidden": (((0, 17),), 17 * 8), "payload[0]": (((0, 17),), 17 * 8), "weight": (((0, 1),), 8),
    }  # fmt: skip
    (written,) = [access for access in facts.accesses if access.written]
    assert (written.tensor, written.shape, written.written) == ("buffer 0", (17, 8), ((0, 17),))
    assert (facts.launches, facts.share, facts.unwritten_rows) == (1, 1.0, 0)
    assert {one.rule: one.verdict for one in judge_step(facts, TOKENS)} == {
        Rule.R10: Verdict.PASS, Rule.R14: Verdict.PASS,
    }  # fmt: skip


@pytest.fixture(scope="module")
def faults(worker: Worker) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = value_of(worker.call(f"{CHILD}:faults"), "interpreting")
    return found


def judged(found: dict[str, Any]) -> dict[Rule, Judgement]:
    facts = msgspec.convert(found["facts"], AccessFacts)
    return {one.rule: one for one in judge_step(facts, TOKENS)}


def broken(found: dict[str, Any]) -> set[Rule]:
    return {rule for rule, said in judged(found).items() if said.verdict is not Verdict.PASS}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rule", "words"),
    [
        ("short", Rule.R14, ["payload[0] (in_ptr1), which has 512: row 16 of 16, outside of any memory"]),
        (
            "short view",
            Rule.R14,
            ["payload[0] (in_ptr1)", "row 16 of 16, in the storage of which it is a view"],
        ),
        ("capacity", Rule.R10, ["rows 0..63 of payload[0] (in_"]),
        ("index", Rule.R14, ["of payload[0] (in_ptr", "row 70 of 64, outside of any memory"]),
        ("left out", Rule.R14, ["17 rows depend on", "read buffer 0 (in_"]),
    ],
)
def test_a_planted_fault_breaks_its_rule_and_its_absence_none(
    faults: dict[str, dict[str, Any]], name: str, rule: Rule, words: list[str]
) -> None:
    said = judged(faults[name])[rule]
    assert broken(faults[name]) == {rule}, said
    assert said.verdict is Verdict.FAIL
    assert "kernel triton_" in said.detail
    for part in words:
        assert part in said.detail, said.detail
    good = faults[f"{name.partition(' view')[0]}, right"]
    assert broken(good) == set()
    assert good["apart"] < 1e-5


@pytest.mark.slow
def test_the_configurations_of_generated_kernels_agree(faults: dict[str, dict[str, Any]]) -> None:
    facts = msgspec.convert(faults["left out, right"]["facts"], AccessFacts)
    assert facts.compared >= 1
    assert judged(faults["left out, right"])[Rule.R0].verdict is Verdict.PASS
