"""Buffers made under another dtype or device than the hidden states have (vllm 44384, 49384).

Before the first set a released Qwen buffer stays where it was made, and after it too;
Granite's and the change proposed in #44384 move.
"""

from dataclasses import replace

import pytest
import torch

from cases.by_day import by_day
from cases.played import Played, play_judged
from cases.released import released
from cases.shallow import shallow
from deepstack_harness.contract.case import Compare
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.engines.classes import methods_of
from deepstack_harness.engines.kinds.vllm import VLLM
from deepstack_harness.engines.stand_ins import Surroundings
from deepstack_harness.play.model import Model

R = Rule
STEPS = "cap 16: profile 16; set 9; forward 16"
READS = "cap 16: get 4; set 9; get 9"
TEXT = "cap 16: profile 16; forward 4; forward 1"
ELSEWHERE = "made_in_float32_on_cpu"
EAGER_BACKEND = pytest.mark.xdist_group("eager")


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return {name: shallow("qwen3_vl", dtype) for name, dtype in dtypes.items()}


def played(
    model: Model,
    subject: str,
    trace: str,
    arm: str = "eager",
    make: BufferFactory | None = None,
    compare: Compare = Compare.ALL,
) -> Played:
    return play_judged(model, subject, arm, trace, make=make, compare=compare)


@pytest.mark.parametrize("revision", ["original", "pr43617", "pr49397", "reference"])
def test_a_buffer_stays_where_it_was_made(models: dict[str, Model], revision: str) -> None:
    run = played(models["bfloat16"], f"{revision}@{ELSEWHERE}", STEPS)
    assert run.broken == {R.PLACEMENT}
    assert run.judgements[R.PLACEMENT].value == 2
    assert run.judgements[R.PLACEMENT].detail == (
        "step 1 'profile 16' answered in float32 on cpu, the hidden states are in bfloat16 on cpu"
    )


@EAGER_BACKEND
@pytest.mark.parametrize(
    "revision",
    ["original", *(pytest.param(revision, marks=pytest.mark.slow) for revision in ("pr43617", "pr49397"))],
)
def test_and_the_compiled_decoder_raises(models: dict[str, Model], revision: str) -> None:
    run = played(models["bfloat16"], f"{revision}@{ELSEWHERE}", STEPS, "eager/drop_all")
    assert run.broken == {R.OUTPUT, R.PLACEMENT}
    assert "raised RuntimeError: expected m1 and m2 to have the same dtype" in run.judgements[R.OUTPUT].detail


def test_none_hides_it_until_the_first_set(models: dict[str, Model]) -> None:
    run = played(models["bfloat16"], f"pr40932@{ELSEWHERE}", STEPS)
    assert run.broken == {R.STRUCTURE, R.PLACEMENT}
    assert run.judgements[R.PLACEMENT].detail.startswith("step 3 'forward 16'")


