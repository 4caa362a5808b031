"""Whole buffers of Granite in the compiled decoder (vllm 40917): traced at n = capacity, called with fewer.

Whichever input carries the shared size first decides it, and whether Inductor
asserts sizes; after tensors of the step's own size the rows too many would be
nobody's memory, so inputs are slices of static storage, as an engine's are.
"""

from functools import cache

import pytest
import torch

from cases.by_day import by_day
from cases.played import Played, play_judged
from cases.released import released
from cases.selftest.engines.bound_forward import forward_of
from cases.selftest.models.sequences import SEQUENCES
from deepstack_harness.catalogue.buffers import buffer_named
from deepstack_harness.catalogue.registry import family_named
from deepstack_harness.catalogue.versions import TORCH_CHANGES
from deepstack_harness.contract.arm import EAGER
from deepstack_harness.contract.case import Case, Compare, registered
from deepstack_harness.contract.observation import Answer
from deepstack_harness.contract.protocols import BufferFactory, Family
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Op, Trace
from deepstack_harness.models.granite4_vision import First, Granite4VisionConfig, Granite4VisionFamily
from deepstack_harness.play.model import Model, NumericsProbe
from deepstack_harness.play.observe import play

R = Rule
ASSERTS, NO_ASSERTS = "inductor/drop_all", "inductor/drop_all/no_size_asserts"
CLOSE = 1e-4


@cache
def granite(first: First) -> Model:
    """Opaque attention, `first` read first, and two layers with a level each, which are cheap to compile."""
    config = Granite4VisionConfig(layers=2, layerwise=(1, 0), spatial=(), attention="opaque", first=first)
    return model_of(Granite4VisionFamily(config))


def model_of(family: Family) -> Model:
    torch.set_num_threads(1)
    decoder = family.build(dtype=torch.float32, device=torch.device("cpu"), seed=0)
    probe = NumericsProbe(decoder, family.levels, family.hidden)
    return Model(family, decoder, probe, torch.float32, torch.device("cpu"))


def played(model: Model, subject: str, arm: str, trace: str) -> Played:
    return play_judged(model, subject, arm, trace)


PAYLOAD_FIRST = (
    ([1024, 1024, 1024], {R.BOUNDARY, R.WORK})
    if TORCH_CHANGES["graph_inputs"].is_in(torch.__version__)
    else ([1024, 9, 1], {R.BOUNDARY})
)
"""Rows of attention and broken rules where the payload's size is read first."""


