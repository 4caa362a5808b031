"""Shrinking of a fault, and what a session shows: on plays that are given, without a decoder."""

from dataclasses import replace

import pytest
from typing_extensions import override

from cases.selftest.fuzzing.hunting import target
from cases.selftest.oracles.written_observations import ONE_GRAPH, observed
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import Observation, StepFacts
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.fuzzing.faults import Fault
from deepstack_harness.fuzzing.hunt import Hunt, _Search
from deepstack_harness.fuzzing.player import Death, InProcessPlayer


class Replays(Hunt):
    """A hunt whose plays are given: each trace shows these faults."""

    def __init__(self, arm: str, *faults: Fault) -> None:
        super().__init__(target("reference", arm), InProcessPlayer())
        self.given = faults
        self.played: list[tuple[str, bool]] = []

    @override
    def replay(self, trace: Trace, *, new_session: bool) -> tuple[list[Fault], bool]:
        self.played.append((str(trace), new_session))
        return [replace(one, trace=trace) for one in self.given], False


def fault(rule: Rule, trace: str = "cap 4: get 4") -> Fault:
    return Fault(rule, "shape", Trace.parse(trace), "seen", Judgement(rule, Verdict.FAIL))


def test_graphs_that_a_new_session_does_not_show_are_told_as_they_are() -> None:
    wanted = fault(Rule.R11)
    shown, hidden = Replays("eager/stock", wanted), Replays("eager/stock", fault(Rule.R0))
    assert _Search(shown, 9)._is_shown_again(wanted)
    assert shown.findings == []
    assert not _Search(hidden, 9)._is_shown_again(wanted)
    assert [(one.rule, one.alone) for one in hidden.findings] == [(Rule.R11, False)]
    assert shown.played == hidden.played == [("cap 4: get 4", True)]
    assert _Search(hidden, 9)._is_shown_again(fault(Rule.R2))  # a session that goes on shows it again


@pytest.mark.parametrize(
    ("arm", "left"), [("eager", "cap 4: get 4"), ("eager/drop_all", "cap 4: profile 4; forward 2; get 4")]
)
def test_runs_of_a_compiled_decoder_are_not_left_out_of_a_trace(arm: str, left: str) -> None:
    wanted = fault(Rule.R2, "cap 4: profile 4; set 2; forward 2; clear 2; get 4")
    going = Replays(arm, wanted)
    search = _Search(going, 9)
    search._wanted = wanted
    assert str(search._without_needless_steps(wanted).trace) == left


def test_a_trace_is_not_shrunk_when_no_play_is_left() -> None:
    wanted = fault(Rule.R2)
    going = Replays("eager", wanted)
    search = _Search(going, 9)
    search._wanted, search._left = wanted, 1
    assert search._again(wanted.trace) == wanted
    assert search._again(wanted.trace) is None
    assert len(going.played) == 1


def test_a_session_at_its_recompile_limit_is_not_played_on() -> None:
    class AtItsLimit(InProcessPlayer):
        def __init__(self) -> None:
            self.sessions: list[bool] = []

        @override
        def play(self, case: Case, *, new_session: bool) -> Observation | Death:
            self.sessions.append(new_session)
            facts = replace(ONE_GRAPH, limit_hit=len(self.sessions) == 2)
            return observed(*(StepFacts(str(step), 16) for step in case.trace), facts=facts)

    player = AtItsLimit()
    going = Hunt(target("reference", "eager/stock"), player)
    for _ in range(3):
        going._play(Trace.parse("cap 16: set 4"))
    assert player.sessions == [True, False, True]
