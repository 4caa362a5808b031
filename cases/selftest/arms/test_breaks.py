"""Arms that allow graph breaks: an index by values breaks the graph there, and a scatter does not."""

import pytest

from cases.played import play_judged
from cases.shallow import shallow
from deepstack_harness.contract.rules import Rule

pytestmark = pytest.mark.xdist_group("eager")


@pytest.mark.parametrize(
    ("arm", "caller", "broken"),
    [
        ("eager/stock/static/breaks", "boolean_index", {Rule.R11}),
        ("eager/stock/static/breaks", "masked_scatter", set()),
        # With fullgraph torch records the size that it does not know.
        pytest.param("eager/stock/static", "boolean_index", set(), marks=pytest.mark.slow),
    ],
)
def test_what_breaks_a_graph(arm: str, caller: str, broken: set[Rule]) -> None:
    trace = "cap 16: set 9; forward 16"
    found = play_judged(shallow("qwen3_vl"), f"reference@{caller}", arm, trace, family="qwen3_vl")
    assert found.broken == broken
    assert found.diagnosis.startswith("torch broke the graph") == bool(broken)
