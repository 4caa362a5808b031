"""The arm `h200` with guards, sizes that are compiled in, and sizes that are unbacked."""

import re
from typing import NamedTuple

import pytest

from cases.played import observed
from cases.test_h200 import TRACE, WHY_NOT, judged, verdicts
from deepstack_harness.catalogue.plans import graph_budget
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.case import Case, registered
from deepstack_harness.contract.observation import GraphFacts
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Verdict

pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.xdist_group("h200"),
    pytest.mark.slow,  # the arms of `selftest/arms/test_interpreted.py` on toys are played every day
]


class Right(NamedTuple):
    """A family with a right buffer, an arm, and a trace that this arm serves."""

    family: str
    arm: str
    trace: str = TRACE
    revision: str = "pr43617"
    dtype: str = "float32"


FROM_1_TO_0 = "cap 16: profile 1; set 16; forward 16; set 0; forward 0"
RIGHT = (
    Right("qwen3_vl:opaque", "h200/stock"),
    Right("qwen3_vl:opaque", "h200/keep_tensor", dtype="bfloat16"),
    Right("qwen3_vl:opaque", "h200/shape_env_only"),
    Right("qwen3_vl:opaque", "h200/stock/static"),
    Right("qwen3_vl:opaque", "h200/drop_all/static", "cap 16: profile 16; set 16; forward 16"),
    Right("qwen3_omni_moe_thinker:opaque", "h200/stock"),
    Right("granite4_vision:opaque", "h200/stock", revision="granite_sliced"),
    Right("qwen3_vl:written_out", "h200/drop_all/mark_unbacked", FROM_1_TO_0),
)


@pytest.mark.parametrize("right", RIGHT, ids=lambda one: f"{one.family}-{one.arm}-{one.dtype}")
def test_a_right_buffer_passes_every_rule(right: Right) -> None:
    found = judged(right.family, right.revision, arm=right.arm, trace=right.trace, dtype=right.dtype)
    assert not found.broken | found.unjudged, found.judgements
    assert verdicts(found, Rule.OUTPUT, Rule.GRAPHS, Rule.MEMORY) == [Verdict.PASS] * 3


def graphs(arm: str, trace: str, revision: str) -> GraphFacts:
    spec, parsed = ArmSpec.parse(arm), Trace.parse(trace)
    budget = graph_budget(parsed, spec)
    found = observed(Case("qwen3_vl", registered(revision), parsed, spec, "float32", graph_budget=budget))
    assert found.graphs is not None
    return found.graphs


def without_bound(reason: str) -> str:
    """Leave out how large a size may be: each backend has its own limit for the kernels that it generates."""
    return re.sub(r"(\.size\(\)\[0\]) <= \d+", r"\1", reason)


@pytest.mark.parametrize(
    ("policy", "trace", "revision"),
    [
        ("stock", "cap 16: profile 16; set 1; forward 1; set 7; forward 9", "pr43617"),
        ("stock", "cap 16: profile 16; set 16; forward 16", "pr40145"),
        ("keep_tensor", "cap 16: profile 16; set 1; forward 1", "pr43617"),
    ],
)
def test_graphs_and_the_reasons_for_them_are_those_of_dynamo_on_the_cpu(
    policy: str, trace: str, revision: str
) -> None:
    """A guard that looks at a device, and fails for one in name only, would make one graph more."""
    here, known = graphs(f"h200/{policy}", trace, revision), graphs(f"eager/{policy}", trace, revision)
    assert (here.graphs, here.recompiles, here.breaks) == (known.graphs, known.recompiles, known.breaks)
    assert list(map(without_bound, here.reasons)) == list(map(without_bound, known.reasons))
    assert here.kept == known.kept


TRACE_43602 = "cap 16: profile 16; set 16; forward 16"


def test_43602_shows_with_only_guards_of_shapes() -> None:
    """None in place of a payload is no shape: the graph without a payload goes on, and none is compiled."""
    found = judged("qwen3_vl", "pr40145", arm="h200/shape_env_only", trace=TRACE_43602)
    assert found.broken == {Rule.OUTPUT, Rule.STRUCTURE}
    last = found.observation.steps[-1].distances
    assert last is not None
    assert last.no_deepstack is not None
    assert last.eager > 1000 * last.no_deepstack


def test_43602_recompiles_with_all_guards() -> None:
    found = judged("qwen3_vl", "pr40145", arm="h200/stock", trace=TRACE_43602)
    assert found.broken == {Rule.STRUCTURE, Rule.GRAPHS}
    assert found.observation.graphs is not None
    assert found.observation.graphs.reasons == ("0/0: payload is None",)
