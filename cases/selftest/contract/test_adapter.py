"""What adapter classes state: what is refused, what is not checked, and traces that fit."""

import pytest

from deepstack_harness.catalogue.fitted_traces import fitted_trace, fitted_traces
from deepstack_harness.catalogue.plans import check_traces
from deepstack_harness.contract.adapter import Adapter, adapter_of
from deepstack_harness.contract.rules import PayloadKind, Rule
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.errors import UsageError


def stating(fixed: object) -> type:
    return type("Stating", (), {"fixed": fixed})


def test_a_class_states_what_is_fixed() -> None:
    stated = {"dtype": "int64", "levels": 1, "hidden": 2, "capacity": 64, "cleared": False}
    assert adapter_of(stating(stated)) == Adapter("int64", 1, 2, 64, cleared=False)
    assert adapter_of(stating({})) == Adapter()
    assert adapter_of(stating(True)) is adapter_of(object) is None  # another attribute of that name, and none
    assert str(Adapter("int64", cleared=False)) == "dtype int64, cleared False"


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"dtypes": "int64"}, "unknown key 'dtypes' .* known are dtype, levels, hidden, capacity, cleared"),
        ({"dtype": "int46"}, "'dtype' of the adapter's 'fixed' is float32, .* not 'int46'"),
        ({"levels": True}, "'levels' .* is a number from 1 to 1,048,576, not True"),
        ({"capacity": 0}, "'capacity' .* not 0"),
        ({"cleared": 0}, "'cleared' .* is True or False, not 0"),
    ],
)
def test_what_cannot_be_is_quoted(fixed: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        adapter_of(stating(fixed))


BARE = Adapter("int32", levels=1, hidden=1, cleared=False)


def test_what_is_not_checked_has_its_reason() -> None:
    assert Adapter().unchecked == {}
    assert {*BARE.unchecked} == {Rule.BOUNDARY, Rule.FRESHNESS, Rule.CLEAR, Rule.REJECTION}
    assert BARE.unchecked[Rule.CLEAR] == "not asked: nothing clears it"
    assert "a wrong width, because a row is one number" in BARE.unchecked[Rule.REJECTION]
    assert (BARE.payload_kind, Adapter().payload_kind) == (PayloadKind.KEPT, PayloadKind.VISUAL)


@pytest.mark.parametrize(
    "adapter",
    [Adapter(), BARE, Adapter(levels=2, hidden=64), Adapter(levels=1, capacity=64), Adapter(capacity=4)],
)
def test_a_fitted_trace_stays_as_it_is(adapter: Adapter) -> None:
    fitted = fitted_traces(map(Trace.parse, check_traces()), adapter)
    assert len(fitted) > 50
    for trace in fitted:
        assert fitted_trace(trace, adapter) == trace
        assert Trace.parse(str(trace)) == trace


def test_the_contract_of_rows_that_fix_nothing_is_played_as_it_is() -> None:
    traces = list(map(Trace.parse, check_traces()))
    assert fitted_traces(traces, Adapter()) == traces


def test_calls_that_cannot_be_made_are_left_out() -> None:
    trace = Trace.parse(
        "cap 16: set 9 dtype=float64 values=nan grad; clear 9; set 3 hidden=1; set 3 levels=2; "
        "set 2 shape=flat; set 2 shape=batched; get 16"
    )
    fitted = fitted_trace(trace, BARE)
    assert str(fitted) == "cap 16 levels 1 hidden 1 dtype int32: set 9; set 2 shape=batched; get 16"
    assert fitted_trace(Trace.parse("cap 16: clear 4; resize 20"), BARE) is None


def test_a_fixed_capacity_takes_the_place_of_that_of_the_trace() -> None:
    larger, smaller = Adapter(capacity=64), Adapter(capacity=4)
    trace = Trace.parse("cap 16: set 9 spans=0-3; get 16; set 20; get 20; clear -1")
    steps = (fitted_trace(trace, larger) or trace).steps
    assert [step.tokens for step in steps] == [9, 64, 68, 68, -1]
    assert steps[0] == Step(Op.SET, 9, spans=((0, 3),))
    steps = (fitted_trace(trace, smaller) or trace).steps
    assert [step.tokens for step in steps] == [2, 4, 8, 8, -1]
