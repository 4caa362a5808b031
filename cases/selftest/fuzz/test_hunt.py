"""A hunt: the same seed finds the same, each fault once, shrunk, and shown by its text."""

from dataclasses import replace

import msgspec
import pytest
from typing_extensions import override

from cases.selftest.contract.oracles.written_observations import ONE_GRAPH, observed
from cases.selftest.fuzz.hunting import Until, hunted, target
from cases.selftest.play.playing import broken, judge
from deepstack_harness.contract.case import Case, Compare
from deepstack_harness.contract.observation import Observation, Raised, StepFacts
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.errors import OutOfMemory, UsageError
from deepstack_harness.fuzz.faults import Fault, Finding, Progress, Watch, fault_of_judgement
from deepstack_harness.fuzz.hunt import Hunt, _Search, hunt, simpler_traces
from deepstack_harness.fuzz.player import Death, FindingKind, InProcessPlayer
from deepstack_harness.fuzz.strategies import lifecycles
from deepstack_harness.play import work
from deepstack_harness.play.model import Model

pytestmark = pytest.mark.xdist_group("hunts")  # its fixtures are played once

FAULTY = "pr43617"


@pytest.fixture(scope="module")
def found() -> list[Finding]:
    return hunted(FAULTY, 1000, watch=Until("R3", "R8")).findings


def test_a_hunt_finds_rules_that_the_buffer_breaks(found: list[Finding]) -> None:
    assert {"R3", "R8"} <= {finding.name for finding in found} <= {"R3", "R4", "R5", "R8"}


@pytest.mark.slow  # 26 s
def test_a_hunt_finds_every_rule_that_the_buffer_breaks() -> None:
    found = hunted(FAULTY, 1000, watch=Until("R3", "R4", "R5", "R8")).findings
    assert {finding.name for finding in found} == {"R3", "R4", "R5", "R8"}


def test_findings_are_four_steps_or_fewer(found: list[Finding]) -> None:
    first = {finding.name: finding for finding in reversed(found)}
    assert max(len(Trace.parse(finding.trace).steps) for finding in first.values()) <= 4


def test_a_finding_is_shown_by_only_its_text_on_a_buffer_of_another_size(
    found: list[Finding], qwen: Model
) -> None:
    for finding in found:
        assert finding.rule in broken(judge(qwen, finding.trace, FAULTY, compare=Compare.NOTHING))


def test_a_fault_is_reported_once(found: list[Finding]) -> None:
    assert len({finding.key for finding in found}) == len(found)
    assert len(found) <= 15


class Traces(Watch):
    """Notes the traces of all examples."""

    def __init__(self) -> None:
        self.played: list[str] = []

    @override
    def on_example(self, progress: Progress, trace: Trace) -> None:
        self.played.append(str(trace))


@pytest.mark.slow  # 16 s
def test_the_same_seed_finds_the_same() -> None:
    one, other = hunted(FAULTY, 25).findings, hunted(FAULTY, 25).findings
    assert [(finding.examples, finding.line) for finding in one] == [
        (finding.examples, finding.line) for finding in other
    ]


@pytest.mark.slow  # 2 s
def test_another_seed_plays_other_traces() -> None:
    one, other = Traces(), Traces()
    hunted("reference", 20, seed=1, watch=one)
    hunted("reference", 20, seed=2, watch=other)
    assert one.played != other.played


def test_a_rejected_call_is_not_blamed_for_rows_that_were_wrong_before_it() -> None:
    """New storage of this buffer is not zero; the first read follows a rejected call."""
    done = Hunt(target("padding_not_zeroed"), InProcessPlayer())
    faults = done.new_faults(done.play_example(Trace.parse("cap 2: get -1; get 2")))
    assert [fault.rule for fault in faults] == [Rule.REJECTION]
    assert done.confirmed(faults) == []


def test_a_rejected_call_that_changed_rows_is_blamed_for_them() -> None:
    done = Hunt(target("rejects_get_after_clearing"), InProcessPlayer())
    faults = done.new_faults(done.play_example(Trace.parse("cap 2: set 2; get -1; get 2")))
    assert done.confirmed(faults) == faults != []


def test_no_trace_is_drawn_after_the_end() -> None:
    """What a watcher has enough of is neither played nor drawn."""
    drawn: list[Trace] = []

    def noted(trace: Trace) -> Trace:
        drawn.append(trace)
        return trace

    going = Hunt(target("reference"), InProcessPlayer(), watch=_AtOnce())
    going.search(lifecycles().map(noted), 100)
    assert (going.progress.examples, len(drawn)) == (1, 2)


class _AtOnce(Watch):
    """Has enough after one example."""

    def __init__(self) -> None:
        self._played = False

    @override
    def on_example(self, progress: Progress, trace: Trace) -> None:
        self._played = True

    @override
    def is_done(self) -> bool:
        return self._played


