"""Options of adapters: the grammar, shapes, what is refused, and traces that fit."""

import pytest

from deepstack_harness.catalogue.fitted_traces import fitted_trace, fitted_traces
from deepstack_harness.catalogue.plans import check_traces
from deepstack_harness.contract.adapter import (
    Adapter,
    AdapterOptions,
    ArgRole,
    Argument,
    MethodCall,
    RowShape,
    WrittenCall,
)
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Step, Trace
from deepstack_harness.errors import UsageError

COUNTED = (Argument(ArgRole.COUNT),)
FULL = Adapter(
    MethodCall("", (Argument(ArgRole.CAPACITY, "rows"),)), MethodCall("read", COUNTED),
    MethodCall("write", (Argument(ArgRole.PAYLOAD),)), MethodCall("reset", COUNTED),
    MethodCall("grow", COUNTED), "rows", RowShape(),
)  # fmt: skip


def with_shape(text: str, **changes: object) -> Adapter:
    return Adapter(**{**vars(FULL), "shape": RowShape.parse(text), **changes})


@pytest.mark.parametrize(
    "text",
    ["(N,)", "(N, hidden)", "(N, 64)", "(levels, N)", "(3, N)", "(N, levels)", "(levels, N, hidden)",
     "(3, N, 64)", "(N, 3, hidden)", "[(N, hidden)]", "[(N,)]", "[(N, 64) x 3]"],
)  # fmt: skip
def test_a_shape_reads_as_it_is_printed(text: str) -> None:
    assert str(RowShape.parse(text)) == text
    assert RowShape.parse(text.replace(" ", "")) == RowShape.parse(text)


@pytest.mark.parametrize(
    "text",
    ["", "N", "()", "(M,)", "(N, N)", "(hidden, N, levels)", "(levels, hidden, N)", "(N, 0)",
     "(N, hidden, 3)", "[(3, N)]", "(N, hidden", "[(N,)", "(a, b, N, c)", "(N,) x 3"],
)  # fmt: skip
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no shape of rows"):
        RowShape.parse(text)


def test_methods_and_their_arguments_are_read() -> None:
    calls = AdapterOptions(
        "get=read, set=write(values=payload, slots=positions), clear=none,make=of()"
    ).calls()
    arguments = (Argument(ArgRole.PAYLOAD, "values"), Argument(ArgRole.POSITIONS, "slots"))
    assert calls == {
        "get": WrittenCall("read"),
        "set": WrittenCall("write", arguments),
        "clear": None,
        "make": WrittenCall("of", ()),
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (AdapterOptions("put=write"), "'put=write' is not CALL=METHOD"),
        (AdapterOptions("get"), "'get' is not CALL=METHOD"),
        (AdapterOptions("get=a,get=b"), "'get=b' is there twice"),
        (AdapterOptions("get=none"), "a buffer without get cannot be asked anything"),
        (AdapterOptions("get=a-b"), "'get=a-b' is not CALL=METHOD"),
        (AdapterOptions("get=read(values=payload)"), "'values=payload' in 'get=read.*has no known role"),
        (AdapterOptions("set=write(count)"), "gives set no payload"),
        (AdapterOptions("capacity=size(count)"), "'capacity=size.count.' is not"),
        (AdapterOptions(shape="(M,)"), "'.M,.' is no shape of rows"),
        (AdapterOptions(dtype="int46"), "unknown dtype 'int46'"),
        (AdapterOptions(rows="image"), "--rows 'image' is not token or request"),
        (AdapterOptions(capacity=0), "--capacity 0 is no number of rows"),
    ],
)
def test_options_that_cannot_be_read_are_quoted(options: AdapterOptions, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        options.check()


def test_a_plain_dtype_asks_for_no_adapter() -> None:
    assert not AdapterOptions(dtype="bfloat16").given
    assert AdapterOptions(dtype="int64").given
    assert AdapterOptions(shape="(N,)").given


def test_what_cannot_be_asked_is_told_with_the_reason() -> None:
    assert FULL.not_asked == {}
    bare = with_shape("(N,)", clear=None, resize=None, dtype="int32", get=MethodCall("read"), capacity="")
    assert {*bare.not_asked} == {Rule.R2, Rule.R3, Rule.R4, Rule.R5, Rule.R8}
    assert bare.not_asked[Rule.R5] == "not asked: no method clears it"
    assert "a wrong width, because a row is one number" in bare.not_asked[Rule.R8]


BARE = with_shape("(N,)", clear=None, resize=None, dtype="int32", get=MethodCall("read"))


@pytest.mark.parametrize(
    "adapter",
    [
        FULL,
        BARE,
        with_shape("[(N, 64) x 2]"),
        with_shape("(N, hidden)", fixed=64),
        with_shape("(3, N)", fixed=4),
    ],
)
def test_a_fitted_trace_stays_as_it_is(adapter: Adapter) -> None:
    fitted = fitted_traces(map(Trace.parse, check_traces()), adapter)
    assert len(fitted) > 50
    for trace in fitted:
        assert fitted_trace(trace, adapter) == trace
        assert Trace.parse(str(trace)) == trace


def test_the_contract_of_its_own_shape_is_played_as_it_is() -> None:
    traces = list(map(Trace.parse, check_traces()))
    assert fitted_traces(traces, FULL) == traces


def test_calls_that_cannot_be_made_are_left_out() -> None:
    trace = Trace.parse(
        "cap 16: set 9 dtype=float64 values=nan grad; get -1; clear 9; set 3 hidden=1; set 3 levels=2; "
        "resize 4; set 2 shape=flat; set 2 shape=batched; get 16"
    )
    fitted = fitted_trace(trace, BARE)
    assert str(fitted) == "cap 16 levels 1 hidden 1 dtype int32: set 9; set 2 shape=batched; get 16"
    assert fitted_trace(Trace.parse("cap 16: clear 4; resize 20"), BARE) is None


def test_a_fixed_capacity_takes_the_place_of_that_of_the_trace() -> None:
    larger, smaller = with_shape("(N, hidden)", fixed=64), with_shape("(N, hidden)", fixed=4)
    trace = Trace.parse("cap 16: set 9 spans=0-3; get 16; set 20; get 20; clear -1")
    steps = (fitted_trace(trace, larger) or trace).steps
    assert [step.tokens for step in steps] == [9, 64, 68, 68, -1]
    assert steps[0] == Step(Op.SET, 9, spans=((0, 3),))
    steps = (fitted_trace(trace, smaller) or trace).steps
    assert [step.tokens for step in steps] == [2, 4, 8, 8, -1]
