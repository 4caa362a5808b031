"""`selftest`: it prints which mutants are missed, and a harness that was made blind does not pass it."""

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from cases.selftest.workers.misbehaving import ALWAYS
from cases.selftest.workers.processes import Witness
from deepstack_harness.catalogue.buffers import ALL_MUTANTS, CORRECT
from deepstack_harness.catalogue.pairs import AXES_OF_TRACES
from deepstack_harness.catalogue.plans import plan_check
from deepstack_harness.cli import selftest as command
from deepstack_harness.cli.main import main
from deepstack_harness.contract.oracles import judge
from deepstack_harness.contract.oracles.judge import judge_all
from deepstack_harness.contract.oracles.trace_audit import ObservedCase
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.fuzz import player, selftest, trials
from deepstack_harness.fuzz.selftest import prove
from deepstack_harness.fuzz.trials import EFFORTS, Effort, Proof, Trial, trials_for
from deepstack_harness.play.case_worker import BIND

MISBEHAVING = "cases.selftest.workers.misbehaving"
FEW = {"eager": Effort(examples=12, extra=2, on_right=5)}
FIRST = 48
"""Traces of `check` that are played: the 29th live one is the last that the mutants below need."""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hunts of a second, in this process: mutants that every trace shows need no more."""
    monkeypatch.setattr(command, "_WORKERS", 0)
    monkeypatch.setattr(trials, "EFFORTS", FEW)
    monkeypatch.setattr(selftest, "plan_check", lambda *words: plan_check(*words)[:FIRST])


def run(*words: str) -> int:
    return main(["selftest", *words])


def test_each_mutant_and_the_control_have_a_row_and_the_tables_fit_into_80_columns(
    short: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One run for both: `replaces_nan` may be missed by so few examples, the others are not."""
    rows_file = tmp_path / "rows.jsonl"
    mutants = ("none_when_empty", "growth_loses_payload", "replaces_nan")
    code = run(*mutants, "--json", str(rows_file))
    *rows, last = [json.loads(line) for line in rows_file.read_text().splitlines()]
    assert code == (0 if last["holds"] else 1)
    assert [(row["buffer"], row["rule"], row["holds"], row["found"]) for row in rows] == [
        ("reference", None, True, []),
        ("none_when_empty", "R1", True, ["R1"]),
        ("growth_loses_payload", "R4", True, ["R4"]),
    ]
    assert rows[0]["examples"] >= 12
    assert all(row["examples"] >= 1 and row["trace"].startswith("cap ") for row in rows[1:])
    assert [(row["fault"], row["caught_by"], row["check_found"]) for row in rows] == [
        ("right buffer", [], []),
        ("structure", ["check", "fuzz"], ["R1"]),
        ("capacity", ["check", "fuzz"], ["R4"]),
    ]
    assert rows[0]["checked"] > rows[2]["checked"] > rows[1]["checked"] == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "none_when_empty                  R1    structure             1      1" in lines[3]
    head = lines.index("mutants that are found only where an axis of inputs is unusual")
    of_classes, of_axes = lines[:head], lines[head + 1 :]
    classes = {line[:16].strip(): line[16:].split() for line in of_classes if line[18:25].strip().isdecimal()}
    assert classes.keys() == {"structure", "capacity", "values"}
    assert [line[:18].strip() for line in of_axes[: len(AXES_OF_TRACES)]] == [*AXES_OF_TRACES]
    assert classes["structure"] == ["1", "1", "1", "1", "1"]


def test_right_buffers_are_tried_in_the_regimes_in_which_they_are_right() -> None:
    right = {(trial.subject, trial.arm) for trial in trials_for(ALL_MUTANTS, seed=0) if trial.rule is None}
    live = {"reference", *CORRECT}
    both = {"reference", *(name for name, buffer in CORRECT.items() if buffer.regimes == "both")}
    assert {name for name, arm in right if arm == "eager"} == live
    assert {name for name, arm in right if arm == "eager/full"} == both
    assert both < live


