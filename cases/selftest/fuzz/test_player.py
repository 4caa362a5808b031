"""A player: the end of its worker is a death in a step, and the next case is played in another worker."""

from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import pytest

from cases.selftest.play.misbehaving_buffers import misbehaving
from deepstack_harness.contract.case import user_buffer
from deepstack_harness.contract.observation import Observation
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.errors import HarnessError, MachineError, UsageError
from deepstack_harness.fuzz import player as player_module
from deepstack_harness.fuzz.faults import Target
from deepstack_harness.fuzz.hunt import hunt
from deepstack_harness.fuzz.player import Death, FindingKind, InProcessPlayer, WorkerPlayer
from deepstack_harness.workers.outcomes import CallResult, EndKind, RaisedInWorker, WorkerEnd, end_of


@pytest.fixture(scope="module")
def player() -> Iterator[WorkerPlayer]:
    with closing(WorkerPlayer(step_s=5, memory_bytes=2 * 2**30)) as one:
        yield one


def play(player: WorkerPlayer, behaviour: str, trace: str) -> Observation | Death:
    buffer = user_buffer(misbehaving(behaviour, "resize"))
    target = Target(player.bind(buffer, None, Target.family))
    return player.play(target.case(Trace.parse(trace), 1), new_session=True)


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        ("Segfaults", FindingKind.CRASH),
        pytest.param("Hangs", FindingKind.HANG, marks=pytest.mark.slow),
        pytest.param("Eats", FindingKind.MEMORY, marks=pytest.mark.slow),
        ("Floods", FindingKind.OUTPUT),
    ],
)
def test_what_ends_the_worker_is_a_death_and_the_next_case_is_played(
    player: WorkerPlayer, behaviour: str, kind: FindingKind
) -> None:
    died = play(player, behaviour, "cap 16: set 9; get 16; resize 12; get 12")
    assert isinstance(died, Death)
    assert (died.kind, died.step) == (kind, 3)
    assert "step 3 'resize 12'" in died.detail
    target = Target(user_buffer(misbehaving(behaviour, "resize")))
    lived = player.play(target.case(Trace.parse("cap 16: set 9; get 16"), 1), new_session=False)
    assert isinstance(lived, Observation)
    assert len(lived.steps) == 2


def test_a_worker_sees_what_this_process_sees(player: WorkerPlayer) -> None:
    trace = "cap 4: set 3; get 4; clear 4; get 6; set 4 levels=2; resize 2; forward 2"
    here, there = InProcessPlayer(), play(player, "Behaves", trace)
    target = Target(here.bind(user_buffer(misbehaving("Behaves", "resize")), None, Target.family))
    seen = here.play(target.case(Trace.parse(trace), 1), new_session=True)
    assert isinstance(there, Observation)
    assert isinstance(seen, Observation)
    assert [(step.step, step.capacity, step.generation) for step in there.steps] == [
        (step.step, step.capacity, step.generation) for step in seen.steps
    ]
    assert [step.answer and step.answer.rows for step in there.steps] == [
        step.answer and step.answer.rows for step in seen.steps
    ]


def test_a_buffer_that_does_not_exist_is_the_users_mistake(player: WorkerPlayer) -> None:
    with pytest.raises(UsageError, match="has no 'Nobody'"):
        player.bind(user_buffer(f"{misbehaving.__module__}:Nobody"), None, Target.family)


def test_a_constructor_that_raises_is_a_finding() -> None:
    player = InProcessPlayer()
    target = Target(player.bind(user_buffer(f"{misbehaving.__module__}:NotOfOneRow"), None, Target.family))
    (found,) = hunt(target, player, examples=20).findings
    assert (found.rule, found.trace) == (Rule.BOUNDARY, "cap 1: get 1")
    assert "make raised RuntimeError: no room today" in found.detail


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (end_of(1, facts=(1, 2), phase="any words"), FindingKind.CRASH),
        (WorkerEnd(EndKind.TIMED_OUT, (3.0,), facts=(1, 2)), FindingKind.HANG),
    ],
)
def test_the_step_of_a_death_is_the_last_one_that_was_announced(
    end: WorkerEnd, kind: FindingKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert played(end, monkeypatch) == Death(kind, 2, end.sentence)


def played(end: CallResult, monkeypatch: pytest.MonkeyPatch) -> Observation | Death:
    worker = SimpleNamespace(launch=lambda: None, call=lambda *_, **__: end)
    monkeypatch.setattr(player_module, "Worker", lambda *_, **__: worker)
    case = Target(user_buffer(misbehaving("Segfaults", "resize"))).case(Trace.parse("cap 4: get 4"), 1)
    return WorkerPlayer().play(case, new_session=True)


@pytest.mark.parametrize(
    ("end", "kind", "message"),
    [
        (RaisedInWorker("UsageError", "deepstack_harness.errors", "no", exit_code=2), UsageError, "^no$"),
        (
            WorkerEnd(EndKind.STOPPED, phase="step 2 'get 4'"),
            MachineError,
            "^ended by the process that started it in step 2",
        ),
        (
            end_of(1, phase="set-up", output="no room\n"),
            HarnessError,
            "^the worker ended outside a step: exited with 1 in set-up; it printed: no room$",
        ),
        (end_of(1), HarnessError, "exited with 1; it printed: nothing$"),
        (end_of(1, phase="step 2 'get 4'"), HarnessError, "outside a step: exited with 1 in step 2"),
    ],
)
def test_an_end_that_is_no_death_in_a_step_is_raised(
    end: CallResult, kind: type[HarnessError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(kind, match=message) as raised:
        played(end, monkeypatch)
    assert type(raised.value) is kind