@pytest.mark.slow  # 7 s
def test_what_is_known_is_not_reported_again(found: list[Finding]) -> None:
    buffer = target(FAULTY)
    again = Hunt(buffer, InProcessPlayer(), known=found)
    again.search(lifecycles(), 60)
    known = {(finding.name, finding.shape) for finding in found}
    assert not {(finding.name, finding.shape) for finding in again.findings} & known


def test_a_finding_survives_json(found: list[Finding]) -> None:
    assert msgspec.json.decode(msgspec.json.encode(found), type=list[Finding]) == found


def test_reference_survives_and_everything_is_played() -> None:
    result = hunted("reference", 60)
    assert result.findings == []
    assert result.progress.examples == 60
    assert result.progress.steps > 1000
    assert result.progress.unmeasured == 0


@pytest.mark.parametrize("examples", [1, 7, 40])
def test_a_hunt_that_is_ended_at_any_example_finds_nothing_in_reference(examples: int) -> None:
    """As by a clock: the results of hypothesis's test function change when the time is over."""

    class After(Watch):
        def __init__(self) -> None:
            self.progress = Progress()

        @override
        def on_example(self, progress: Progress, trace: Trace) -> None:
            self.progress = progress

        @override
        def is_done(self) -> bool:
            return self.progress.examples >= examples

    result = hunted("reference", 1000, watch=After())
    assert result.findings == []
    assert result.progress.examples == examples


@pytest.mark.slow  # by day a hunt until R3 and R8
def test_a_hunt_that_has_found_enough_ends() -> None:
    result = hunted(FAULTY, 1000, watch=Until("R3"))
    assert result.findings[-1].name == "R3"
    assert result.progress.examples < 1000


class SometimesWrong(InProcessPlayer):
    """Plays a buffer whose every third play goes wrong, whatever the trace is."""

    plays = 0

    @override
    def play(self, case: Case, *, new_session: bool) -> Observation | Death:
        self.plays += 1
        seen = super().play(case, new_session=new_session)
        if self.plays % 3 or isinstance(seen, Death):
            return seen
        raised = replace(seen.steps[0], raised=Raised("RuntimeError", "third", "get", "here:1"))
        return replace(seen, steps=(raised, *seen.steps[1:]))


@pytest.mark.slow  # 9 s
def test_a_fault_that_comes_and_goes_is_reported_as_it_was_seen() -> None:
    """hypothesis itself would report such a test as flaky."""
    result = hunt(target("reference"), SometimesWrong(), examples=60)
    assert result.progress.examples == 60
    assert {finding.name for finding in result.findings} <= {"R2", "R4", "R8"}


def test_memory_that_runs_out_is_a_finding_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object, **__: object) -> None:
        raise OutOfMemory("no room")

    def announced(case: Case, *, announce: object, **_: object) -> None:
        announce(1, case.trace.steps[0])  # type: ignore[operator]
        out_of_memory()

    monkeypatch.setattr(work, "play_on_shared_session", announced)
    result = hunt(target("reference"), InProcessPlayer(), examples=3)
    assert {finding.kind for finding in result.findings} == {FindingKind.MEMORY}


def test_one_compiled_decoder_serves_all_traces() -> None:
    progress = hunted("reference", 12, "eager/drop_all").progress
    assert (progress.findings, progress.examples) == (0, 12)
    assert (progress.graphs, progress.budget, progress.sessions) == (1, 1, 1)


@pytest.mark.slow  # 2 s
def test_a_compiled_decoder_shows_its_fault_after_the_profile_run_that_it_needs() -> None:
    going = Hunt(target("pr40932", "eager/drop_all"), InProcessPlayer())
    faults, _ = going.replay(Trace.parse("cap 16: profile 16; set 16; forward 16"), new_session=True)
    assert [fault.rule for fault in faults] == [Rule.STRUCTURE, Rule.OUTPUT]


@pytest.mark.slow
def test_what_a_compiled_decoder_shows_is_shown_on_a_session_of_its_own() -> None:
    found = {finding.name: finding for finding in hunted("pr40932", 20, "eager/drop_all").findings}
    assert found["R0"].alone
    assert found["R0"].trace == "cap 2: profile 2; set 1; forward 1"


@pytest.mark.slow
def test_graphs_of_a_fault_are_shown_on_a_session_of_its_own() -> None:
    findings = hunted("gradients_when_set", 4, "eager/stock", watch=Until("R11")).findings
    assert {finding.rule for finding in findings if finding.alone} == {Rule.GRAPHS}


@pytest.mark.slow  # the same loop over other steps
def test_captured_graphs_are_hunted_on() -> None:
    (found,) = hunted("clears_by_counter", 300, "eager/full", watch=Until("R5")).findings
    assert found.trace == "cap 1: capture 1; set 1; replay 1; get 1"


@pytest.mark.parametrize("arm", ["zero-deepstack", "eager/tp2", "inductor/drop_all/reduce_overhead"])
def test_an_arm_that_cannot_be_fuzzed_is_refused(arm: str) -> None:
    with pytest.raises(UsageError, match="arm"):
        target("reference", arm)


