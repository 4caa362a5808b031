"""Captured graphs: what they read, when they are refused, and how a session holds them."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from cases.by_day import by_day
from cases.selftest.play.playing import case_of, judge, observe
from deepstack_harness.catalogue.buffers import buffer_named
from deepstack_harness.catalogue.plans import CAPTURE_TRACES
from deepstack_harness.compile import graphs
from deepstack_harness.compile.captured import CapturedSession, capturing, open_arm
from deepstack_harness.compile.eager import EagerSession
from deepstack_harness.compile.graphs import CpuGraph, CpuGraphs
from deepstack_harness.compile.watch_captured import watch_captured
from deepstack_harness.compile.watch_facts import WatchedRegion, WatchedRegions
from deepstack_harness.contract.arm import EAGER, ArmSpec
from deepstack_harness.contract.case import Case, Compare, registered
from deepstack_harness.contract.observation import Answer, GraphUse, Observation, RowRange, StepFacts
from deepstack_harness.contract.oracles.buffer import judge_address, judge_rows_and_calls
from deepstack_harness.contract.oracles.judge import judge_all
from deepstack_harness.contract.oracles.trace_audit import ObservedCase
from deepstack_harness.contract.protocols import Inputs, Profile
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.errors import MachineError, NotMeasured, StepUnavailable
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.play.lane import PlayedLane
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import play
from deepstack_harness.play.rows import RowOwners, StorageWatch

FULL = ArmSpec.parse("eager/full")


class Counted(ReferenceBuffer):
    """Counts how often the Python of get and clear ran."""

    calls = 0

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        self.calls += 1
        return super().get(tokens)

    def clear(self, tokens: int) -> None:
        self.calls += 1
        super().clear(tokens)


@contextmanager
def lane_of(model: Model, arm: str, make: type[ReferenceBuffer] = ReferenceBuffer) -> Iterator[PlayedLane]:
    sizes = model.profile(16)
    buffer = make(16, sizes.hidden, sizes.levels, dtype=sizes.dtype, device=sizes.device)
    with torch.no_grad(), closing(open_arm(ArmSpec.parse(arm), model.decoder, sizes)) as session:
        yield PlayedLane(buffer, session, RowOwners())


def inputs(model: Model, tokens: int, seed: int) -> Inputs:
    """Hidden states and positions that differ from seed to seed."""
    hidden = torch.randn(tokens, model.family.hidden, generator=torch.Generator().manual_seed(seed))
    return Inputs(hidden, model.family.positions(tokens, model.device) * seed, None)


def eager(model: Model, given: Inputs, levels: Tensor | None = None) -> Tensor:
    out: Tensor = model.decoder(given.hidden, given.positions, None if levels is None else tuple(levels))
    return out


@pytest.mark.parametrize(
    "arm", by_day(["eager/full", "eager/piecewise", "eager/breakable", "eager/drop_all/full"], count=2)
)
def test_a_replay_decodes_the_inputs_and_the_payload_of_its_step(qwen: Model, arm: str) -> None:
    text, image = inputs(qwen, 16, seed=2), inputs(qwen, 16, seed=3)
    levels = torch.randn(qwen.family.levels, 16, qwen.family.hidden)
    dummy = inputs(qwen, 16, seed=1)
    with lane_of(qwen, arm) as lane:
        lane.session.capture(dummy, lane)
        first = lane.session.replay(text, lane)
        lane.buffer.set(levels)
        second = lane.session.replay(image, lane)
        third = lane.session.replay(image, lane)
        torch.testing.assert_close(first, eager(qwen, text))  # not written over by later ones
        torch.testing.assert_close(second, eager(qwen, image, levels))
        torch.testing.assert_close(third, eager(qwen, image))
    assert dummy.hidden.equal(inputs(qwen, 16, seed=1).hidden)  # slots are the session's own


def test_sizes_are_captured_one_by_one_and_no_other_is_replayed(qwen: Model) -> None:
    with lane_of(qwen, "eager/full") as lane:
        for tokens in (16, 4):
            lane.session.capture(inputs(qwen, tokens, seed=1), lane)
        for tokens in (4, 16):
            given = inputs(qwen, tokens, seed=tokens)
            torch.testing.assert_close(lane.session.replay(given, lane), eager(qwen, given))
        with pytest.raises(StepUnavailable, match="eager/full has no graph for 9 tokens; captured are 16, 4"):
            lane.session.replay(inputs(qwen, 9, seed=1), lane)


@pytest.mark.parametrize(
    ("arm", "at_replay"), [("eager/full", 0), ("eager/breakable", 0), ("eager/piecewise", 2)]
)
def test_python_of_get_and_clear_runs_at_capture_only_where_they_are_captured(
    qwen: Model, arm: str, at_replay: int
) -> None:
    given = inputs(qwen, 16, seed=1)
    with lane_of(qwen, arm, Counted) as lane:
        assert isinstance(lane.buffer, Counted)
        lane.session.capture(given, lane)
        assert lane.buffer.calls == 4  # get and clear, to warm up and to record
        lane.session.replay(given, lane)
        assert lane.buffer.calls == 4 + at_replay


def test_what_was_captured_is_dropped_with_what_was_compiled(qwen: Model) -> None:
    with lane_of(qwen, "eager/full") as lane:
        lane.session.capture(inputs(qwen, 4, seed=1), lane)
        lane.session.close()
        with pytest.raises(StepUnavailable, match="captured are none"):
            lane.session.replay(inputs(qwen, 4, seed=1), lane)
        with pytest.raises(StepUnavailable, match="saves nothing"):
            lane.session.reload()


def test_a_compiled_session_inside_is_closed_as_well(qwen: Model) -> None:
    before = torch.compiler.config.fail_on_recompile_limit_hit
    session = open_arm(ArmSpec.parse("eager/drop_all/full"), qwen.decoder, qwen.profile(16))
    assert torch.compiler.config.fail_on_recompile_limit_hit is True
    session.close()
    assert torch.compiler.config.fail_on_recompile_limit_hit is before


class Deaf(CpuGraph):
    def again(self) -> None:
        """Does nothing."""


class Twice(CpuGraph):
    def again(self) -> None:
        super().again()
        super().again()


@pytest.mark.parametrize(("make", "times"), [(CpuGraph, 1), (Deaf, 0), (Twice, 2)])
def test_a_replay_that_was_none_is_not_measured(make: type[CpuGraph], times: int) -> None:
    graph, written = make(), torch.zeros(1)
    with graph.recording():
        graph.record(lambda: written.add_(1))
        graph.call(lambda: written.mul_(10))
        graph.at_replay(lambda: written.sub_(3))
    assert written.item() == 10  # what is only for replays was not done
    with nullcontext() if times == 1 else pytest.raises(NotMeasured, match=f"{times} times, not once"):
        graph.replay()
    assert times != 1 or written.item() == 107


@pytest.mark.parametrize(
    ("trace", "buffer", "arm", "allocated"),
    [
        ("capture 16; replay 16", "reference", "eager/full", [0, 0]),
        ("capture 16; replay 16", "allocates_on_clear", "eager/full", [3, 0]),
        ("capture 4; capture 16; set 20; replay 16", "allocates_on_clear", "eager/full", [3, 3, 0, 6]),
        ("capture 16", "allocates_on_clear", "eager/piecewise", [0]),
    ],
    ids=["none", "in_a_capture", "captured_again", "outside_of_the_graph"],
)
def test_allocations_during_capture_are_counted(
    qwen: Model, trace: str, buffer: str, arm: str, allocated: list[int]
) -> None:
    steps = observe(qwen, f"cap 16: {trace}", buffer, ArmSpec.parse(arm)).steps
    assert [facts.graph_use for facts in steps] == [GraphUse(allocated=number) for number in allocated]


def test_what_a_capture_allocates_and_does_not_hold_is_freed(qwen: Model) -> None:
    first, second = observe(qwen, "cap 16: capture 16; replay 16", "copies_on_get", FULL).steps
    assert first.graph_use == GraphUse(freed=3, allocated=3)
    assert second.graph_use is not None
    assert second.graph_use.allocated == 0


@pytest.mark.parametrize("arm", ["eager/full", "eager/piecewise"])
def test_an_announced_move_ends_in_a_step_without_a_graph_and_in_new_graphs(qwen: Model, arm: str) -> None:
    trace = "cap 16: capture 4; capture 16; set 20; replay 16; set 4; replay 4; set 16; replay 16"
    steps = observe(qwen, trace, "reference", ArmSpec.parse(arm)).steps
    assert [facts.generation for facts in steps] == [0, 0, 1, 1, 1, 1, 1, 1]
    assert {facts.graph_use for facts in steps} == {GraphUse()}
    answers = [facts.answer.addresses for facts in steps if facts.answer]
    assert answers[0] == answers[1] != answers[2] == answers[3] == answers[4]
    assert [facts.distances.eager for facts in steps if facts.distances] == [0, 0, 0]
    assert not any(facts.raised or facts.unavailable for facts in steps)


@pytest.mark.parametrize("replays", ["replay 16", "replay 16; replay 16"])
def test_graphs_captured_again_are_replayed(qwen: Model, replays: str) -> None:
    made: list[Counted] = []

    def make(capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device) -> Counted:
        made.append(Counted(capacity, hidden, levels, dtype=dtype, device=device))
        return made[-1]

    play(case_of(f"cap 16: capture 16; set 20; {replays}", "reference", FULL), qwen, make)
    assert made[0].calls == 10  # 4 for each capture, 2 for the step without a graph, none for a replay


def test_graphs_captured_after_a_move_do_not_vouch_for_earlier_ones(qwen: Model) -> None:
    steps = observe(qwen, "cap 16: capture 4; capture 20; set 4; replay 4", "reference", FULL).steps
    assert steps[-1].graph_use == GraphUse()
    assert steps[-1].distances is not None
    assert steps[-1].distances.eager == 0 < steps[-1].distances.effect


def test_the_release_comes_when_graphs_are_captured_again(
    qwen: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[str] = []
    monkeypatch.setattr(ReferenceBuffer, "release", lambda _: released.append("now"))
    observe(qwen, "cap 16: capture 16; set 20; get 20", "reference", FULL)
    assert released == []
    observe(qwen, "cap 16: capture 16; set 20; replay 16", "reference", FULL)
    assert released == ["now", "now"]  # in both lanes


class CannotBeCapturedAgain(ReferenceBuffer):
    """Raises when it is cleared while it is empty and has grown."""

    def clear(self, tokens: int) -> None:
        if self.generation and not self._tokens_set:
            raise RuntimeError("no")
        super().clear(tokens)


def test_a_failure_to_capture_again_is_a_fact_of_its_step(qwen: Model) -> None:
    case = case_of("cap 16: capture 16; set 20; replay 16", "reference", FULL)
    last = play(case, qwen, CannotBeCapturedAgain).steps[-1]
    assert last.raised is not None
    assert (last.raised.call, last.raised.message) == ("clear", "no")


class NeverAnswersUnderFour(ReferenceBuffer):
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        if tokens < 4:
            raise RuntimeError("too few")
        return super().get(tokens)


def test_a_capture_that_raises_is_a_fact_and_leaves_no_graph(qwen: Model) -> None:
    case = case_of("cap 16: capture 3; replay 3", "reference", FULL)
    capture, replay = play(case, qwen, NeverAnswersUnderFour).steps
    assert capture.raised is not None
    assert (capture.raised.call, capture.raised.message) == ("get", "too few")
    assert replay.unavailable == "arm eager/full has no graph for 3 tokens; captured are none"


class Driven(ReferenceBuffer):
    def begin_step(self, tokens: int, *, profile: bool) -> None:
        """As `deepstack_harness.engines.stand_ins` does."""


@pytest.mark.parametrize(
    ("changes", "make", "why"),
    [
        ({}, Driven, "driven through its own forward is not captured"),
        ({"caller": "micro_batches"}, ReferenceBuffer, "graphs of caller micro_batches are not captured"),
        ({"arm": EAGER}, ReferenceBuffer, "arm eager captures no graphs"),
    ],
)
def test_where_a_graph_would_not_be_what_its_name_is_there_is_none(
    qwen: Model, changes: dict[str, object], make: type[ReferenceBuffer], why: str
) -> None:
    case = replace(case_of("cap 16: capture 16; replay 16", "reference", FULL), **changes)  # type: ignore[arg-type]
    capture, replay = play(case, qwen, make).steps
    assert why in (capture.unavailable or "")
    assert replay.unavailable


def test_torchs_own_cuda_graphs_need_cuda(qwen: Model) -> None:
    with pytest.raises(
        MachineError, match="'inductor/drop_all/reduce_overhead' needs a CUDA device, not 'cpu'"
    ):
        open_arm(ArmSpec.parse("inductor/drop_all/reduce_overhead"), qwen.decoder, qwen.profile(16))


@pytest.mark.parametrize(
    ("at_capture", "now", "generation", "detached"),
    [
        ((0, 1), (0, 1), 0, False),
        ((0, 1), (0, 2), 0, True),
        ((0, 1), (0, 2), 1, False),  # announced with these very tensors
        ((), (0, 1), 0, False),  # captured with None: it reads no storage
        ((0, 1), (), 0, False),
    ],
)
def test_a_graph_is_detached_where_get_moved_unannounced(
    at_capture: tuple[int, ...], now: tuple[int, ...], generation: int, detached: bool
) -> None:
    tensors = [torch.zeros(4, 8) for _ in range(3)]
    watch = StorageWatch()
    assert watch.use(0) is None
    watch.note_capture(4, tuple(tensors[index] for index in at_capture) or None, 0)
    answer = tuple(tensors[index] for index in now) or None
    assert watch.replayed(4, answer, generation) == GraphUse(detached=detached)


def test_storage_that_is_gone_is_counted_once_until_its_graph_is_replaced() -> None:
    watch, levels = StorageWatch(), [torch.zeros(8, 8), torch.zeros(8, 8)]
    for tokens in (4, 8):
        watch.note_capture(tokens, tuple(level[:tokens] for level in levels), 0)
    assert watch.use(0) == GraphUse()
    levels.pop()
    assert watch.use(0, allocated=2) == GraphUse(freed=1, allocated=2)
    assert watch.use(1) == GraphUse()  # announced: these graphs are captured again before a replay
    for tokens in (4, 8):
        watch.note_capture(tokens, (levels[0][:tokens],), 0)
    assert watch.use(0) == GraphUse()


def used(*uses: GraphUse | None) -> Judgement:
    """R6 of a trace in which graphs were used like this, and get returned tensors once."""
    uses = (*uses, *uses[-1:] * (4 - len(uses)))
    trace = Trace.parse("cap 16: capture 16; set 20; replay 16; replay 16")
    run = RowRange(0, 0, 0, 16)
    answer = Answer("tensors", ((run,),), (8,), ("float32",), ("cpu",), (64,))
    steps = [StepFacts(str(step), 16, 0, graph_use=use) for step, use in zip(trace, uses, strict=True)]
    steps[0] = replace(steps[0], answer=answer)
    return judge_address(
        ObservedCase(
            Case("qwen3_vl", registered("reference"), trace, FULL),
            Observation("float32", "cpu", 1, 8, "2.13.0", tuple(steps)),
        ),
    )


def test_what_graphs_suffer_is_judged_by_the_address_rule() -> None:
    fine, detached, freed = GraphUse(), GraphUse(detached=True), GraphUse(freed=3)
    assert used(None).verdict is Verdict.SKIP
    assert used(fine).verdict is Verdict.PASS
    judgement = used(GraphUse(allocated=2), fine)
    assert (judgement.verdict, judgement.value) == (Verdict.FAIL, 1)
    assert (
        judgement.detail == "step 1 'capture 16' allocated 2 tensors in get or clear while they were captured"
    )
    judgement = used(fine, freed, freed, freed)
    assert (judgement.verdict, judgement.value) == (Verdict.FAIL, 1)  # counted once, when it went
    assert judgement.detail == "step 2 'set 20' found 3 storages freed that captured graphs still read"
    judgement = used(fine, fine, detached, detached)
    assert (judgement.verdict, judgement.value) == (Verdict.FAIL, 2)
    assert judgement.detail.startswith(
        "step 3 'replay 16' replayed a graph on storage that get no longer answers"
    )
    assert judgement.detail.endswith("(and 1 more)")


DETACHED = "cap 16: capture 16; set 9; replay 16; set 20; replay 16"


@pytest.mark.parametrize("then", ["get 20", "set 3; get 9", "forward 16", "replay 16; get 20"])
def test_rows_of_a_detached_graph_are_reported_by_the_address_rule_only(qwen: Model, then: str) -> None:
    judged = judge(qwen, f"{DETACHED}; {then}", "moves_unannounced", FULL)
    broken = {rule for rule, judgement in judged.items() if judgement.verdict is Verdict.FAIL}
    assert broken - {Rule.OUTPUT} == {Rule.ADDRESS}


def test_rows_are_compared_again_once_a_call_of_the_buffers_own_has_cleared_it(qwen: Model) -> None:
    judged = judge(qwen, f"{DETACHED}; clear 20; set 9; set 3; get 9", "original", FULL)
    assert judged[Rule.FRESHNESS].verdict is Verdict.FAIL


def test_a_rule_does_not_pass_by_rows_that_nobody_compared(qwen: Model) -> None:
    only_read = "cap 16: set 20; replay 16"
    facts = StepFacts("replay 16", 16, 0, graph_use=GraphUse(detached=True))
    trace = Trace.parse(only_read)
    seen = Observation("float32", "cpu", 3, 128, "2.13.0", (StepFacts("set 20", 20, 0), facts))
    case = Case("qwen3_vl", registered("reference"), trace, FULL)
    assert judge_rows_and_calls(Rule.BOUNDARY, ObservedCase(case, seen)).verdict is Verdict.SKIP
    rows = tuple((RowRange(1, level, 0, 16),) for level in range(3))
    answer = Answer("tensors", rows, (128,) * 3, ("float32",) * 3, ("cpu",) * 3, container="tuple")
    attached = replace(seen, steps=(seen.steps[0], replace(facts, graph_use=GraphUse(), answer=answer)))
    assert judge_rows_and_calls(Rule.BOUNDARY, ObservedCase(case, attached)).verdict is Verdict.PASS


@pytest.mark.parametrize(
    "buffer",
    by_day(["reference", "pr43617", "copies_on_get", "clears_by_counter", "frees_on_resize"], count=2),
)
def test_rows_are_judged_the_same_where_no_decoder_runs(qwen: Model, buffer: str) -> None:
    for trace in (*CAPTURE_TRACES, DETACHED):
        alone = judge(qwen, trace, buffer, FULL, Compare.NOTHING)
        beside = judge(qwen, trace, buffer, FULL, Compare.EAGER)
        for of_decoder in (Rule.OUTPUT, Rule.WORK):
            del alone[of_decoder], beside[of_decoder]
        assert alone == beside


@pytest.mark.gpu
@pytest.mark.parametrize("trace", ["cap 16: capture 16; set 16; replay 16; replay 16", DETACHED])
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_vl:opaque"])
@pytest.mark.parametrize("arm", ["eager/full", "eager/piecewise", "eager/breakable", "eager/drop_all/full"])
def test_verdicts_on_cuda_equal_those_on_a_cpu(trace: str, family: str, arm: str) -> None:
    verdicts = []
    for device in ("cpu", "cuda"):
        model = Model.build(family, device=device)
        for name in ("original", "pr40932", "pr43617", "reference", "copies_on_get", "allocates_on_clear"):
            case = replace(case_of(trace, name, ArmSpec.parse(arm)), family=family, device=device)
            said = judge_all(ObservedCase(case, play(case, model, buffer_named(name))))
            verdicts.append((name, [(judgement.rule, judgement.verdict) for judgement in said]))
    half = len(verdicts) // 2
    assert verdicts[:half] == verdicts[half:]


@pytest.mark.gpu
@pytest.mark.xdist_group("inductor")
def test_torchs_own_cuda_graphs_are_right_for_a_buffer_that_is() -> None:
    arm = ArmSpec.parse("inductor/drop_all/reduce_overhead")
    model = Model.build("qwen3_vl", device="cuda")
    trace = "cap 16: profile 16; forward 16; set 16; forward 16; set 9; forward 16; forward 16"
    case = replace(case_of(trace, "reference", arm), device="cuda")
    said = judge_all(ObservedCase(case, play(case, model, ReferenceBuffer)))
    assert {judgement.verdict for judgement in said} <= {Verdict.PASS, Verdict.SKIP}, said


@pytest.mark.xdist_group("eager")
def test_graphs_do_not_outlive_a_reload() -> None:
    reloaded: list[bool] = []
    inner = SimpleNamespace(reload=lambda: reloaded.append(True))
    session = CapturedSession(ArmSpec.parse("eager/full"), cast(EagerSession, inner), CpuGraphs())
    session._captured[4] = cast(Any, "a graph of 4 tokens")
    session.reload()
    assert (reloaded, session._captured) == ([True], {})


@pytest.mark.xdist_group("eager")
@pytest.mark.parametrize(("capture", "broken"), [("full", False), ("piecewise", True), ("breakable", True)])
def test_graphs_of_a_gpu_are_broken_at_attention_unless_they_are_whole(
    capture: str, monkeypatch: pytest.MonkeyPatch, *, broken: bool
) -> None:
    made: list[tuple[torch.device, bool]] = []

    def noted(device: torch.device, *, broken_at_attention: bool) -> CpuGraphs:
        made.append((device, broken_at_attention))
        return CpuGraphs()

    monkeypatch.setattr(graphs, "CudaGraphs", noted)
    cuda, cpu = (Profile(16, 8, 2, torch.float32, torch.device(name)) for name in ("cuda:1", "cpu"))
    spec, inner = ArmSpec.parse(f"eager/{capture}"), cast(EagerSession, None)
    capturing(spec, inner, cuda)
    assert made == [(cuda.device, broken)]
    capturing(spec, inner, cpu)
    assert len(made) == 1


class NoneFirst(ReferenceBuffer):
    """Returns None while nothing is set, as vLLM's Qwen3-VL did (43602)."""

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        return super().get(tokens) if self._tokens_set else None


