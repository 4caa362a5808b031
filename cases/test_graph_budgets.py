"""How many graphs a correct buffer needs, and what makes torch compile more of them.

A budget is stated for each family, arm and trace; measured, it is the same for every family.
Alternating None with a payload recompiles (sglang 16785), and so does a count that tracing
reads from an attribute (tpu-inference 2266).
"""

from itertools import pairwise

import pytest

from cases.played import Played, play_judged
from cases.shallow import shallow
from deepstack_harness.catalogue.geometry3k import load_workload
from deepstack_harness.catalogue.workload import serve, to_trace
from deepstack_harness.contract.case import Compare
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import RUNS_DECODER, Trace
from deepstack_harness.contract.verdicts import Verdict

R = Rule
ON_EAGER = pytest.mark.xdist_group("eager")


def played(
    subject: str, arm: str, trace: Trace, family: str = "qwen3_vl", compare: Compare = Compare.ALL
) -> Played:
    found = play_judged(shallow(family), subject, arm, str(trace), family=family, compare=compare)
    # A count at the recompile limit is that of the limit.
    assert found.observation.graphs is None or not found.observation.graphs.limit_hit
    return found


def sizes(*counts: int, first: int = 33) -> Trace:
    return Trace.parse(f"cap 33: profile {first}; " + "; ".join(f"set {n}; forward {n}" for n in counts))


EVERY = (9, 2, 1, 0, 17, 1, 0)


def marks(family: str, arm: str, counts: tuple[int, ...]) -> list[pytest.MarkDecorator]:
    """Play other families where their sizes are unbacked, the hardest for them; all of it, 30 s, at night."""
    group = pytest.mark.xdist_group(arm.partition("/")[0])
    daily = (family, arm) == ("qwen3_vl", "eager/drop_all") or "unbacked" in arm
    daily |= (arm, counts) == ("eager/stock", (9, 1, 17))
    return [group] if daily else [group, pytest.mark.slow]


@pytest.mark.parametrize(
    ("family", "arm", "counts", "graphs"),
    [
        pytest.param(family, arm, counts, graphs, marks=marks(family, arm, counts))
        for family, arm, counts, graphs in [
            ("qwen3_vl", "eager/stock", EVERY, 3),
            ("qwen3_omni_moe_thinker", "eager/stock", EVERY, 3),
            ("granite4_vision", "eager/stock", EVERY, 3),
            ("qwen3_vl", "eager/drop_all", EVERY, 1),
            ("qwen3_omni_moe_thinker", "eager/drop_all", EVERY, 1),
            ("granite4_vision", "eager/drop_all", EVERY, 1),
            ("qwen3_vl", "aot_eager/drop_all", EVERY, 1),
            ("qwen3_omni_moe_thinker", "eager/drop_all/mark_unbacked", EVERY, 1),
            ("qwen3_vl", "eager/stock", (9, 2, 17), 1),
            ("qwen3_vl", "eager/stock", (9, 0, 17), 2),
            ("qwen3_vl", "eager/stock", (9, 1, 17), 2),
            ("qwen3_vl", "eager/stock/static", (9, 1, 0, 9), 4),
            ("qwen3_vl", "eager/keep_tensor", EVERY, 1),
        ]
    ],
)
def test_the_budget_is_what_a_correct_buffer_needs(
    family: str, arm: str, counts: tuple[int, ...], graphs: int
) -> None:
    found = played("reference", arm, sizes(*counts), family)
    assert (found.graphs, found.case.graph_budget, found.broken) == (graphs, graphs, set())
    assert found.judgements[R.OUTPUT].verdict is Verdict.PASS


@ON_EAGER
@pytest.mark.slow  # 4 s each
@pytest.mark.parametrize(
    ("arm", "graphs"), [("eager/keep_tensor", 3), ("eager/keep_tensor/mark_unbacked", 2)]
)
def test_small_sizes_first_cost_graphs_that_they_would_not_later(arm: str, graphs: int) -> None:
    found = played("reference", arm, sizes(1, 9, 0, 1, first=0))
    assert (found.graphs, found.case.graph_budget, found.broken) == (graphs, graphs, set())


@pytest.fixture(scope="module")
def traffic() -> Trace:
    """Geometry3K's, of 8 requests, two at a time in steps of up to 128 tokens: text and images take turns."""
    steps = serve(load_workload()[:8], budget=128, slots=2)
    assert sum(step.visual != other.visual for step, other in pairwise(steps)) > 10
    return to_trace(steps, capacity=128)


@ON_EAGER
@pytest.mark.parametrize(
    ("revision", "graphs", "broken"),
    [
        # 4 s; incident 16785 alternates every day.
        pytest.param("pr40932", 3, {R.STRUCTURE, R.GRAPHS}, marks=pytest.mark.slow),
        ("reference", 2, set()),
        pytest.param("pr43617", 2, set(), marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow  # 2 s each
def test_traffic_that_alternates(traffic: Trace, revision: str, graphs: int, broken: set[Rule]) -> None:
    found = played(revision, "eager/stock", traffic, compare=Compare.EAGER)
    # 1 token is a graph of its own; so is None where the buffer returns it.
    assert (found.graphs, found.case.graph_budget, found.broken) == (graphs, 2, broken)
    assert len({step.tokens for step in traffic if step.op in RUNS_DECODER}) > 10


MANY = (9, 17, 5, 9)


@ON_EAGER
@pytest.mark.slow  # 7 s; incident 2266 has it every day
def test_a_count_read_in_the_trace_is_a_graph_for_each_value() -> None:
    found = played("reference@state_in_trace", "eager/stock", sizes(*MANY))
    assert (found.graphs, found.broken) == (1 + len(set(MANY)), {R.GRAPHS})
    assert "recompiled because 0/0: self.tokens_set == 0" in found.judgements[R.GRAPHS].detail


@pytest.mark.slow  # by day incident 2266
@ON_EAGER
def test_without_guards_the_first_value_is_used_for_ever() -> None:
    found = played("reference@state_in_trace", "eager/drop_all", sizes(9, 17, 5))
    assert (found.graphs, found.broken) == (1, {R.OUTPUT})
    distances = [facts.distances for facts in found.observation.steps if facts.step.startswith("forward")]
    assert all(apart is not None and apart.eager > 1 and apart.no_deepstack == 0 for apart in distances)