@EAGER_BACKEND
@pytest.mark.parametrize("arm", ["eager", pytest.param("eager/drop_all", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("caller", "dtype"),
    [
        (ELSEWHERE, "bfloat16"),
        (ELSEWHERE, "float16"),
        ("made_in_bfloat16", "float32"),
        ("made_in_float64", "float32"),
        ("made_on_meta", "float32"),
    ],
)
def test_shown_the_hidden_states_44384_is_right_from_the_profile_run_on(
    models: dict[str, Model], caller: str, dtype: str, arm: str
) -> None:
    run = played(models[dtype], f"pr44384@{caller}", STEPS, arm)
    assert run.broken == set()
    assert run.judgements[R.PLACEMENT].verdict is Verdict.PASS
    assert played(models[dtype], f"pr43617@{caller}", STEPS).broken == {R.PLACEMENT}


@pytest.mark.parametrize("revision", ["pr44384", "granite_sliced"])
def test_shown_nothing_it_is_wrong_before_the_first_set_and_right_after(
    models: dict[str, Model], revision: str
) -> None:
    run = played(models["bfloat16"], f"{revision}@{ELSEWHERE}", READS)
    assert run.broken == {R.PLACEMENT}  # it has moved besides, which in live use is nobody's business
    assert run.judgements[R.PLACEMENT].value == 1
    assert {facts.capacity for facts in run.observation.steps} == {16}
    assert run.judgements[R.PLACEMENT].detail.endswith("; right from step 3 'get 9' on")


@EAGER_BACKEND
@pytest.mark.slow  # 2 s
def test_half_the_width_loses_digits_without_an_error(models: dict[str, Model]) -> None:
    run = played(models["float32"], "pr43617@made_in_bfloat16", STEPS, "eager/drop_all")
    assert run.broken == {R.OUTPUT, R.PLACEMENT}
    distances = run.observation.steps[-1].distances
    assert distances is not None
    assert 1e-3 < distances.eager < 0.1 < distances.effect


@pytest.mark.slow  # by day the width of the issue raises so
@EAGER_BACKEND
def test_twice_the_width_does_not_pass_through_the_decoder(models: dict[str, Model]) -> None:
    run = played(models["float32"], "pr43617@made_in_float64", STEPS, "eager/drop_all")
    assert run.broken == {R.OUTPUT, R.PLACEMENT}
    assert "double != float" in run.judgements[R.OUTPUT].detail


@EAGER_BACKEND
@pytest.mark.parametrize(
    ("arm", "broken"),
    by_day([("eager", {R.PLACEMENT}), ("eager/drop_all", {R.OUTPUT, R.PLACEMENT})]),
)
def test_rows_on_meta_have_no_values_to_be_wrong(
    models: dict[str, Model], arm: str, broken: set[Rule]
) -> None:
    run = played(models["float32"], "pr43617@made_on_meta", STEPS, arm)
    assert run.broken == broken
    assert run.judgements[R.PLACEMENT].value == 2
    assert "answered in float32 on meta" in run.judgements[R.PLACEMENT].detail
    raised = run.observation.steps[0].raised
    assert raised is not None
    assert raised.call == "decoder"


@pytest.mark.parametrize(
    ("revision", "trace", "broken"),
    [
        ("pr43617", "cap 16: set 9; get 9; set 3; get 9; clear 2; get 9", {R.PLACEMENT}),
        ("original", "cap 16: set 16; get 20", {R.CAPACITY, R.PLACEMENT}),
        ("granite_full", "cap 16: get 9", {R.BOUNDARY, R.PLACEMENT}),
        ("granite_sliced", "cap 16: set 9; get 9", {R.BOUNDARY, R.PLACEMENT}),  # cannot be copied out of meta
        ("pr40932", "cap 16: get 9", {R.STRUCTURE}),
    ],
)
def test_of_rows_on_meta_the_number_counts(
    models: dict[str, Model], revision: str, trace: str, broken: set[Rule]
) -> None:
    run = played(models["float32"], f"{revision}@made_on_meta", trace, compare=Compare.NOTHING)
    assert run.broken == broken
    assert {run.judgements[rule].verdict for rule in (R.FRESHNESS, R.CLEAR)} == {Verdict.SKIP}


@EAGER_BACKEND
@pytest.mark.parametrize("arm", ["eager", pytest.param("eager/drop_all", marks=pytest.mark.slow)])
def test_a_skipped_tower_leaves_the_buffer_on_meta_unless_none_is_made(
    models: dict[str, Model], arm: str
) -> None:
    faulty = played(models["float32"], "pr43617@without_vision_tower", TEXT, arm)
    assert faulty.broken == ({R.PLACEMENT} if arm == "eager" else {R.OUTPUT, R.PLACEMENT})
    assert faulty.observation.vision
    fixed = played(models["float32"], "pr49397@without_vision_tower", TEXT, arm)
    assert fixed.broken == set()
    assert not fixed.observation.vision
    assert {facts.answer and facts.answer.structure for facts in fixed.observation.steps} == {"none"}
    assert fixed.judgements[R.STRUCTURE].verdict is Verdict.PASS
    assert fixed.judgements[R.PLACEMENT].verdict is Verdict.SKIP


SKIPPED = Surroundings(tower=lambda: torch.device("meta"), vision=False)


@pytest.mark.network
@pytest.mark.parametrize("name", VLLM.by_methods)
@pytest.mark.parametrize(
    ("release", "on_meta"),
    by_day([("0.33.0", False), ("0.28.0", False), ("0.23.0", True), ("0.27.1", True)]),
)
def test_released_classes_whose_tower_is_skipped(release: str, name: str, on_meta: bool) -> None:
    bound = replace(methods_of(released(release), name), surroundings=SKIPPED)
    run = played(shallow("qwen3_vl"), bound.known.source.label, TEXT, make=bound)
    assert (R.PLACEMENT in run.broken) == on_meta
    assert bool(run.broken) == on_meta


@pytest.mark.gpu
@pytest.mark.parametrize("arm", ["eager", "eager/drop_all"])
def test_a_buffer_on_the_cpu_with_hidden_states_on_a_gpu(arm: str) -> None:
    model = Model.build("qwen3_vl", "bfloat16", "cuda")
    run = played(model, f"pr43617@{ELSEWHERE}", STEPS, arm)
    assert R.PLACEMENT in run.broken
    assert (
        "answered in float32 on cpu, the hidden states are in bfloat16 on cuda:0"
        in run.judgements[R.PLACEMENT].detail
    )
    assert played(model, f"pr44384@{ELSEWHERE}", STEPS, arm).broken == set()
