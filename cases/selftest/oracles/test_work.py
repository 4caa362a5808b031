"""R10: the oracle on observations written by hand, and what is counted in real runs."""

import pytest
import torch
from torch import Tensor, nn

from deepstack_harness.callers.static_inputs import StaticInputs
from deepstack_harness.contract.arm_spec import EAGER, ArmSpec
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.facts.accesses import AccessFacts, KernelAccess
from deepstack_harness.contract.observation import Distances, Observation, StepFacts
from deepstack_harness.contract.optional_members import in_graph
from deepstack_harness.contract.protocols import Inputs, Profile
from deepstack_harness.contract.trace import Step, Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.families.by_name import family_named
from deepstack_harness.oracles import work
from deepstack_harness.oracles.observed_case import ObservedCase
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import play
from deepstack_harness.revisions.granite import GraniteRowsBuffer
from deepstack_harness.revisions.reference import ReferenceBuffer

CPU = torch.device("cpu")
RAN = Distances(eager=0, no_deepstack=3, zero_deepstack=3, effect=3, rounding=0)


def judged(trace: str, *attended: int | None, arm: ArmSpec = EAGER, ran: Distances | None = RAN) -> Judgement:
    steps = Trace.parse(trace)
    facts = [
        StepFacts(str(step), 64, attended=rows, distances=ran)
        for step, rows in zip(steps, attended, strict=True)
    ]
    case = Case("granite4_vision:payload_first", registered("granite_full"), steps, arm)
    return work.judge(ObservedCase(case, Observation("float32", "cpu", 4, 8, "2.13.0", tuple(facts))))


def test_as_many_rows_as_asked_for_are_right() -> None:
    said = judged("cap 64: profile 64; forward 9; forward 1", 64, 9, 1)
    assert (said.verdict, said.value, said.limit) == (Verdict.PASS, 64, 64)


def test_the_step_with_the_largest_factor_is_told() -> None:
    said = judged("cap 64: profile 32; forward 9; forward 1", 64, 64, 8)
    assert (said.verdict, said.value, said.limit, said.unit) == (Verdict.FAIL, 8, 1, "rows")
    assert said.detail == "step 3 'forward 1': attention was given 8 rows for 1, 8 times"


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
    said = judged("cap 64: forward 9", None)
    assert said.verdict is Verdict.SKIP
    assert (
        "'granite4_vision:payload_first' reports no rows; that of 'granite4_vision:opaque' does"
        in said.detail
    )


def test_where_no_decoder_ran_there_is_nothing_to_count() -> None:
    said = judged("cap 64: get 9", None, ran=None)
    assert (said.verdict, said.detail) == (Verdict.SKIP, "no step ran the decoder")


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
    for one in given:
        seen.append(caller.inputs(Step.parse(f"forward {len(one.hidden)}"), one))
        assert torch.equal(seen[-1].hidden, one.hidden)
        assert torch.equal(seen[-1].positions, one.positions)
    assert (
        len({one.hidden.data_ptr() for one in seen}) == len({one.positions.data_ptr() for one in seen}) == 1
    )
    assert {one.positions.stride() for one in seen} == {(17, 1)}
    assert {one.hidden.untyped_storage().nbytes() for one in seen} == {16 * 8 * 4}


def test_inputs_above_the_capacity_have_no_room_and_are_left_alone() -> None:
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
def test_granite_rows_clamp_before_the_decoder_reads_and_far_behind_the_tokens(dtype: torch.dtype) -> None:
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


def test_other_revisions_leave_the_decoder_alone() -> None:
    decoder = Touched()
    assert in_graph(ReferenceBuffer, decoder) is decoder


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        ("payload[0]", "kernel add_0 read rows 0..8 of payload[0] (100% of the bytes were measured), 9 rows"),
        ("buffer 0", "no kernel touched a payload (100% of the bytes were measured): 0 rows for 9, 0 times"),
    ],
)
def test_the_kernel_that_touched_most_rows_of_a_payload_is_told(tensor: str, said: str) -> None:
    access = KernelAccess(
        "add_0", tensor, 72, 0, 72, argument="in_ptr1", shape=(9, 2), itemsize=4, read=((0, 9),),
        elements_read=18,
    )  # fmt: skip
    facts = StepFacts("forward 9", 64, accesses=AccessFacts((access,)), distances=RAN)
    case = Case("qwen3_vl", registered("reference"), Trace.parse("cap 64: forward 9"), EAGER)
    found = work.judge(ObservedCase(case, Observation("float32", "cpu", 4, 8, "2.13.0", (facts,))))
    assert found.verdict is Verdict.PASS
    assert said in found.detail
