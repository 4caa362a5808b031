"""Graphs, work and memory of compiled code, on facts written by hand and of real runs."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from cases.selftest.contract.oracles.written_observations import (
    COMPILED,
    ONE_GRAPH,
    RIGHT,
    TRACE,
    answer,
    forward,
    observed,
)
from deepstack_harness.catalogue.registry import family_named
from deepstack_harness.contract.arm import EAGER, ArmSpec
from deepstack_harness.contract.case import Case, registered
from deepstack_harness.contract.facts import (
    AccessFacts,
    Disagreement,
    KernelAccess,
    LibraryCall,
    join_accesses,
    rows_in_words,
)
from deepstack_harness.contract.observation import (
    Distances,
    Observation,
    Raised,
    StepFacts,
)
from deepstack_harness.contract.oracles.compiler import (
    judge_accesses,
    judge_configurations,
    judge_graphs,
    judge_step,
    judge_work,
)
from deepstack_harness.contract.oracles.judge import judge_all
from deepstack_harness.contract.oracles.outputs import judge_output
from deepstack_harness.contract.oracles.trace_audit import ObservedCase
from deepstack_harness.contract.protocols import Inputs, Profile, in_graph
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Step, Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.models.engine_faults import StaticInputs
from deepstack_harness.models.reference import ReferenceBuffer
from deepstack_harness.models.revisions import GraniteRowsBuffer
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import play


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, Verdict.PASS),
        ({"graphs": 2}, Verdict.FAIL),
        ({"breaks": 1}, Verdict.FAIL),
        ({"limit_hit": True}, Verdict.FAIL),
    ],
)
def test_graphs_above_the_budget(changes: dict[str, object], verdict: Verdict) -> None:
    facts = replace(ONE_GRAPH, **changes)  # type: ignore[arg-type]
    case = Case("qwen3_vl", registered("reference"), TRACE, COMPILED)
    assert judge_graphs(ObservedCase(case, replace(forward(RIGHT), graphs=facts))).verdict is verdict


# (rows, strides) of two returned levels with 8 columns: other strides count only where torch guards them.
STRIDES = {
    "a row of another row stride than two rows": ((2, (8, 1)), (1, (24, 1)), Verdict.PASS),
    "another row stride, always at one row": ((1, (8, 1)), (1, (24, 1)), Verdict.FAIL),
    "a row of another column stride": ((2, (8, 1)), (1, (16, 2)), Verdict.FAIL),
    "no rows of another column stride": ((2, (8, 1)), (0, (1, 2)), Verdict.PASS),
    "no rows of other strides, twice": ((0, (8, 1)), (0, (1, 2)), Verdict.FAIL),
    "rows of another row stride": ((2, (8, 1)), (3, (24, 1)), Verdict.FAIL),
}


@pytest.mark.parametrize(("first", "second", "verdict"), STRIDES.values(), ids=STRIDES)
def test_strides_count_where_torch_guards_them(
    first: tuple[int, tuple[int, int]], second: tuple[int, tuple[int, int]], verdict: Verdict
) -> None:
    gets = [
        StepFacts(f"get {rows}", 16, answer=replace(answer(tokens=rows), strides=(strides,)))
        for rows, strides in (first, second)
    ]
    trace = Trace.parse("cap 16: set 16; " + "; ".join(get.step for get in gets))
    judged = judge_graphs(
        ObservedCase(
            Case("qwen3_vl", registered("reference"), trace, EAGER), observed(StepFacts("set 16", 16), *gets)
        )
    )
    assert judged.verdict is verdict


def test_no_budget_makes_room_for_the_recompile_limit() -> None:
    facts = replace(ONE_GRAPH, graphs=8, recompiles=9, limit_hit=True, reasons=("0/0: size mismatch",))
    refused = Raised("FailOnRecompileLimitHit", "hard failure", "decoder", "compile.py:3")
    observation = replace(forward(RIGHT, raised=refused), graphs=facts)
    case = Case("qwen3_vl", registered("reference"), TRACE, COMPILED, graph_budget=10)
    judgement = judge_graphs(ObservedCase(case, observation))
    assert (judgement.verdict, judgement.value, judgement.limit) == (Verdict.FAIL, 11, 10)
    assert "the recompile limit was reached" in judgement.detail
    # One fault breaks one rule: that exception is of our own making.
    assert judge_output(ObservedCase(case, observation)).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        pytest.param(
            forward(None, raised=Raised("UserError", "could not guard", "decoder", "model.py:3")),
            "nothing was compiled: step 3 'forward 16' raised UserError", id="reached, and not compiled",
        ),
        pytest.param(
            forward(None, answer=None, raised=Raised("ValueError", "no", "get", "buffer.py:3")),
            "the decoder was never reached", id="never reached",
        ),
    ],
)  # fmt: skip
def test_a_decoder_without_graphs_is_not_tested(seen: Observation, why: str) -> None:
    case = Case("qwen3_vl", registered("reference"), TRACE, COMPILED)
    judgement = judge_graphs(ObservedCase(case, observed(*seen.steps, facts=None)))
    assert (judgement.verdict, judgement.detail) == (Verdict.SKIP, why)


def test_reasons_of_recompiles_are_reported() -> None:
    facts = replace(ONE_GRAPH, graphs=2, recompiles=1, reasons=("0/0: payload is None",))
    said = judge_graphs(
        ObservedCase(
            Case("qwen3_vl", registered("reference"), TRACE, COMPILED), replace(forward(RIGHT), graphs=facts)
        )
    )
    assert "recompiled because 0/0: payload is None" in said.detail


def test_graphs_that_were_not_counted_are_an_error_of_their_rule() -> None:
    case = Case("qwen3_vl", registered("reference"), TRACE, COMPILED)
    seen = replace(forward(RIGHT), error="the caches were warm")
    judgement = judge_graphs(ObservedCase(case, seen))
    assert (judgement.verdict, judgement.detail) == (Verdict.ERROR, "the caches were warm")
    assert judge_graphs(ObservedCase(case, forward(RIGHT))).verdict is Verdict.PASS


CPU = torch.device("cpu")
RAN = Distances(eager=0, no_deepstack=3, zero_deepstack=3, effect=3, rounding=0)


def judged(trace: str, *attended: int | None, arm: ArmSpec = EAGER, ran: Distances | None = RAN) -> Judgement:
    steps = Trace.parse(trace)
    facts = [
        StepFacts(str(step), 64, attended=rows, distances=ran)
        for step, rows in zip(steps, attended, strict=True)
    ]
    case = Case("granite4_vision:payload_first", registered("granite_full"), steps, arm)
    return judge_work(ObservedCase(case, Observation("float32", "cpu", 4, 8, "2.13.0", tuple(facts))))


def test_as_many_rows_as_requested_are_right() -> None:
    judgement = judged("cap 64: profile 64; forward 9; forward 1", 64, 9, 1)
    assert (judgement.verdict, judgement.value, judgement.limit) == (Verdict.PASS, 64, 64)


def test_the_step_with_the_largest_factor_is_reported() -> None:
    judgement = judged("cap 64: profile 32; forward 9; forward 1", 64, 64, 8)
    assert (judgement.verdict, judgement.value, judgement.limit, judgement.unit) == (
        Verdict.FAIL,
        8,
        1,
        "rows",
    )
    assert judgement.detail == "step 3 'forward 1': attention was given 8 rows for 1, 8 times"


@pytest.mark.parametrize("step", ["forward", "profile", "capture", "replay"])
def test_every_step_that_runs_the_decoder_counts(step: str) -> None:
    assert judged(f"cap 64: {step} 9", 10).verdict is Verdict.FAIL
    assert judged(f"cap 64: {step} 9", 9).verdict is Verdict.PASS


def test_steps_that_run_no_decoder_do_not() -> None:
    assert judged("cap 64: get 1; forward 9", 64, 9).verdict is Verdict.PASS


def test_a_step_of_no_tokens_may_be_given_one_row() -> None:
    assert judged("cap 64: forward 0", 0).verdict is Verdict.PASS
    assert judged("cap 64: forward 0", 1).verdict is Verdict.PASS
    assert judged("cap 64: forward 0", 2).verdict is Verdict.FAIL


@pytest.mark.parametrize(("rows", "verdict"), [(12, Verdict.PASS), (13, Verdict.FAIL)])
def test_ranks_gather_what_they_padded(rows: int, verdict: Verdict) -> None:
    arm = ArmSpec.parse("eager/tp4")
    assert judged("cap 64: forward 9", rows, arm=arm).verdict is verdict


def test_attention_that_does_not_count_is_skipped_with_the_family_that_does() -> None:
    judgement = judged("cap 64: forward 9", None)
    assert judgement.verdict is Verdict.SKIP
    assert (
        "'granite4_vision:payload_first' reports no rows; that of 'granite4_vision:opaque' does"
        in judgement.detail
    )


def test_where_no_decoder_ran_there_is_nothing_to_count() -> None:
    judgement = judged("cap 64: get 9", None, ran=None)
    assert (judgement.verdict, judgement.detail) == (Verdict.SKIP, "no step ran the decoder")


@pytest.fixture(scope="module")
def opaque() -> Model:
    torch.set_num_threads(1)
    return Model.build("qwen3_vl:opaque")


def observe(model: Model, trace: str, caller: str = "engine") -> Observation:
    case = Case(model.family.name, registered("reference"), Trace.parse(trace), EAGER, caller=caller)
    return play(case, model, ReferenceBuffer)


def test_rows_are_counted_per_step(opaque: Model) -> None:
    steps = observe(opaque, "cap 16: profile 16; set 9; get 9; forward 12; forward 1").steps
    assert [facts.attended for facts in steps] == [16, None, None, 12, 1]


def test_of_two_micro_batches_the_larger_one_counts(opaque: Model) -> None:
    (facts,) = observe(opaque, "cap 16: forward 7", "micro_batches_sliced").steps
    assert facts.attended == 4


def test_static_inputs_are_the_same_values_in_the_same_storage(opaque: Model) -> None:
    caller = StaticInputs()
    caller.buffer(ReferenceBuffer, Profile(16, 8, 3, torch.float32, CPU))
    given = [Inputs(torch.randn(n, 8), torch.randint(9, (3, n)), None) for n in (9, 16, 1)]
    seen: list[Inputs] = []
    for inputs in given:
        seen.append(caller.inputs(Step.parse(f"forward {len(inputs.hidden)}"), inputs))
        assert torch.equal(seen[-1].hidden, inputs.hidden)
        assert torch.equal(seen[-1].positions, inputs.positions)
    assert (
        len({inputs.hidden.data_ptr() for inputs in seen})
        == len({inputs.positions.data_ptr() for inputs in seen})
        == 1
    )
    assert {inputs.positions.stride() for inputs in seen} == {(17, 1)}
    assert {inputs.hidden.untyped_storage().nbytes() for inputs in seen} == {16 * 8 * 4}


def test_inputs_above_the_capacity_have_no_room_and_are_passed_unchanged() -> None:
    caller = StaticInputs()
    caller.buffer(ReferenceBuffer, Profile(16, 8, 3, torch.float32, CPU))
    given = Inputs(torch.randn(17, 8), torch.zeros(3, 17, dtype=torch.int64), None)
    assert caller.inputs(Step.parse("forward 17"), given) is given


def test_static_inputs_change_no_output(opaque: Model) -> None:
    trace = "cap 16: profile 16; set 9; forward 12; forward 4"
    plain, static = (observe(opaque, trace, caller).steps for caller in ("engine", "static_inputs"))
    assert [facts.distances for facts in static] == [facts.distances for facts in plain]


class Touched(nn.Module):
    """A decoder that remembers what its levels held."""

    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        self.seen = None if payload is None else [level.clone() for level in payload]
        return hidden


def test_granite_rows_write_back_every_row_and_change_no_output() -> None:
    family = family_named("granite4_vision")
    decoder = family.build(dtype=torch.float32, device=CPU, seed=0)
    hidden, positions = torch.randn(9, family.hidden), family.positions(9, CPU)
    levels = tuple(torch.randn(16, family.hidden) for _ in range(family.levels))
    copies = tuple(level.clone() for level in levels)
    out = in_graph(GraniteRowsBuffer, decoder)(hidden, positions, levels)
    assert torch.equal(out, decoder(hidden, positions, copies))
    assert all(map(torch.equal, levels, copies))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_granite_rows_clamp_before_the_decoder_reads_and_far_after_the_tokens(dtype: torch.dtype) -> None:
    decoder = Touched()
    level = torch.zeros(16, 8, dtype=dtype)
    level[0], level[15] = torch.inf, -torch.inf
    in_graph(GraniteRowsBuffer, decoder)(torch.zeros(1, 8), torch.zeros(3, 1), (level,))
    finite = torch.finfo(dtype)
    assert (level[0] == finite.max).all()
    assert (level[15] == finite.min).all()
    assert decoder.seen is not None
    assert torch.equal(decoder.seen[0], level)
    in_graph(GraniteRowsBuffer, decoder)(torch.zeros(1, 8), torch.zeros(3, 1), None)
    assert decoder.seen is None


def test_other_revisions_leave_the_decoder_unchanged() -> None:
    decoder = Touched()
    assert in_graph(ReferenceBuffer, decoder) is decoder


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ("payload[0]", "kernel add_0 read rows 0..8 of payload[0] (100% of the bytes were measured), 9 rows"),
        ("buffer 0", "no kernel touched a payload (100% of the bytes were measured): 0 rows for 9, 0 times"),
    ],
)
def test_the_kernel_that_touched_most_rows_of_a_payload_is_reported(tensor: str, message: str) -> None:
    access = KernelAccess(
        "add_0", tensor, 72, 0, 72, argument="in_ptr1", shape=(9, 2), itemsize=4, read=((0, 9),),
        elements_read=18,
    )  # fmt: skip
    facts = StepFacts("forward 9", 64, accesses=AccessFacts((access,)), distances=RAN)
    case = Case("qwen3_vl", registered("reference"), Trace.parse("cap 64: forward 9"), EAGER)
    found = judge_work(ObservedCase(case, Observation("float32", "cpu", 4, 8, "2.13.0", (facts,))))
    assert found.verdict is Verdict.PASS
    assert message in found.detail


@pytest.mark.parametrize(
    ("first", "end", "rows", "verdict", "value"),
    [
        (0, 64, 0, Verdict.PASS, 0),
        (-4, 64, 0, Verdict.FAIL, 4),
        (0, 72, 0, Verdict.FAIL, 8),
        (-4, 72, 3, Verdict.FAIL, 12),
        (0, 64, 3, Verdict.FAIL, 3),
    ],
)
def test_memory_outside_and_memory_never_written(
    first: int, end: int, rows: int, verdict: Verdict, value: int
) -> None:
    accesses = (KernelAccess("add_0", "buffer", 64, 0, 64), KernelAccess("add_1", "x", 64, first, end, 8))
    judgement = judge_accesses(AccessFacts(accesses, unwritten_rows=rows))
    assert (judgement.verdict, judgement.value) == (verdict, value)
    assert ("add_1" in judgement.detail) is (value > 0)


def test_nothing_measured_is_no_pass() -> None:
    assert judge_accesses(AccessFacts(())).verdict is Verdict.ERROR


READ = KernelAccess(
    "add_0", "payload[0]", 128, 0, 128, argument="in_ptr1", shape=(16, 2), itemsize=4, read=((0, 16),),
    elements_read=32,
)  # fmt: skip
WHOLE = replace(READ, kernel="add_1", shape=(64, 2), size=512, end=512, read=((0, 64),), elements_read=128)
WILD = replace(READ, kernel="add_2", end=136, wild=((16, 17),), in_storage=False)
MM = LibraryCall("aten.mm.out", ("buffer 0",), 384)
PAIR = ("XBLOCK=1", "XBLOCK=8")


def broken(*accesses: KernelAccess, tokens: int = 16) -> dict[Rule, Judgement]:
    said = judge_step(AccessFacts(accesses, calls=(MM,)), tokens)
    return {judgement.rule: judgement for judgement in said if judgement.verdict is not Verdict.PASS}


def test_rows_of_the_step_inside_the_tensor_are_right() -> None:
    assert broken(READ) == {}


def test_rows_of_a_payload_after_the_step_break_only_work() -> None:
    said = broken(READ, WHOLE)
    assert set(said) == {Rule.WORK}
    assert (said[Rule.WORK].value, said[Rule.WORK].limit) == (64, 16)
    assert "kernel add_1 read rows 0..63 of payload[0] (in_ptr1); 62% of the bytes" in said[Rule.WORK].detail


def test_a_row_that_is_written_counts_as_well() -> None:
    written = replace(READ, read=(), written=((0, 17),))
    assert "add_0 wrote rows 0..16" in broken(written)[Rule.WORK].detail


def test_rows_of_other_tensors_are_no_work_on_a_payload() -> None:
    assert broken(replace(WHOLE, tensor="layers.0.weight")) == {}


def test_rows_outside_of_the_tensor_break_only_memory_and_the_first_is_named() -> None:
    said = broken(READ, WILD, replace(WILD, kernel="add_3", end=512))
    assert set(said) == {Rule.MEMORY}
    assert said[Rule.MEMORY].value == 8 + 384
    assert said[Rule.MEMORY].detail == (
        "kernel add_2 touched bytes [0, 136) of payload[0] (in_ptr1), which has 128: row 16 of 16, "
        "outside of any memory; 1 more accesses were outside"
    )


def test_what_a_library_was_given_unwritten_is_named() -> None:
    facts = AccessFacts((READ,), 3, (replace(MM, unwritten=("buffer 0",)),))
    (said,) = [judgement for judgement in judge_step(facts, 16) if judgement.verdict is Verdict.FAIL]
    assert (said.rule, said.value, said.unit) == (Rule.MEMORY, 3, "rows")
    assert "aten.mm.out was given buffer 0" in said.detail


def test_nothing_measured_is_an_error_of_both() -> None:
    assert {judgement.verdict for judgement in judge_step(AccessFacts(()), 16)} == {Verdict.ERROR}
    assert judge_configurations(AccessFacts((READ,))).verdict is Verdict.ERROR


@pytest.mark.parametrize(("difference", "verdict"), [(None, Verdict.PASS), (0.5, Verdict.FAIL)])
def test_configurations_have_to_agree(difference: float | None, verdict: Verdict) -> None:
    apart = () if difference is None else (Disagreement("add_0", "out_ptr0", PAIR, difference),)
    judgement = judge_configurations(AccessFacts((READ,), compared=4, disagreements=apart))
    assert (judgement.rule, judgement.verdict) == (Rule.OUTPUT, verdict)
    named = "kernel add_0 writes out_ptr0 differently with XBLOCK=1 and with XBLOCK=8"
    assert (named in judgement.detail) is (difference is not None)


def judged_step(arm: str, *accesses: KernelAccess) -> dict[Rule, Judgement]:
    case = Case("qwen3_vl", registered("reference"), TRACE, ArmSpec.parse(arm))
    observation = forward(RIGHT, accesses=AccessFacts(accesses) if accesses else None)
    return {judgement.rule: judgement for judgement in judge_all(ObservedCase(case, observation))}


def test_memory_is_judged_only_where_code_is_interpreted() -> None:
    assert Rule.MEMORY not in judged_step("inductor/drop_all")
    assert judged_step("h200/drop_all")[Rule.MEMORY].verdict is Verdict.SKIP
    assert judged_step("h200/drop_all", READ)[Rule.MEMORY].verdict is Verdict.PASS
    judgement = judged_step("h200/drop_all", READ, WILD)[Rule.MEMORY]
    assert (judgement.verdict, judgement.steps) == (Verdict.FAIL, (3,))
    assert judgement.detail.startswith("step 3 'forward 16': kernel add_2 touched")


def test_work_of_a_case_is_that_of_its_kernels() -> None:
    assert judged_step("h200/drop_all", READ)[Rule.WORK].verdict is Verdict.PASS
    judgement = judged_step("h200/drop_all", READ, WHOLE)[Rule.WORK]
    assert (judgement.verdict, judgement.value, judgement.limit) == (Verdict.FAIL, 64, 16)
    assert "kernel add_1 read rows 0..63 of payload[0]" in judgement.detail


def test_rows_are_numbered_as_people_count_them() -> None:
    assert rows_in_words([(16, 17)]) == "row 16"
    assert rows_in_words([(0, 3), (2, 5), (9, 10)]) == "rows 0..4, 9"


def test_the_facts_of_several_calls_are_one() -> None:
    one = AccessFacts((READ,), 1, (MM,), 2)
    both = join_accesses([one, one])
    assert both is not None
    assert (len(both.accesses), both.unwritten_rows, len(both.calls), both.programs) == (2, 2, 2, 4)
    assert (join_accesses([]), join_accesses([one])) == (None, one)


@pytest.mark.parametrize(
    ("compared", "rules"), [(0, {Rule.WORK, Rule.MEMORY}), (2, {Rule.OUTPUT, Rule.WORK, Rule.MEMORY})]
)
def test_configurations_are_judged_where_two_were_run(compared: int, rules: set[Rule]) -> None:
    said = {
        judgement.rule: judgement
        for judgement in judge_step(AccessFacts((READ,), calls=(MM,), compared=compared), 16)
    }
    assert set(said) == rules
    assert {judgement.verdict for judgement in said.values()} == {Verdict.PASS}
