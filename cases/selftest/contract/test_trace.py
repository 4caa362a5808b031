import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepstack_harness.contract.trace import (
    CALLS_BUFFER,
    COUNTS,
    MAY_BE_NEGATIVE,
    SHAPES,
    Op,
    Step,
    Trace,
    TraceError,
)

counts = st.integers(0, 10_000)
shapes = st.none() | st.integers(0, 9)
names = st.none() | st.from_regex(r"[a-z0-9_.-]+", fullmatch=True)


@st.composite
def spanned(draw: st.DrawFn) -> Step:
    edges = sorted(draw(st.sets(st.integers(0, 50), max_size=8)))
    spans = tuple(zip(edges[::2], edges[1::2], strict=False))
    return Step(Op.SET, 50, request=draw(names), spans=spans or None)


COUNTED = sorted(CALLS_BUFFER - {Op.SET})
steps = st.one_of(
    st.builds(Step, st.just(Op.SET), counts, shapes, shapes, names),
    st.builds(Step, st.just(Op.SET), st.integers(1, 9), shape=st.sampled_from(SHAPES)),
    st.builds(
        Step,
        st.sampled_from(COUNTED),
        counts,
        calls=st.integers(2, 99),
        after=st.integers(1, 99),
    ),
    spanned(),
    st.builds(Step, st.sampled_from(sorted(MAY_BE_NEGATIVE)), st.integers(-10, 10_000)),
    st.builds(Step, st.sampled_from([Op.FORWARD, Op.PROFILE, Op.CAPTURE, Op.REPLAY]), counts),
    st.builds(Step, st.sampled_from(COUNTED), st.integers(0, 1), count=st.sampled_from(COUNTS)),
    st.just(Step(Op.RELOAD)),
)
traces = st.builds(Trace, st.integers(1, 10_000), st.lists(steps, min_size=1).map(tuple))


@given(traces)
def test_a_trace_parses_as_it_prints(trace: Trace) -> None:
    assert Trace.parse(str(trace)) == trace


def test_the_form_of_the_documentation() -> None:
    trace = Trace.parse("cap 16: profile 16; set 9; forward 16")
    assert trace == Trace(16, (Step(Op.PROFILE, 16), Step(Op.SET, 9), Step(Op.FORWARD, 16)))


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("profile 16", "'profile 16' does not read 'cap N"),
        ("cap 16:", "needs a capacity of 1 or more and a step"),
        ("cap 0: get 1", "needs a capacity of 1 or more"),
        ("cap 16: set 9; frobnicate 3", "'frobnicate 3'"),
        ("cap 16: set 9; forward", "'forward': forward takes a token count"),
        ("cap 16: reload 3", "'reload 3': reload takes no token count"),
        ("cap 16: set nine", "'set nine'"),
        ("cap 16: set -1", "'set -1': set takes a count of 0 or more"),
        ("cap 16: forward -2", "'forward -2'"),
        ("cap 16: get 4 hidden=1", "only set takes"),
        ("cap 16: set 4 width=3", "unknown option 'width'"),
        ("cap 16: set 4 levels=-3", "levels= takes a count of 0 or more, not '-3'"),
        ("cap 16: set 9 spans=3", "spans= takes ranges of tokens as in 0-3+6-9, not '3'"),
        ("cap 16: set 9 spans=0-3+2-5", "spans= takes ranges in order within 9 tokens"),
        ("cap 16: set 9 spans=4-4", "spans= takes ranges in order"),
        ("cap 16: set 9 spans=6-10", "within 9 tokens"),
        ("cap 16: get 9 spans=0-3", "only set takes"),
        ("cap 16: get 9 count=str", "count= takes one of numpy, torch, bool, not 'str'"),
        ("cap 16: get 9 count=bool", "count=bool takes 0 or 1"),
        ("cap 16: set 9 count=numpy", "only get, clear and resize take count="),
        ("cap 16: forward 9 count=numpy", "only get, clear and resize take count="),
        ("cap 16: forward 4 fail=1", "'forward 4 fail=1': only clear, get, resize, set take on=, fail="),
        ("cap 16: forward 4 after=9", "only clear, get, resize, set take on=, fail=, calls= and after="),
        ("cap 16: get 4 calls=1", "'get 4 calls=1': calls= takes 2 to"),
        ("cap 16: set 4 calls=9", "only get, clear and resize take calls="),
        ("cap 16: get 4 after=0", "'get 4 after=0': after= takes 1 to"),
        ("cap 16: set 4 shape=round", "shape= takes one of flat, joined, swapped, transposed, batched"),
        ("cap 16: set 4 shape=flat levels=2", "shape= takes 1 token or more, and no levels= or hidden="),
        ("cap 16: set 0 shape=flat", "shape= takes 1 token or more"),
        ("cap 16: set 4 dtype=int32 values=nan", "integers have no values= and no grad"),
        ("cap 16: set 4 dtype=int64 grad", "integers have no values= and no grad"),
        ("cap 16: get 4 fail=0", "fail= takes the number of an allocation, from 1"),
        ("cap 16: get 4 on=b", "a step with on=b needs 'buffers 2' before the colon"),
        ("cap 16: get 4 times=0", "'get 4 times=0': times= takes 1 to"),
        ("cap 16 levels 0: get 4", "levels and hidden take 1 or more, buffers 1 or 2"),
        ("cap 16 buffers 3: get 4", "levels and hidden take 1 or more, buffers 1 or 2"),
        ("cap 16 dtype int3: get 4", "dtype takes one of"),
        ("cap 16 mode fast: get 4", "mode takes one of inference, not 'fast'"),
        ("cap 16 width 3: get 4", "unknown setting 'width', known are"),
    ],
)
def test_a_bad_trace_is_quoted(text: str, quoted: str) -> None:
    with pytest.raises(TraceError) as caught:
        Trace.parse(text)
    assert quoted in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_step_by_itself_is_one_step_with_counts_of_0_or_more() -> None:
    with pytest.raises(TraceError, match="times= repeats a step of a trace, this is one step"):
        Step.parse("get 4 times=2")
    with pytest.raises(TraceError, match="levels= and hidden= take 0 or more"):
        Step(Op.SET, 4, levels=-1)
