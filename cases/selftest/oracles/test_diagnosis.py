"""One sentence about what went wrong, and only what the facts say."""

from dataclasses import replace

import pytest

from cases.selftest.oracles.written_observations import ONE_GRAPH, RIGHT, TRACE, answer, forward, observed
from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.buffer_ref import registered
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.observation import GraphFacts, GraphUse, Observation, Raised
from deepstack_harness.contract.trace import Trace
from deepstack_harness.oracles.diagnosis import diagnose


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


def test_another_structure_than_the_graph_was_compiled_with() -> None:
    assert diagnosed(after_profile({"graphs": 1}, graphs=1)) == (
        "the argument 'payload' was None in step 1 'profile 16', which compiled the graph, and 1 of 1 "
        "guards on it were dropped; step 3 'forward 16' passed 1 tensor and reused that graph: "
        "off from eager by 3, and 0 from a model without deepstack"
    )


def test_the_same_structure_is_not_blamed() -> None:
    assert diagnosed(after_profile({"graphs": 1, "answer": answer()}, graphs=1)) == (
        "step 3 'forward 16' is off from eager by 3, and 0 from a model without deepstack, on the graph that "
        "step 1 'profile 16' compiled, with 1 tensor as 'payload' there and here: the graph kept something "
        "else of that step, or the caller passed something else"
    )


@pytest.mark.parametrize(
    ("profile", "last", "said"),
    [
        (0, 1, "no graph of an earlier step took part"),
        (1, 2, "no graph of an earlier step took part"),
        (2, 2, "on one of 2 graphs that earlier steps compiled"),
    ],
)
def test_a_graph_is_blamed_only_where_it_is_the_one(profile: int, last: int, said: str) -> None:
    found = diagnosed(after_profile({"graphs": profile}, graphs=last), "eager/keep_tensor")
    assert found is not None
    assert found.endswith(said)


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
    ("arm", "detached", "said"),
    [
        ("eager/full", False, "is replayed without the Python of get, the decoder and clear"),
        ("eager/piecewise", False, "is replayed without the Python of the decoder"),
        ("eager/full", True, "reads storage from which get no longer answers"),
    ],
)
def test_a_replay_names_its_capture(arm: str, detached: bool, said: str) -> None:
    observation = forward(WRONG, graph_use=GraphUse(detached=detached))
    assert diagnosed(observation, arm, trace=REPLAY) == (
        f"the graph captured in step 1 'capture 16' {said}; step 3 'replay 16' is off from eager by 3, "
        "and 0 from a model without deepstack"
    )


@pytest.mark.parametrize(
    ("arm", "facts", "said"),
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
def test_what_an_exception_of_torch_leaves_out(arm: str, facts: GraphFacts | None, said: str) -> None:
    refused = Raised("RuntimeError", "no", "decoder", "model.py:3")
    found = diagnosed(observed(*forward(None, raised=refused).steps, facts=facts), arm)
    assert found is not None
    assert found.startswith(f"step 3 'forward 16': {said}")
    assert found.endswith("decoder raised RuntimeError: no (model.py:3)")


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


def test_a_graph_without_a_guard_on_the_payload_notices_nothing() -> None:
    seen = after_profile({"graphs": 1}, graphs=1)
    for guards, said in ((0, "and no guard notices another structure"), (3, "and 3 of 3 guards on it were")):
        facts = replace(ONE_GRAPH, payload_guards=guards)
        assert said in (diagnosed(replace(seen, graphs=facts)) or "")
