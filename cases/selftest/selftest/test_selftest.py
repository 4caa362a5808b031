"""`selftest`: it says which mutants are missed, and a harness that was made blind does not pass it."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from deepstack_harness.catalogue.registry import MUTANT_ARMS, MUTANTS
from deepstack_harness.cli import main
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.fuzzing import running
from deepstack_harness.oracles import all_rules
from deepstack_harness.oracles.all_rules import judge_all
from deepstack_harness.oracles.observed_case import ObservedCase
from deepstack_harness.selftest import pool
from deepstack_harness.selftest.pool import EFFORTS, Effort, Order, Proof, orders_for, prove

FEW = {"eager": Effort(examples=60, patience=2)}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hunts of a second: mutants that every trace shows need no more."""
    monkeypatch.setattr(pool, "EFFORTS", FEW)


def run(*words: str) -> int:
    return main(["selftest", "--workers", "0", *words])


def test_each_mutant_and_the_control_have_a_row(short: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("copies_on_get", "growth_loses_payload", "--json", "-") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["buffer"], row["rule"], row["holds"], row["found"]) for row in rows] == [
        ("reference", None, True, []),
        ("copies_on_get", "R6", True, ["R6"]),
        ("growth_loses_payload", "R4", True, ["R4"]),
    ]
    assert rows[0]["examples"] >= 12
    assert all(row["examples"] >= 1 and row["trace"].startswith("cap ") for row in rows[1:])


def test_without_its_oracle_a_mutant_is_missed_and_named(
    short: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seeing = tuple(oracle for oracle in all_rules.ORACLES if oracle.rule is not Rule.R4)
    monkeypatch.setattr(all_rules, "every_oracle", lambda: seeing)
    assert run("copies_on_get", "growth_loses_payload") == 1
    said = capsys.readouterr().out
    assert "NOT CAUGHT" in said
    assert "1 of 2 mutants caught, each by its rule alone; 0 false alarms" in said
    assert "not so: growth_loses_payload" in said


def test_an_oracle_that_always_speaks_gives_false_alarms_and_blames_the_wrong_rule(
    short: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nervous(observed: ObservedCase) -> Sequence[Judgement]:
        said = judge_all(observed)
        return [replace(one, verdict=Verdict.FAIL) if one.rule is Rule.R7 else one for one in said]

    monkeypatch.setattr(running, "judge_all", nervous)
    assert run("copies_on_get") == 1
    said = capsys.readouterr().out
    assert "FALSE ALARM R7" in said
    assert "broke R7" in said.partition("copies_on_get")[2]
    assert "0 of 1 mutants caught, each by its rule alone; 1 false alarms" in said


@pytest.mark.parametrize(
    ("rule", "found", "holds"),
    [("R6", ("R6",), True), ("R6", ("R6", "R7"), False), ("R6", ("R7",), False), ("R6", (), False),
     (None, (), True), (None, ("R1",), False)],
)  # fmt: skip
def test_only_the_stated_rule_will_do(rule: str | None, found: tuple[str, ...], holds: bool) -> None:
    order = Order("any", rule, "eager", examples=9, patience=1, seed=0)
    assert Proof(order, found, examples=4, seconds=0.1).holds is holds


def test_workers_answer_and_one_that_died_is_told() -> None:
    lost = Order("no_such_mutant", "R1", "eager", examples=3, patience=0, seed=0)
    kept = Order("copies_on_get", "R6", "eager", examples=3, patience=0, seed=0)
    proofs = {proof.order.subject: proof for proof in prove([lost, kept], workers=2)}
    assert proofs["copies_on_get"].holds
    assert not proofs["no_such_mutant"].holds
    assert proofs["no_such_mutant"].failed
    assert "unknown buffer 'no_such_mutant'" in proofs["no_such_mutant"].detail


def test_the_same_seed_proves_the_same() -> None:
    order = Order("set_cut_to_capacity", "R4", "eager", examples=300, patience=0, seed=7)
    first, second = (replace(proof, seconds=0.0) for proof in prove([order, order], workers=0))
    assert first == second
    assert first.found == ("R4",)


def test_the_control_is_hunted_under_every_arm_that_a_mutant_needs_at_least_as_long() -> None:
    orders = orders_for(MUTANTS, seed=0)
    assert {order.subject for order in orders} == {*MUTANTS, "reference"}
    assert set(MUTANT_ARMS.values()) | {"eager"} == set(EFFORTS)
    for arm in EFFORTS:
        of_arm = [order for order in orders if order.arm == arm]
        assert of_arm[0].rule is None
        assert of_arm[0].examples >= max(order.examples for order in of_arm)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no_such_mutant"], "unknown mutant 'no_such_mutant'; known are none_when_empty, "),
        (["--workers", "-1"], "--workers -1: a number of processes is 0 or more"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["selftest", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_mutant_is_caught_with_no_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest"]) == 0
    assert f"{len(MUTANTS)} of {len(MUTANTS)} mutants caught" in capsys.readouterr().out
