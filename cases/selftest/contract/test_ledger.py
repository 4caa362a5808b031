import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases.selftest.models.sequences import SEQUENCES, Read, Sequence
from deepstack_harness.contract.ledger import CallOutcome, Fate, Ledger
from deepstack_harness.contract.observation import RowRange
from deepstack_harness.contract.rules import PayloadKind, Rule
from deepstack_harness.contract.trace import Op, Step, Trace


def follow(ledger: Ledger, trace: Trace) -> list[Read]:
    """What a buffer returns that fulfils the contract, and grows."""
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
    assert ledger.rows(1, 5) == (RowRange(2, 1, 0, 3), RowRange(0, 0, 0, 2))


@pytest.mark.parametrize(
    ("spans", "asked", "rows"),
    [
        (
            "0-3+6-9",
            12,
            (RowRange(1, 0, 0, 3), RowRange(0, 0, 0, 3), RowRange(1, 0, 6, 3), RowRange(0, 0, 0, 3)),
        ),
        ("0-3+6-9", 7, (RowRange(1, 0, 0, 3), RowRange(0, 0, 0, 3), RowRange(1, 0, 6, 1))),
        ("0-3+6-9", 2, (RowRange(1, 0, 0, 2),)),
        ("4-6", 9, (RowRange(0, 0, 0, 4), RowRange(1, 0, 4, 2), RowRange(0, 0, 0, 3))),
        ("4-6", 3, (RowRange(0, 0, 0, 3),)),
    ],
)
def test_tokens_without_features_have_rows_of_zeros(
    spans: str, asked: int, rows: tuple[RowRange, ...]
) -> None:
    assert after(f"cap 16: set 9 spans={spans}").rows(0, asked) == rows


def test_rows_know_whose_they_are() -> None:
    ledger = after("cap 16: set 9 request=alice; set 3; clear 3")
    fates = {payload.request: (payload.fate, payload.ended_by) for payload in ledger.payloads.values()}
    assert fates == {"alice": (Fate.REPLACED, 2), "r2": (Fate.CLEARED, 3)}


@pytest.mark.parametrize(
    ("before", "step", "outcome", "rule"),
    [
        ("cap 16: get 1", "get 16", CallOutcome.ANSWERS, Rule.BOUNDARY),
        ("cap 16: get 1", "get 0", CallOutcome.ANSWERS, Rule.BOUNDARY),
        ("cap 16: get 1", "get 17", CallOutcome.EITHER, Rule.CAPACITY),
        ("cap 16: get 1", "clear 16", CallOutcome.ANSWERS, Rule.BOUNDARY),
        ("cap 16: get 1", "set 17", CallOutcome.EITHER, Rule.CAPACITY),
        ("cap 16: set 9", "resize 8", CallOutcome.EITHER, Rule.CAPACITY),
        ("cap 16: set 9", "resize 9", CallOutcome.EITHER, Rule.CAPACITY),
        ("cap 16: get 1", "get -1", CallOutcome.RAISES, Rule.REJECTION),
        ("cap 16: get 1", "clear -1", CallOutcome.RAISES, Rule.REJECTION),
        ("cap 16: get 1", "resize -1", CallOutcome.RAISES, Rule.REJECTION),
        ("cap 16: get 1", "set 4 levels=3", CallOutcome.RAISES, Rule.REJECTION),
        ("cap 16: get 1", "set 4 hidden=1", CallOutcome.RAISES, Rule.REJECTION),
        ("cap 16: get 1", "set 4 levels=2 hidden=8", CallOutcome.ANSWERS, Rule.BOUNDARY),
    ],
)
def test_which_calls_are_promised_and_which_refused(
    before: str, step: str, outcome: CallOutcome, rule: Rule
) -> None:
    expected = after(before).expect(Step.parse(step))
    assert (expected.outcome, expected.rule) == (outcome, rule)


def test_a_rejected_set_changes_nothing() -> None:
    ledger = after("cap 16: set 9")
    ledger.commit(Step.parse("set 20"), accepted=False, capacity=16)
    assert ledger.rows(0, 16) == (RowRange(1, 0, 0, 9), RowRange(0, 0, 0, 7))
    assert ledger.payloads[2].fate is Fate.REJECTED