class Replays(Hunt):
    """A hunt whose plays are given: each trace shows these faults."""

    def __init__(self, arm: str, *faults: Fault) -> None:
        super().__init__(target("reference", arm), InProcessPlayer())
        self.given = faults
        self.played: list[tuple[str, bool]] = []

    @override
    def replay(self, trace: Trace, *, new_session: bool) -> tuple[list[Fault], bool]:
        self.played.append((str(trace), new_session))
        return [replace(fault, trace=trace) for fault in self.given], False


def fault(rule: Rule, trace: str = "cap 4: get 4") -> Fault:
    return fault_of_judgement(Trace.parse(trace), Judgement(rule, Verdict.FAIL, detail="seen"))


def test_graphs_that_a_new_session_does_not_show_are_reported_as_they_are() -> None:
    wanted = fault(Rule.GRAPHS)
    shown, hidden = Replays("eager/stock", wanted), Replays("eager/stock", fault(Rule.OUTPUT))
    assert _Search(shown, 9)._is_shown_again(wanted)
    assert shown.findings == []
    assert not _Search(hidden, 9)._is_shown_again(wanted)
    assert [(finding.rule, finding.alone) for finding in hidden.findings] == [(Rule.GRAPHS, False)]
    assert shown.played == hidden.played == [("cap 4: get 4", True)]
    assert _Search(hidden, 9)._is_shown_again(fault(Rule.BOUNDARY))  # a session that goes on shows it again


@pytest.mark.parametrize(
    ("arm", "left"), [("eager", "cap 4: get 4"), ("eager/drop_all", "cap 4: profile 4; forward 2; get 4")]
)
def test_runs_of_a_compiled_decoder_are_not_left_out_of_a_trace(arm: str, left: str) -> None:
    wanted = fault(Rule.BOUNDARY, "cap 4: profile 4; set 2; forward 2; clear 2; get 4")
    going = Replays(arm, wanted)
    search = _Search(going, 9)
    search._wanted = wanted
    assert str(search.simplest(wanted).trace) == left


def test_a_trace_is_not_shrunk_when_no_play_is_left() -> None:
    wanted = fault(Rule.BOUNDARY)
    going = Replays("eager", wanted)
    search = _Search(going, 9)
    search._wanted, search._left = wanted, 1
    assert search._show_wanted(wanted.trace) == wanted
    assert search._show_wanted(wanted.trace) is None
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


TRACE = Trace.parse(
    "cap 4 levels 2 dtype float16 mode inference buffers 2: set 2 layout=strided values=nan grad; "
    "get 2 on=b; get 9 fail=3; set 3 dtype=float64 spans=1-2"
)


def test_each_step_setting_and_option_can_be_left_out() -> None:
    simpler = [str(trace) for trace in simpler_traces(TRACE)]
    assert [len(Trace.parse(text).steps) for text in simpler[:3]] == [3, 3, 3]
    assert [text.partition("; ")[0].partition(": ")[2][:5] for text in simpler[:3]] == [
        "set 2",
        "set 2",
        "get 2",
    ]
    assert [text.partition(":")[0] for text in simpler[3:7]] == [
        "cap 4 dtype float16 mode inference buffers 2",
        "cap 4 levels 2 mode inference buffers 2",
        "cap 4 levels 2 dtype float16 buffers 2",
        "cap 4 levels 2 dtype float16 mode inference",
    ]
    assert "on=b" not in simpler[6]
    left_out = {str(TRACE).count("=") - text.count("=") for text in simpler[7:]}
    assert len(simpler) == 13
    assert left_out == {0, 1}  # grad has no value


@pytest.mark.parametrize("trace", ["cap 4: get 2 times=12", "cap 4 buffers 2: get 2 on=b", "cap 4: get 2"])
def test_the_last_step_and_a_buffer_that_is_all_there_is_stay(trace: str) -> None:
    last = Trace.parse(trace).steps[-1]
    assert all(simpler.steps[-1] == last for simpler in simpler_traces(Trace.parse(trace)))
    assert [*simpler_traces(Trace.parse(trace), {Op.GET})] == []


def test_what_became_needless_by_a_later_step_is_left_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second set can be left out when the first one is gone, but is tried before it."""
    wanted = fault(Rule.BOUNDARY, "cap 4: set 1; set 2; get 4")
    going = Replays("eager", wanted)
    search = _Search(going, 9)
    search._wanted = wanted

    def replay(trace: Trace, *, new_session: bool) -> tuple[list[Fault], bool]:
        return [replace(wanted, trace=trace)] * (str(trace) != "cap 4: set 1; get 4"), new_session

    monkeypatch.setattr(going, "replay", replay)
    assert str(search.simplest(wanted).trace) == "cap 4: get 4"


@pytest.mark.slow  # 13 s
def test_a_finding_has_only_the_option_that_shows_it() -> None:
    found = hunted("replaces_nan", 150).findings
    assert {finding.trace.count("=") for finding in found} == {1}
    assert all("values=nan" in finding.trace or "values=mixed" in finding.trace for finding in found)
