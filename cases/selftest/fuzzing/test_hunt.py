"""A hunt: the same seed finds the same, each finding once, shrunk, and shown by its text alone."""

from contextlib import closing

import pytest
import torch
from typing_extensions import override

from cases.selftest.fuzzing.hunting import Until, hunted, target
from cases.selftest.play.playing import broken, judge
from deepstack_harness.contract.case import Compare
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Trace
from deepstack_harness.errors import UsageError
from deepstack_harness.fuzzing.finding import Finding, FindingKind
from deepstack_harness.fuzzing.hunt import Watch, hunt
from deepstack_harness.fuzzing.pattern import contains, pattern_of
from deepstack_harness.fuzzing.session import Ground
from deepstack_harness.fuzzing.shrink import shrink
from deepstack_harness.play import Model

FAULTY = "pr43617"


@pytest.fixture(scope="module")
def found() -> list[Finding]:
    return hunted(FAULTY, 1000, watch=Until("R3", "R4", "R5", "R6", "R8")).findings


def test_a_hunt_finds_every_rule_that_the_buffer_breaks(found: list[Finding]) -> None:
    assert {finding.name for finding in found} == {"R3", "R4", "R5", "R6", "R8"}


def test_findings_are_four_steps_or_fewer(found: list[Finding]) -> None:
    assert max(len(finding.pattern) for finding in found) <= 4


def test_a_finding_is_shown_by_its_text_alone_on_a_buffer_of_another_size(
    found: list[Finding], qwen: Model
) -> None:
    for finding in found:
        assert finding.rule in broken(judge(qwen, finding.trace, FAULTY, compare=Compare.NOTHING))


def test_a_finding_is_told_once_for_each_pattern(found: list[Finding]) -> None:
    assert len({(finding.name, finding.pattern) for finding in found}) == len(found)
    assert len(found) <= 15


def test_the_same_seed_finds_the_same(found: list[Finding]) -> None:
    # hypothesis draws constants of loaded modules too: the first hunt, behind `found`, has loaded them.
    one, other = hunted(FAULTY, 60).findings, hunted(FAULTY, 60).findings
    assert [(each.examples, each.line) for each in one] == [(each.examples, each.line) for each in other]


def test_another_seed_plays_other_traces() -> None:
    class Text(Watch):
        def __init__(self) -> None:
            self.steps: list[str] = []

        @override
        def step(self, capacity: int, step: object) -> None:
            self.steps.append(str(step))

    one, other = Text(), Text()
    hunted("reference", 20, seed=1, watch=one)
    hunted("reference", 20, seed=2, watch=other)
    assert one.steps != other.steps


def test_what_is_known_is_not_told_again(found: list[Finding]) -> None:
    again = hunt(target(FAULTY), examples=60, known=found)
    assert not {one.line for one in again.findings} & {one.line for one in found}


def test_a_finding_survives_json(found: list[Finding]) -> None:
    assert [Finding.from_json(one.to_json()) for one in found] == found


def test_reference_survives_and_everything_is_played() -> None:
    result = hunted("reference", 60)
    assert result.findings == []
    assert result.progress.examples == 60
    assert result.progress.steps > 1000
    assert result.progress.unmeasured == 0


def test_a_watcher_may_end_the_hunt() -> None:
    assert len(hunted(FAULTY, 1000, watch=Until("R3")).findings) < 5


def test_memory_that_runs_out_is_a_finding_of_its_own() -> None:
    class Hungry:
        def __init__(self, *sizes: int, **where: object) -> None:
            self.capacity = sizes[0]

        def __getattr__(self, name: str) -> object:
            raise MemoryError("no room")

    made = target("reference")
    result = hunt(type(made)("hungry", Hungry), examples=3)  # type: ignore[arg-type]
    assert {finding.kind for finding in result.findings} == {FindingKind.MEMORY}


def test_one_compiled_decoder_serves_all_traces() -> None:
    progress = hunted("reference", 12, "eager/drop_all")
    assert progress.findings == []
    assert (progress.progress.graphs, progress.progress.budget, progress.progress.sessions) == (1, 1, 1)


def test_a_compiled_decoder_shows_its_fault_behind_the_profile_run_that_it_needs() -> None:
    found = Ground(target("pr40932", "eager/drop_all"))
    with torch.no_grad(), closing(found):
        assert {Rule.R0, Rule.R1} <= found.broken(
            Trace.parse("cap 16: profile 16; set 16; forward 16")
        ).keys()


@pytest.mark.slow
def test_what_a_compiled_decoder_shows_is_shown_on_a_session_of_its_own() -> None:
    found = {one.name: one for one in hunted("pr40932", 20, "eager/drop_all").findings}
    assert found["R0"].alone
    assert found["R0"].trace == "cap 1: profile 1; set 1; forward 1"


def test_captured_graphs_are_hunted_on() -> None:
    (found,) = hunted("clears_by_counter", 300, "eager/full", watch=Until("R5")).findings
    assert found.trace == "cap 1: capture 1; set 1; replay 1; get 1"


@pytest.mark.parametrize("arm", ["zero-deepstack", "eager/tp2", "inductor/drop_all/reduce_overhead"])
def test_an_arm_that_cannot_be_fuzzed_is_refused(arm: str) -> None:
    with pytest.raises(UsageError, match="arm"):
        target("reference", arm)


def test_a_pattern_tells_counts_by_what_they_mean() -> None:
    told = pattern_of(Trace.parse("cap 16: get 4; set 9; set 3; get 16; get 20; set 4 levels=2; clear -1"))
    assert told == ("get", "set", "set <N", "get >N", "get >N >capacity", "set misshapen >N", "clear <0")


@pytest.mark.parametrize(
    ("wanted", "there"),
    [(("set", "get >N"), True), (("get >N", "set"), False), (("get",), True), (("get >capacity",), False)],
)
def test_a_pattern_is_found_in_order_whatever_stands_between(wanted: tuple[str, ...], there: bool) -> None:
    assert contains(("set", "resize", "get >N"), wanted) is there


def test_shrinking_drops_steps_and_lowers_counts_and_the_capacity() -> None:
    trace = Trace.parse("cap 16: get 16; set 9 spans=2-7; get 16; clear 3; resize 12; get 12; set 5; get 16")

    def shows(one: Trace) -> bool:
        return [step.op for step in one if step.op is not Op.GET].count(Op.SET) == 2

    assert str(shrink(trace, shows)) == "cap 1: set 1; set 1"


def test_shrinking_keeps_the_first_steps_and_its_number_of_plays() -> None:
    played: list[Trace] = []

    def shows(one: Trace) -> bool:
        played.append(one)
        return True

    trace = Trace.parse("cap 16: profile 16; set 9; forward 16; set 3; forward 4")
    assert shrink(trace, shows, keep=1).steps[0].op is Op.PROFILE
    played.clear()
    shrink(trace, lambda one: bool(played.append(one)), plays=5)  # type: ignore[func-returns-value]
    assert len(played) == 5
