import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases.selftest.revisions.sequences import SEQUENCES, Read, Sequence
from deepstack_harness.contract.case import Run
from deepstack_harness.contract.ledger import Fate, Ledger, Outcome
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Step, Trace


def follow(ledger: Ledger, trace: Trace) -> list[Read]:
    """What a buffer that keeps the contract, and grows, answers."""
    reads: list[Read] = []
    for step in trace:
        expected = ledger.expect(step)
        if expected.levels:
            assert {sum(run.rows for run in level) for level in expected.levels} == {step.tokens}
            reads.append((step.tokens, sum(run.rows for run in expected.levels[0] if run.payload)))
        ledger.commit(step, accepted=True, capacity=max(ledger.capacity, step.tokens))
    return reads


@pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=SEQUENCES)
def test_the_contract_column(sequence: Sequence) -> None:
    trace = Trace.parse(sequence.trace)
    assert follow(Ledger(trace.capacity, levels=3, hidden=8), trace) == sequence.contract


def after(text: str) -> Ledger:
    trace = Trace.parse(text)
    ledger = Ledger(trace.capacity, levels=2, hidden=8)
    follow(ledger, trace)
    return ledger


def test_rows_know_their_level_and_their_row() -> None:
    ledger = after("cap 16: set 9; set 3")
    assert ledger.rows(1, 5) == (Run(2, 1, 0, 3), Run(0, 0, 0, 2))


@pytest.mark.parametrize(
    ("spans", "asked", "rows"),
    [
        ("0-3+6-9", 12, (Run(1, 0, 0, 3), Run(0, 0, 0, 3), Run(1, 0, 6, 3), Run(0, 0, 0, 3))),
        ("0-3+6-9", 7, (Run(1, 0, 0, 3), Run(0, 0, 0, 3), Run(1, 0, 6, 1))),
        ("0-3+6-9", 2, (Run(1, 0, 0, 2),)),
        ("4-6", 9, (Run(0, 0, 0, 4), Run(1, 0, 4, 2), Run(0, 0, 0, 3))),
        ("4-6", 3, (Run(0, 0, 0, 3),)),
    ],
)
def test_tokens_without_features_have_rows_of_zeros(spans: str, asked: int, rows: tuple[Run, ...]) -> None:
    assert after(f"cap 16: set 9 spans={spans}").rows(0, asked) == rows


def test_rows_know_whose_they_are() -> None:
    ledger = after("cap 16: set 9 request=alice; set 3; clear 3")
    fates = {payload.request: (payload.fate, payload.ended_by) for payload in ledger.payloads.values()}
    assert fates == {"alice": (Fate.REPLACED, 2), "r2": (Fate.CLEARED, 3)}


@pytest.mark.parametrize(
    ("before", "step", "outcome", "rule"),
    [
        ("cap 16: get 1", "get 16", Outcome.ANSWERS, Rule.R2),
        ("cap 16: get 1", "get 0", Outcome.ANSWERS, Rule.R2),
        ("cap 16: get 1", "get 17", Outcome.EITHER, Rule.R4),
        ("cap 16: get 1", "clear 16", Outcome.ANSWERS, Rule.R2),
        ("cap 16: get 1", "set 17", Outcome.EITHER, Rule.R4),
        ("cap 16: set 9", "resize 8", Outcome.RAISES, Rule.R4),
        ("cap 16: set 9", "resize 9", Outcome.EITHER, Rule.R4),
        ("cap 16: get 1", "get -1", Outcome.RAISES, Rule.R8),
        ("cap 16: get 1", "clear -1", Outcome.RAISES, Rule.R8),
        ("cap 16: get 1", "resize -1", Outcome.RAISES, Rule.R8),
        ("cap 16: get 1", "set 4 levels=3", Outcome.RAISES, Rule.R8),
        ("cap 16: get 1", "set 4 hidden=1", Outcome.RAISES, Rule.R8),
        ("cap 16: get 1", "set 4 levels=2 hidden=8", Outcome.ANSWERS, Rule.R2),
    ],
)
def test_who_may_ask_for_what(before: str, step: str, outcome: Outcome, rule: Rule) -> None:
    expected = after(before).expect(Step.parse(step))
    assert (expected.outcome, expected.rule) == (outcome, rule)


def test_a_rejected_set_changes_nothing() -> None:
    ledger = after("cap 16: set 9")
    ledger.commit(Step.parse("set 20"), accepted=False, capacity=16)
    assert ledger.rows(0, 16) == (Run(1, 0, 0, 9), Run(0, 0, 0, 7))
    assert ledger.payloads[2].fate is Fate.REJECTED


def test_a_clear_that_was_rejected_leaves_the_payload() -> None:
    ledger = after("cap 16: set 9")
    ledger.commit(Step(Op.CLEAR, -1), accepted=True, capacity=16)
    ledger.commit(Step(Op.CLEAR, 16), accepted=False, capacity=16)
    assert ledger.tokens == 9


@given(st.lists(st.sampled_from(["set 9", "set 3", "clear 5", "clear 0", "get 7", "forward 4", "set 20"])))
def test_at_most_one_payload_lives(steps: list[str]) -> None:
    ledger = after("cap 16: " + "; ".join(["get 1", *steps]))
    assert sum(payload.fate is Fate.LIVE for payload in ledger.payloads.values()) <= 1
    assert len(ledger.payloads) == sum(step.startswith("set") for step in steps)