def nightly(*values: object) -> object:
    """Every day incident 40917 of `cases/test_incidents.py` plays the same."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.xdist_group("inductor")
@pytest.mark.parametrize(
    ("first", "arm", "profiled", "revision", "rows", "broken"),
    [
        nightly("payload", ASSERTS, 1024, "granite_full", None, {R.OUTPUT, R.BOUNDARY}),
        nightly("hidden", ASSERTS, 1024, "granite_full", None, {R.OUTPUT, R.BOUNDARY}),
        nightly("payload", NO_ASSERTS, 1024, "granite_full", *PAYLOAD_FIRST),
        nightly("hidden", NO_ASSERTS, 1024, "granite_full", [1024, 9, 1], {R.BOUNDARY}),
        nightly("payload", ASSERTS, 512, "granite_full", [512, 9, 1], {R.BOUNDARY}),
        nightly("payload", NO_ASSERTS, 512, "granite_full", [512, 9, 1], {R.BOUNDARY}),
        nightly("payload", NO_ASSERTS, 1024, "granite_sliced", [1024, 9, 1], set()),
        nightly("hidden", ASSERTS, 1024, "granite_sliced", [1024, 9, 1], set()),
    ],
)
def test_a_graph_traced_at_one_size_and_called_with_others(
    first: First, arm: str, profiled: int, revision: str, rows: list[int] | None, broken: set[Rule]
) -> None:
    trace = f"cap 1024: profile {profiled}; set 9; forward 9; forward 1"
    run = played(granite(first), f"{revision}@static_inputs", arm, trace)
    assert run.broken == broken
    *_, nine, one = run.observation.steps
    if rows is None:
        assert nine.raised is not None
        assert one.raised is not None
        assert (nine.raised.call, nine.raised.type) == ("decoder", "AssertionError")
        assert one.raised.message.startswith(("expected size 1024==1,", "expected size 1==1024,"))
    else:
        assert run.attended == rows
        assert nine.distances is not None
        assert nine.distances.eager < CLOSE < 1 < nine.distances.effect
    assert run.observation.graphs is not None
    assert run.observation.graphs.graphs == 1


@pytest.mark.xdist_group("eager")
@pytest.mark.parametrize("first", by_day(["payload", "hidden"]))
def test_one_row_is_broadcast_over_the_whole_buffer_without_inductor(first: First) -> None:
    trace = "cap 64: profile 64; forward 1"
    run = played(granite(first), "granite_full@static_inputs", "eager/drop_all", trace)
    assert (run.attended, run.broken) == ([64, 64], {R.BOUNDARY, R.WORK})
    work = run.judgements[R.WORK]
    assert (work.value, work.limit) == (64, 1)
    assert work.detail == "step 2 'forward 1': attention was given 64 rows for 1, 64 times"


@pytest.mark.xdist_group("eager")
@pytest.mark.parametrize(
    ("arm", "broken"), by_day([("eager", {R.BOUNDARY}), ("eager/stock", {R.BOUNDARY, R.GRAPHS})])
)
def test_where_the_sizes_are_compared_again_the_rows_too_many_are_cut(arm: str, broken: set[Rule]) -> None:
    # With guards that comparison is one more graph: for sizes above 1 there are two.
    run = played(granite("hidden"), "granite_full", arm, "cap 64: profile 64; forward 9; forward 1")
    assert (run.attended, run.broken) == ([64, 9, 1], broken)


def test_a_plain_addition_broadcasts_one_row_legally() -> None:
    qwen = family_named("qwen3_vl:opaque")
    run = played(model_of(qwen), "granite_full", "eager", "cap 64: profile 64; forward 1")
    assert (run.attended, run.broken) == ([64, 64], {R.BOUNDARY, R.WORK})


def test_a_clear_that_goes_by_the_counter_is_not_in_a_graph_that_was_captured_empty() -> None:
    trace = "cap 16: set 9; forward 9; capture 16; set 9; replay 16; replay 16"
    run = played(granite("hidden"), "granite_sliced", "eager/full", trace)
    assert run.broken == {R.OUTPUT, R.CLEAR}
    assert (
        "holds row 0, level 0 of payload 2 (request r2, cleared at step 5)" in run.judgements[R.CLEAR].detail
    )


REVISION_OF = {
    "0.20.0": "granite_full",
    "0.33.0": "granite_sliced",
    "0.20.2": "granite_full",
    "0.21.0": "granite_sliced",
}
TRACES = [
    *(sequence.trace for sequence in SEQUENCES.values()),
    "cap 16: set 9; set 0; get 16; get 16",  # a step of text before the first forward
    "cap 16: set 9; set 20; get 9",
    "cap 16: set 4 levels=4; get 4",
    "cap 16: set 4 levels=2; get 4",
    "cap 16: set 4 hidden=1; get 4",
    "cap 16: set 9; get 9; set 20 hidden=7; get 9",
]


def as_forwards(trace: str) -> Trace:
    """Upstream clears right after what reads, and nowhere else."""
    steps = [str(step) for step in Trace.parse(trace) if step.op is not Op.CLEAR]
    text = "; ".join(f"{step}; {step.replace('get', 'clear')}" if "get" in step else step for step in steps)
    return Trace.parse(f"cap 16: {text}")


def facts(model: Model, make: BufferFactory, trace: str) -> list[object]:
    """Everything of each step that does not depend on where the code is."""
    case = Case("qwen3_vl", registered("any"), as_forwards(trace), EAGER, compare=Compare.NOTHING)
    return [
        (
            step.step,
            step.capacity,
            _rows(step.answer),
            step.raised and (step.raised.type, step.raised.message),
        )
        for step in play(case, model, make).steps
    ]


def _rows(answer: Answer | None) -> object:
    return answer and (answer.structure, answer.rows, answer.hidden, answer.dtypes)


@pytest.mark.network
@pytest.mark.parametrize("release", by_day(REVISION_OF, REVISION_OF.__getitem__))
def test_revisions_do_what_their_releases_do(release: str) -> None:
    of = forward_of(released(release), "granite4_vision")
    ours, model = buffer_named(REVISION_OF[release]), Model.build("qwen3_vl")
    for trace in TRACES:
        assert facts(model, ours, trace) == facts(model, of, trace), trace
