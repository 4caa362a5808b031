"""Simpler traces: each setting and option is left out once, and nothing else."""

from cases.selftest.fuzzing.hunting import hunted
from deepstack_harness.contract.trace import Trace
from deepstack_harness.fuzzing.simpler import changes, without

TRACE = Trace.parse(
    "cap 4 levels 2 dtype float16 mode inference buffers 2: set 2 layout=strided values=nan grad; "
    "get 2 on=b; get 9 fail=3; set 3 dtype=float64 spans=1-2"
)


def test_each_setting_and_option_can_be_left_out() -> None:
    simpler = [str(without(TRACE, change)) for change in changes(TRACE)]
    assert [text.partition(":")[0] for text in simpler[:4]] == [
        "cap 4 dtype float16 mode inference buffers 2",
        "cap 4 levels 2 mode inference buffers 2",
        "cap 4 levels 2 dtype float16 buffers 2",
        "cap 4 levels 2 dtype float16 mode inference",
    ]
    assert "on=b" not in simpler[3]
    left_out = {str(TRACE).count("=") - text.count("=") for text in simpler[4:]}
    assert len(simpler) == 10
    assert left_out == {0, 1}  # grad has no value


def test_a_trace_that_has_nothing_unusual_stays() -> None:
    assert [*changes(Trace.parse("cap 4: set 2; get 2 times=12"))] == []


def test_a_step_that_was_cut_off_and_a_buffer_that_is_all_there_is_stay() -> None:
    assert without(Trace.parse("cap 4: set 2 grad"), (1, "grad")) is None
    assert without(Trace.parse("cap 4 buffers 2: get 2 on=b"), (None, "buffers")) is None


def test_a_finding_has_only_the_option_that_shows_it() -> None:
    found = hunted("replaces_nan", 150).findings
    assert {finding.trace.count("=") for finding in found} == {1}
    assert all("values=nan" in finding.trace or "values=mixed" in finding.trace for finding in found)
