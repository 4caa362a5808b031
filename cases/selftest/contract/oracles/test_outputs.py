"""R0, diagnoses and evaluations: what an output is compared with, and the diagnosis of a wrong one."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from cases.selftest.contract.oracles.written_observations import (
    COMPILED,
    ONE_GRAPH,
    QUIET,
    RIGHT,
    TRACE,
    answer,
    forward,
    observed,
)
from cases.selftest.play.playing import case_of
from cases.shallow import shallow
from deepstack_harness.catalogue.buffers import buffer_named
from deepstack_harness.contract.arm import EAGER, ArmSpec
from deepstack_harness.contract.case import Case, registered
from deepstack_harness.contract.observation import (
    NOT_FINITE,
    Distances,
    DroppedGuard,
    GraphFacts,
    GraphUse,
    Observation,
    Raised,
    StepFacts,
)
from deepstack_harness.contract.oracles.outputs import (
    Evaluation,
    case_distances,
    diagnose,
    evaluate,
    judge_output,
    measured_steps,
    tolerance,
    worst_step,
)
from deepstack_harness.contract.oracles.trace_audit import ObservedCase
from deepstack_harness.contract.tolerances import EFFECT, ROUNDINGS
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Judgement, Verdict
from deepstack_harness.errors import UsageError
from deepstack_harness.models.engine import caller_of
from deepstack_harness.play.model import Model
from deepstack_harness.play.observe import play


def output_of(observation: Observation, arm: ArmSpec = COMPILED) -> Judgement:
    return judge_output(ObservedCase(Case("qwen3_vl", registered("reference"), TRACE, arm), observation))


def test_equal_to_eager_passes() -> None:
    assert output_of(forward(RIGHT)).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("eager", "rounding", "verdict"),
    [
        (1e-5, 0, Verdict.PASS),
        (1.1e-5, 0, Verdict.FAIL),
        (5e-3, 2e-3, Verdict.PASS),
        (7e-3, 2e-3, Verdict.FAIL),
        (NOT_FINITE, 1e-6, Verdict.FAIL),
    ],
)
def test_the_tolerance_is_derived_from_the_rounding_of_eager(
    eager: float, rounding: float, verdict: Verdict
) -> None:
    assert output_of(forward(replace(RIGHT, eager=eager, rounding=rounding))).verdict is verdict


@pytest.mark.parametrize(
    ("observation", "verdict", "words"),
    [
        pytest.param(
            forward(replace(RIGHT, effect=5e-5)), Verdict.ERROR, "too little to judge by", id="hardly shows"
        ),
        pytest.param(
            forward(None, answer=None, raised=Raised("ValueError", "no", "get", "buffer.py:3")), Verdict.SKIP,
            "'forward 16': get raised ValueError before the decoder ran", id="was never read",
        ),
        pytest.param(
            forward(None, raised=Raised("TypeError", "not subscriptable", "decoder", "model.py:3")),
            Verdict.FAIL, "step 3 'forward 16' raised TypeError", id="raised in the decoder",
        ),
        pytest.param(
            observed(*forward(RIGHT).steps, error="no graph was built"), Verdict.ERROR, "no graph was built",
            id="was not measured",
        ),
    ],
)  # fmt: skip
def test_a_payload_that_cannot_be_compared_is_no_pass(
    observation: Observation, verdict: Verdict, words: str
) -> None:
    judgement = output_of(observation)
    assert judgement.verdict is verdict
    assert words in judgement.detail


@pytest.mark.parametrize(
    ("arm", "verdict"),
    [
        ("eager", Verdict.SKIP),
        ("no-deepstack", Verdict.SKIP),
        ("eager/tp2", Verdict.SKIP),
        ("eager/full", Verdict.FAIL),
        ("eager/breakable", Verdict.FAIL),
        ("inductor/drop_all", Verdict.FAIL),
    ],
)
def test_what_departs_from_plain_eager_is_judged_against_it(arm: str, verdict: Verdict) -> None:
    assert output_of(forward(replace(RIGHT, eager=1)), ArmSpec.parse(arm)).verdict is verdict


@pytest.mark.parametrize(
    ("dtype", "arm", "limit"),
    [
        ("bfloat16", "eager/drop_all", 0),
        ("float16", "aot_eager/stock", 0),
        ("float16", "eager/full", 0),
        ("bfloat16", "inductor/drop_all", 0.125),
        ("bfloat16", "inductor/drop_all/emulate_casts", 0.125),
        ("float16", "inductor/drop_all", 2**-6),
        ("bfloat16", "aot_eager/drop_all/tp2", 0.125),
        ("float32", "eager/drop_all", 1e-5),
        ("float64", "eager/drop_all", 1e-12),
    ],
)
def test_what_rounds_as_eager_is_held_to_it_in_half_precision(dtype: str, arm: str, limit: float) -> None:
    case = Case("qwen3_vl", registered("reference"), TRACE, ArmSpec.parse(arm), dtype=dtype)
    for eager, verdict in ((limit, Verdict.PASS), (limit * 1.1 + 1e-15, Verdict.FAIL)):
        judgement = judge_output(ObservedCase(case, forward(replace(RIGHT, eager=eager, rounding=0))))
        assert (judgement.verdict, judgement.limit) == (verdict, limit)


@pytest.mark.parametrize(
    ("dtype", "verdict"),
    [
        ("bfloat16", Verdict.SKIP),
        ("float16", Verdict.SKIP),
        ("float32", Verdict.FAIL),
        ("float64", Verdict.FAIL),
    ],
)
def test_where_rounding_chooses_experts_half_precision_is_not_judged(dtype: str, verdict: Verdict) -> None:
    case = Case("qwen3_omni_moe_thinker", registered("reference"), TRACE, COMPILED, dtype=dtype)
    judgement = judge_output(ObservedCase(case, replace(forward(replace(RIGHT, eager=1)), routed=True)))
    assert judgement.verdict is verdict
    assert verdict is Verdict.FAIL or "another expert" in judgement.detail


def test_of_several_steps_the_one_furthest_above_its_tolerance_is_reported() -> None:
    wide = replace(RIGHT, eager=0.2, rounding=0.1, effect=4)
    steps = forward(replace(RIGHT, eager=0.1)).steps
    judgement = output_of(observed(replace(steps[0], distances=wide), *steps[1:]))
    assert (judgement.verdict, judgement.value, judgement.limit) == (Verdict.FAIL, 0.1, 1e-5)


CASE = Case(
    "qwen3_vl", registered("reference"), Trace.parse("cap 16: set 16; forward 16; forward 8"), COMPILED
)


def seen(visual: Distances | None, text: Distances | None) -> Observation:
    """A forward with a payload, followed by one without."""
    steps = [
        StepFacts(f"forward {tokens}", 16, answer=answer(tokens=tokens), distances=distances)
        for tokens, distances in ((16, visual), (8, text))
    ]
    return observed(StepFacts("set 16", 16), *steps)


def test_a_step_without_a_payload_may_be_the_worst() -> None:
    wrong = seen(RIGHT, replace(QUIET, eager=4.0, no_deepstack=4.0, zero_deepstack=4.0))
    worst = worst_step(CASE, measured_steps(CASE, wrong))
    assert worst is not None
    assert (worst.number, str(worst.step), worst.distances.eager) == (3, "forward 8", 4.0)
    assert case_distances(CASE, wrong) == replace(RIGHT, eager=4.0)
    assert judge_output(ObservedCase(CASE, wrong)).value == 4.0


def test_the_worst_is_furthest_above_its_own_tolerance() -> None:
    rounded = replace(RIGHT, eager=0.2, rounding=0.1)  # three roundings are accepted
    found = seen(rounded, replace(QUIET, eager=0.1))
    worst = worst_step(CASE, measured_steps(CASE, found))
    assert worst is not None
    assert worst.distances.eager == 0.1
    assert case_distances(CASE, found) == replace(rounded, eager=0.1)


ALONE = replace(QUIET, eager=0.5)


@pytest.mark.parametrize(
    ("visual", "text", "shown"),
    [
        pytest.param(RIGHT, QUIET, RIGHT, id="all right, the payload first"),
        pytest.param(QUIET, RIGHT, RIGHT, id="all right, the payload last"),
        pytest.param(None, ALONE, ALONE, id="no payload"),
        pytest.param(None, QUIET, None, id="equal outputs, and a payload that was never read"),
        pytest.param(None, None, None, id="no decoder ran"),
    ],
)
def test_the_distances_of_a_case_are_those_of_a_step_with_a_payload(
    visual: Distances | None, text: Distances | None, shown: Distances | None
) -> None:
    assert case_distances(CASE, seen(visual, text)) == shown


def test_equal_outputs_show_where_no_payload_was_set() -> None:
    assert worst_step(CASE, measured_steps(CASE, seen(None, None))) is None
    never_set = replace(CASE, trace=Trace.parse("cap 16: get 16; forward 16; forward 8"))
    assert case_distances(never_set, seen(None, QUIET)) == QUIET


INDUCTOR = "inductor/drop_all"
SIZES = (1, 2, 9, 33)
SIZES_TRACE = Trace.parse("cap 33: profile 33; " + "; ".join(f"set {n}; forward {n}" for n in SIZES))
DTYPES = ("bfloat16", "float16", "float32", "float64")
ON_AOT_EAGER = pytest.mark.xdist_group("aot_eager")
ON_INDUCTOR = pytest.mark.xdist_group("inductor")


@cache
def model(family: str, dtype: str = "bfloat16") -> Model:
    torch.set_num_threads(1)
    return Model.build(family, dtype)


class Rewired(nn.Module):
    """A decoder whose levels come in another order, or zeroed where the order has None."""

    def __init__(self, decoder: nn.Module, order: Sequence[int | None]) -> None:
        super().__init__()
        self.decoder = decoder
        self.order = tuple(order)

    @override
    def forward(self, hidden: Tensor, positions: Tensor, payload: tuple[Tensor, ...] | None) -> Tensor:
        if payload is not None:
            none = torch.zeros_like(hidden)
            payload = tuple(none if level is None else payload[level] for level in self.order)
        out: Tensor = self.decoder(hidden, positions, payload)
        return out


def played(drawn: Model, arm: str = "eager", order: Sequence[int | None] | None = None) -> Observation:
    """The reference buffer; `order` rewires the decoder under test, not the one that it is compared with."""
    tested = drawn if order is None else replace(drawn, decoder=Rewired(drawn.decoder, order))
    dtype = str(drawn.dtype).removeprefix("torch.")
    case = Case(drawn.family.name, registered("reference"), SIZES_TRACE, ArmSpec.parse(arm), dtype=dtype)
    return play(case, tested, buffer_named("reference"))


def judged(observation: Observation, arm: str = INDUCTOR, size: int | None = None) -> Judgement:
    """R0 as under `arm`, of the whole trace, or only of the steps for one size."""
    trace, steps = SIZES_TRACE, observation.steps
    if size is not None:
        indices = [
            index
            for index, step in enumerate(SIZES_TRACE)
            if step.tokens == size and "profile" not in str(step)
        ]
        trace = Trace(SIZES_TRACE.capacity, tuple(SIZES_TRACE.steps[index] for index in indices))
        steps = tuple(observation.steps[index] for index in indices)
    case = Case("qwen3_vl", registered("reference"), trace, ArmSpec.parse(arm), dtype=observation.dtype)
    return judge_output(ObservedCase(case, replace(observation, steps=steps)))


def measured(observation: Observation) -> list[Distances]:
    found = [facts.distances for facts in observation.steps if facts.step.startswith("forward")]
    assert len(found) == len(SIZES)
    return [apart for apart in found if apart is not None]


@ON_AOT_EAGER
@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("qwen3_vl", torch.bfloat16),
        pytest.param("granite4_vision", torch.float16, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow  # 3 s
def test_eagers_own_kernels_give_eagers_own_output(family: str, dtype: torch.dtype) -> None:
    found = measured(played(shallow(family, dtype), "aot_eager/drop_all"))
    assert [apart.eager for apart in found] == [0.0] * len(SIZES)
    assert all(apart.effect > 1 for apart in found)


@pytest.mark.slow  # 13 s; aot_eager is judged daily
@ON_INDUCTOR
@pytest.mark.parametrize(
    "arm", ["inductor/drop_all", pytest.param("inductor/drop_all/emulate_casts", marks=pytest.mark.slow)]
)
def test_inductor_rounds_otherwise_and_within_the_tolerance(arm: str) -> None:
    observation = played(shallow("qwen3_vl", torch.bfloat16), arm)
    # Should emulated casts ever make these 0, that arm can be held to eager exactly.
    assert all(0 < apart.eager < ROUNDINGS * apart.rounding for apart in measured(observation))
    assert judged(observation, arm).verdict is Verdict.PASS


def faults(levels: int) -> list[tuple[int | None, ...]]:
    """One level skipped, or two neighbours swapped."""
    skipped = [tuple(None if other == level else other for other in range(levels)) for level in range(levels)]
    swapped = [(*range(at), at + 1, at, *range(at + 2, levels)) for at in range(levels - 1)]
    return [*skipped, *swapped]


@pytest.mark.parametrize(
    ("family", "order"),
    [
        *(("qwen3_vl", order) for order in faults(3)),
        *(("granite4_vision", order) for order in faults(4)),
    ],
)
def test_a_level_skipped_or_swapped_is_above_rounding(family: str, order: Sequence[int | None]) -> None:
    observation = played(model(family), order=order)
    for size in SIZES:
        judgement = judged(observation, size=size)
        assert judgement.verdict is Verdict.FAIL, judgement
        assert judgement.value is not None
        assert judgement.limit is not None
        assert judgement.value > 1.5 * judgement.limit


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_smallest_fault_shows_in_every_dtype(dtype: str) -> None:
    # Of all the above: Granite's spatial levels swapped, of which the last comes before the last layer.
    observation = played(model("granite4_vision", dtype), order=(0, 1, 3, 2))
    for size in SIZES:
        assert judged(observation, size=size).verdict is Verdict.FAIL


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["qwen3_vl", "granite4_vision"])
def test_the_payload_moves_the_output_enough_to_judge_by(family: str, dtype: str) -> None:
    case = Case(family, registered("reference"), SIZES_TRACE, ArmSpec.parse(INDUCTOR), dtype=dtype)
    found = measured(played(model(family, dtype)))
    assert all(apart.effect > EFFECT * tolerance(case, apart) for apart in found)


def additions(dtype: str, arm: str) -> Judgement:
    trace = Trace.parse("cap 16: capture 9; set 9; forward 9; set 9; replay 9; set 16; forward 16")
    case = Case(
        "qwen3_vl",
        registered("reference"),
        trace,
        ArmSpec.parse(arm),
        dtype=dtype,
        caller="order_of_additions",
    )
    drawn = shallow("qwen3_vl", torch.bfloat16) if dtype == "bfloat16" else model("qwen3_vl", dtype)
    return judge_output(ObservedCase(case, play(case, drawn, buffer_named("reference"))))


@ON_AOT_EAGER
@pytest.mark.parametrize(
    ("dtype", "arm", "verdict"),
    [
        pytest.param("bfloat16", "eager/drop_all", Verdict.FAIL, marks=pytest.mark.slow),
        pytest.param("bfloat16", "aot_eager/drop_all", Verdict.FAIL, marks=pytest.mark.slow),
        ("bfloat16", "eager/full", Verdict.FAIL),
        ("float16", "eager/full", Verdict.FAIL),
        ("float32", "eager/full", Verdict.PASS),
        ("float64", "eager/full", Verdict.PASS),
    ],
)
def test_another_order_of_additions_shows_where_rounding_is_eagers(
    dtype: str, arm: str, verdict: Verdict
) -> None:
    other = additions(dtype, arm)
    assert other.verdict is verdict, other
    assert other.value is not None
    assert other.value > 0  # also where it is within the tolerance: the sum did go another way


def test_a_decoder_that_knows_no_other_order_is_refused() -> None:
    with pytest.raises(UsageError, match="knows no other order for Granite4VisionDecoder"):
        caller_of(
            Case("granite4_vision", registered("reference"), SIZES_TRACE, EAGER, caller="order_of_additions")
        ).decoder(model("granite4_vision").decoder)


def diagnosed(
    observation: Observation, arm: str = "eager/drop_all", dtype: str = "float32", trace: Trace = TRACE
) -> str | None:
    return diagnose(
        Case("qwen3_vl", registered("reference"), trace, ArmSpec.parse(arm), dtype=dtype), observation
    )


@pytest.mark.parametrize("arm", ["eager/drop_all", "eager/full", "eager"])
def test_nothing_wrong_nothing_to_diagnose(arm: str) -> None:
    assert diagnosed(forward(RIGHT), arm) is None


WRONG = replace(RIGHT, eager=3, no_deepstack=0)


def after_profile(profile: dict[str, object], **last: object) -> Observation:
    """Wrong by 3 in step 3; `profile` and `last` change the facts of steps 1 and 3."""
    first, *others = forward(WRONG, **last).steps
    return observed(replace(first, **profile), *others)  # type: ignore[arg-type]


PAYLOAD = DroppedGuard(
    "payload", "L['payload'] is None", "layers.py:12", "None", "tuple of 1", first_call=2, calls=1
)


def with_failed(observation: Observation, *failed: DroppedGuard) -> Observation:
    return replace(observation, graphs=replace(ONE_GRAPH, failed=failed))


def test_the_dropped_guard_that_fails_is_named_with_its_line() -> None:
    seen = with_failed(after_profile({"graphs": 1}, graphs=1), PAYLOAD)
    assert diagnosed(seen) == (
        "`payload` was None in step 1 'profile 16', which compiled the graph, and the guard 'L['payload'] is "
        "None' (layers.py:12) was dropped; step 3 'forward 16' had tuple of 1 and reused that graph: "
        "off from eager by 3, and 0 from a model without deepstack"
    )


def test_an_input_that_is_no_payload_is_named_too() -> None:
    factor = replace(PAYLOAD, name="self.factor", rule="L['self'].factor == 2", where="", then="int 2")
    found = diagnosed(with_failed(after_profile({"graphs": 1}, graphs=1), factor))
    assert found is not None
    assert found.startswith(
        "`self.factor` was int 2 in step 1 'profile 16', which compiled the graph, and the"
    )
    assert "guard 'L['self'].factor == 2' was dropped" in found


@pytest.mark.parametrize("failed", [(), (replace(PAYLOAD, first_call=3),)], ids=["none", "later"])
def test_where_no_guard_fails_none_is_blamed(failed: tuple[DroppedGuard, ...]) -> None:
    assert diagnosed(with_failed(after_profile({"graphs": 1}, graphs=1), *failed)) == (
        "step 3 'forward 16' is off from eager by 3, and 0 from a model without deepstack, on the graph that "
        "step 1 'profile 16' compiled, and no guard on what it read fails here: the graph kept something "
        "else of that step, or the caller passed something else"
    )


def test_of_several_graphs_the_guard_is_named_without_a_step() -> None:
    found = diagnosed(with_failed(after_profile({"graphs": 2}, graphs=2), PAYLOAD))
    assert found is not None
    assert found.endswith(
        "on one of 2 graphs that earlier steps compiled; the guard 'L['payload'] is None' (layers.py:12) was "
        "dropped: `payload` was None, and then tuple of 1"
    )


@pytest.mark.parametrize(
    ("profile", "last", "message"),
    [
        (0, 1, "no graph of an earlier step took part"),
        (1, 2, "no graph of an earlier step took part"),
        (2, 2, "on one of 2 graphs that earlier steps compiled"),
    ],
)
def test_a_graph_is_blamed_only_where_it_is_the_one(profile: int, last: int, message: str) -> None:
    found = diagnosed(after_profile({"graphs": profile}, graphs=last), "eager/keep_tensor")
    assert found is not None
    assert found.endswith(message)


def test_a_model_with_some_influence_left_is_not_one_without() -> None:
    found = diagnosed(forward(replace(WRONG, no_deepstack=0.4)))
    assert found is not None
    assert "without deepstack" not in found


@pytest.mark.parametrize("arm", ["eager/drop_all", "eager/full"])
def test_what_rounding_explains_is_another_order(arm: str) -> None:
    assert diagnosed(forward(replace(RIGHT, eager=0.03, rounding=0.02)), arm, "bfloat16") == (
        f"step 3 'forward 16' is off from eager by 0.03, which rounding explains, but arm {arm} rounds as "
        "eager does: the same numbers were added in another order"
    )


REPLAY = Trace.parse("cap 16: capture 16; set 16; replay 16")


@pytest.mark.parametrize(
    ("arm", "detached", "message"),
    [
        ("eager/full", False, "is replayed without the Python of get, the decoder and clear"),
        ("eager/piecewise", False, "is replayed without the Python of the decoder"),
        ("eager/full", True, "reads storage from which get no longer answers"),
    ],
)
def test_a_replay_names_its_capture(arm: str, detached: bool, message: str) -> None:
    observation = forward(WRONG, graph_use=GraphUse(detached=detached))
    assert diagnosed(observation, arm, trace=REPLAY) == (
        f"the graph captured in step 1 'capture 16' {message}; step 3 'replay 16' is off from eager by 3, "
        "and 0 from a model without deepstack"
    )


@pytest.mark.parametrize(
    ("arm", "facts", "message"),
    [
        ("eager/drop_all", ONE_GRAPH, "decoder raised RuntimeError"),
        ("eager/stock/static", ONE_GRAPH, "decoder raised RuntimeError"),
        ("eager/drop_all/mark_unbacked", ONE_GRAPH, "decoder raised RuntimeError"),
        (
            "eager/drop_all/static",
            ONE_GRAPH,
            "the graph is for one size alone, and no guard was left to notice 16",
        ),
        ("eager/drop_all/mark_unbacked", None, "nothing was compiled, unbacked sizes cannot be compared"),
        (
            "eager/stock/static",
            replace(ONE_GRAPH, graphs=8, limit_hit=True),
            "torch compiles no more than 8 graphs, and without fullgraph goes on eager",
        ),
    ],
)
def test_what_an_exception_of_torch_leaves_out(arm: str, facts: GraphFacts | None, message: str) -> None:
    refused = Raised("RuntimeError", "no", "decoder", "model.py:3")
    found = diagnosed(observed(*forward(None, raised=refused).steps, facts=facts), arm)
    assert found is not None
    assert found.startswith(f"step 3 'forward 16': {message}")
    assert found.endswith("decoder raised RuntimeError: no (model.py:3)")


def test_a_decoder_that_raises_names_the_guard_that_was_dropped() -> None:
    refused = Raised("IndexError", "no", "decoder", "model.py:3")
    facts = replace(ONE_GRAPH, failed=(PAYLOAD,))
    assert diagnosed(observed(*forward(None, raised=refused).steps, facts=facts)) == (
        "step 3 'forward 16': the guard 'L['payload'] is None' (layers.py:12) was dropped: `payload` was "
        "None, and then tuple of 1; decoder raised IndexError: no (model.py:3)"
    )


def test_graphs_too_many_are_explained_where_outputs_are_right() -> None:
    facts = replace(ONE_GRAPH, graphs=2, recompiles=1, reasons=("0/0: payload is None",))
    assert diagnosed(replace(forward(RIGHT), graphs=facts), "eager/stock") == (
        "torch compiled 2 graphs, and not 1: 0/0: payload is None held no more"
    )


def test_a_graph_that_broke_is_the_cause_of_further_graphs() -> None:
    facts = replace(ONE_GRAPH, graphs=6, recompiles=1, breaks=2, reasons=("a size",))
    assert diagnosed(replace(forward(RIGHT), graphs=facts), "eager/stock/breaks") == (
        "torch broke the graph 2 times and compiled 6 graphs, and not 1: an operation, such as an index by "
        "values, is in no graph"
    )


def evaluation(model: Model, trace: str, revision: str, arm: str = "eager/drop_all") -> Evaluation:
    case = case_of(trace, revision, ArmSpec.parse(arm))
    return evaluate(case, play(case, model, buffer_named(revision)))


def test_a_fixed_revision_agrees_wholly(qwen: Model) -> None:
    found = evaluation(qwen, "cap 32: profile 32; set 30; forward 30; forward 7", "pr43617")
    assert found == Evaluation(agreement=1.0, runs=3, counts=3, died=0, leaked=0)


@pytest.mark.slow  # by day in cases/test_workload.py
def test_a_faulty_revision_agrees_only_where_no_payload_takes_part(qwen: Model) -> None:
    found = evaluation(qwen, "cap 32: profile 32; set 32; forward 32", "pr40932")
    assert found.agreement is not None
    assert 0.5 <= found.agreement < 0.8  # the profile run is half of the tokens


def test_runs_that_raise_are_counted(qwen: Model) -> None:
    found = evaluation(qwen, "cap 16: set 9; forward 16; set 9; forward 16", "pr40145", "eager")
    assert found == Evaluation(agreement=None, runs=0, counts=0, died=2, leaked=0)


@pytest.mark.parametrize(
    ("trace", "leaked"),
    [
        ("cap 16: set 9 request=a; set 3 request=b; get 9", 18),
        ("cap 16: set 9 request=a+b; set 3 request=b+c; get 9", 0),
        ("cap 16: set 9 request=a; clear 5; get 9", 12),
        ("cap 16: set 9 request=a; get 9", 0),
    ],
)
def test_rows_of_another_request_are_leaks(qwen: Model, trace: str, leaked: int) -> None:
    assert evaluation(qwen, trace, "pr43617", "eager").leaked == leaked
    assert evaluation(qwen, trace, "reference", "eager").leaked == 0