def watched_replays(
    qwen: Model, arm: str, make: type[ReferenceBuffer], between: Callable[[ReferenceBuffer], object]
) -> WatchedRegion:
    """Replay a text, do something with the buffer, and replay again; return what a watch saw."""
    watched = WatchedRegions()
    with watch_captured(watched), lane_of(qwen, arm, make) as lane:
        lane.session.capture(inputs(qwen, 16, seed=1), lane)
        lane.session.replay(inputs(qwen, 16, seed=2), lane)
        between(cast(ReferenceBuffer, lane.buffer))
        lane.session.replay(inputs(qwen, 16, seed=3), lane)
    (region,) = watched.regions
    assert region.calls == 2
    return region


def test_a_watch_names_the_payload_that_another_capture_was_for(qwen: Model) -> None:
    levels = torch.ones(qwen.family.levels, 16, qwen.family.hidden)
    absent = watched_replays(qwen, "eager/piecewise", NoneFirst, lambda buffer: buffer.set(levels))
    assert [(guard.name, guard.rule.split()[1]) for guard in absent.decisive] == [("payload", "presence")]
    moved = watched_replays(qwen, "eager/piecewise", ReferenceBuffer, lambda buffer: buffer.resize(32))
    assert {guard.rule.split()[1] for guard in moved.decisive} == {"address"}
    right = watched_replays(qwen, "eager/piecewise", ReferenceBuffer, lambda buffer: buffer.set(levels))
    assert (right.decisive, right.unseen) == ([], 0)


def test_a_full_graph_has_no_visible_inputs(qwen: Model) -> None:
    region = watched_replays(qwen, "eager/full", ReferenceBuffer, lambda buffer: buffer.resize(32))
    assert (region.name, region.unseen, region.failed) == ("CUDA graph", 2, {})