@pytest.mark.parametrize(("tokens", "unsound"), [(12, True), (20, False)])
def test_a_set_that_ran_out_of_memory_leaves_the_payload_only_where_it_had_to_grow(
    tokens: int, unsound: bool
) -> None:
    ledger = after("cap 16: set 9")
    ledger.commit(Step(Op.SET, tokens, fail=1), accepted=False, capacity=16)
    assert ledger.unsound is unsound
    ledger.commit(Step(Op.CLEAR, 16), accepted=True, capacity=16)
    assert not ledger.unsound


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


@pytest.mark.parametrize(
    ("steps", "held", "may_be_zero"),
    [
        ("set 8; get 4; clear 4", (4, 8), range(4, 8)),  # the first of two micro-batches
        ("set 8; get 4; clear 4; get 4; clear 4", None, range(0)),  # as many were cleared as were set
        ("set 8; get 2; clear 2; get 4; clear 4", (4, 8), range(4, 8)),
        ("set 8; get 4; clear 4; get 2; clear 2", (4, 8), range(4, 8)),  # cleared rows stay cleared
        ("set 8; forward 4", (4, 8), range(4, 8)),
        ("set 8; get 0; clear 0", (0, 8), range(8)),
        ("set 8; clear 4", None, range(0)),  # nobody requested these rows
        ("set 8; get 8; clear 4", None, range(0)),
        ("set 8; get 4; set 8; clear 4", None, range(0)),
        ("set 8; clear 0", None, range(0)),
        ("set 8; get 4; clear 4; clear 8", None, range(0)),
        ("set 8; get 4; clear 4; set 3", (0, 3), range(0)),
    ],
)
def test_a_micro_batch_clears_its_own_rows_only(
    steps: str, held: tuple[int, int] | None, may_be_zero: range
) -> None:
    ledger = after(f"cap 16: {steps}")
    expected = ledger.expect(Step.parse("get 8"))
    data = [run for run in expected.levels[0] if run.payload]
    assert [(run.row, run.row + run.rows) for run in data] == ([held] if held else [])
    assert expected.may_be_zero == may_be_zero


def test_rows_that_a_micro_batch_cleared_are_padding_where_every_token_has_a_row() -> None:
    ledger = Ledger(16, levels=1, hidden=8, kind=PayloadKind.EVERY_TOKEN)
    follow(ledger, Trace.parse("cap 16: set 8; get 4; clear 4"))
    assert ledger.expect(Step.parse("get 8")).real == range(4, 8)


def test_equal_rows_are_one_content() -> None:
    ledger = Ledger(16, levels=1, hidden=8)
    same = (RowRange(1, 0, 0, 1), RowRange(1, 0, 0, 1), RowRange(0, 0, 0, 1), RowRange(1, 0, 3, 1))
    ledger.commit(Step.parse("set 4"), accepted=True, capacity=16, content=(same,))
    assert ledger.rows(0, 6) == (*same, RowRange(0, 0, 0, 2))
    assert ledger.rows(0, 2) == same[:2]
    ledger.commit(Step.parse("set 2"), accepted=True, capacity=16, content=(same[:2],))
    # The second payload has the content of the first: what is left of it is named after the last that ended.
    assert ledger.owner_of((1, 0, 0)).number == 1
    ledger.commit(Step.parse("clear 2"), accepted=True, capacity=16)
    assert ledger.owner_of((1, 0, 0)).number == 2
    assert ledger.owner_of((1, 0, 3)).number == 1


@pytest.mark.parametrize(
    ("before", "reported", "step", "outcome"),
    [
        ("cap 16: get 1", 8, "get 16", CallOutcome.ANSWERS),  # it was made for 16
        ("cap 16: set 20", 16, "get 20", CallOutcome.ANSWERS),  # it took 20 rows
        ("cap 16: resize 20", 16, "get 20", CallOutcome.ANSWERS),
        ("cap 16: resize 8", 8, "get 16", CallOutcome.EITHER),
        ("cap 16: get 20", 16, "get 20", CallOutcome.EITHER),  # padded copies need no room
    ],
)
def test_rows_that_a_buffer_took_on_it_has_to_return(
    before: str, reported: int, step: str, outcome: CallOutcome
) -> None:
    trace = Trace.parse(before)
    ledger = Ledger(trace.capacity, levels=1, hidden=8)
    ledger.commit(trace.steps[0], accepted=True, capacity=reported)
    assert ledger.expect(Step.parse(step)).outcome is outcome