def test_a_right_buffer_that_is_refused_is_named(
    short: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses_copies(observed: ObservedCase, rules: Collection[Rule] | None = None) -> list[Judgement]:
        said, name = judge_all(observed, rules), observed.case.buffer.name
        return [
            replace(judgement, verdict=Verdict.FAIL) if name == "lazy" else judgement for judgement in said
        ]

    monkeypatch.setattr(judge, "judge_all", refuses_copies)
    proof = next(prove([Trial("lazy", None, "eager", 3, 0, 0, "right buffer")], workers=0))
    assert proof.broken_by_check
    assert not proof.holds


def test_check_stops_at_the_first_trace_that_breaks_the_stated_rule() -> None:
    """`set 16; get 20` reads the row above the capacity first, which is R4."""
    trial = Trial("loses_token_at_multiples_of_16", "R2", "eager", examples=1, extra=0, seed=0)
    proof = next(prove([trial], workers=0))
    assert proof.broken_by_check == ("R2",)
    assert proof.caught_by_check == proof.checked > 6


def test_without_its_oracle_a_mutant_is_missed_and_named(
    short: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seeing = tuple(oracle for oracle in judge.ORACLES if oracle.rule is not Rule.CAPACITY)
    monkeypatch.setattr(judge, "ORACLES", seeing)
    assert run("none_when_empty", "growth_loses_payload") == 1
    output = capsys.readouterr().out
    assert "NOT CAUGHT" in output
    assert "1 of 2 mutants caught, each only by its own rule; " in output
    assert "0 false alarms on 1 right buffers in 12 examples" in output
    assert "not so: growth_loses_payload" in output


def test_an_oracle_that_always_speaks_gives_false_alarms_and_blames_the_wrong_rule(
    short: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nervous(observed: ObservedCase, rules: Collection[Rule] | None = None) -> list[Judgement]:
        said = judge_all(observed, rules)
        return [
            replace(judgement, verdict=Verdict.FAIL) if judgement.rule is Rule.PLACEMENT else judgement
            for judgement in said
        ]

    monkeypatch.setattr(judge, "judge_all", nervous)
    assert run("none_when_empty") == 1
    said = capsys.readouterr().out
    assert "FALSE ALARM R7" in said
    assert "broke R7" in said.partition("none_when_empty")[2]
    assert "0 of 1 mutants caught, each only by its own rule; " in said
    assert "1 false alarms on 1 right buffers" in said


@pytest.mark.parametrize(
    ("rule", "found", "holds"),
    [("R6", ("R6",), True), ("R6", ("R6", "R7"), False), ("R6", ("R7",), False), ("R6", (), False),
     (None, (), True), (None, ("R1",), False)],
)  # fmt: skip
def test_only_the_stated_rule_will_do(rule: str | None, found: tuple[str, ...], holds: bool) -> None:
    trial = Trial("any", rule, "eager", examples=9, extra=1, seed=0)
    assert Proof(trial, found, examples=4, seconds=0.1).holds is holds


def trial_of(subject: str, rule: str | None = "R1") -> Trial:
    return Trial(subject, rule, "eager", examples=3, extra=0, seed=0)


def test_a_worker_that_raises_proves_nothing_and_goes_on() -> None:
    subjects = ["no_such_mutant", "none_when_empty"]
    proofs = {proof.trial.subject: proof for proof in prove(map(trial_of, subjects), workers=1)}
    assert proofs["none_when_empty"].holds
    assert not proofs["no_such_mutant"].holds
    assert proofs["no_such_mutant"].failed
    assert "unknown revision 'no_such_mutant'" in proofs["no_such_mutant"].detail


@pytest.mark.parametrize("name", ["hang_always", "crash_always", "flood_always"])
def test_a_worker_that_ends_outside_a_step_proves_nothing_and_is_replaced(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player, "BIND", replace(BIND, target=f"{MISBEHAVING}:bind_shared"))
    if name == "hang_always":
        monkeypatch.setattr(player, "_BINDING_S", 0.5)
    found = list(prove([trial_of(name)] * 3, workers=1))
    assert [proof.failed for proof in found] == [True] * 3
    assert all(proof.detail.startswith(f"no proof: binding the buffer: {ALWAYS[name]}") for proof in found)


def test_a_selftest_that_is_given_up_ends_its_workers(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C does: all trials but the first one hang."""
    monkeypatch.setattr(player, "BIND", replace(BIND, target=f"{MISBEHAVING}:bind_shared"))
    proofs = prove([trial_of("echo"), *[trial_of(witness.path)] * 3], workers=2)
    next(proofs)
    witness.line()
    proofs.close()
    assert witness.is_closed()


@pytest.mark.slow  # 7 s
def test_the_same_seed_proves_the_same() -> None:
    trial = Trial("set_cut_to_capacity", "R4", "eager", examples=300, extra=0, seed=7)
    first, second = (replace(proof, seconds=0.0) for proof in prove([trial, trial], workers=0))
    assert first == second
    assert first.broken == ("R4",)


def test_the_control_is_hunted_under_every_arm_that_a_mutant_needs_at_least_as_long() -> None:
    planned = trials_for(ALL_MUTANTS, seed=0, right=False)
    assert {trial.subject for trial in planned} == {*ALL_MUTANTS, "reference"}
    assert {mutant.arm for mutant in ALL_MUTANTS.values()} == set(EFFORTS)
    for arm in EFFORTS:
        of_arm = [trial for trial in planned if trial.arm == arm]
        assert of_arm[0].rule is None
        assert of_arm[0].examples >= max(trial.examples for trial in of_arm)


def test_a_mutant_whose_arm_has_no_effort_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "EFFORTS", {"eager": EFFORTS["eager"]})
    with pytest.raises(ValueError, match="no effort is stated for arm eager/full, which a mutant needs"):
        trials_for(["moves_unannounced"], seed=0)


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_every_mutant_is_caught_with_no_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest"]) == 0
    assert f"{len(ALL_MUTANTS)} of {len(ALL_MUTANTS)} mutants caught" in capsys.readouterr().out
