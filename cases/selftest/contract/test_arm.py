"""Names of arms: each reads back, and what does not go together is refused with a sentence."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepstack_harness.contract.arm import (
    ArmSpec,
    Backend,
    Capture,
    GuardPolicy,
    InductorOption,
    ShapePolicy,
    every_arm,
)
from deepstack_harness.errors import UsageError

GUARDS = st.sampled_from(sorted(set(GuardPolicy) - {GuardPolicy.NONE}))
SHAPES = st.sampled_from(sorted(set(ShapePolicy) - {ShapePolicy.NONE}))
OPTIONS = st.sampled_from([(), *itertools.permutations(InductorOption, 1), tuple(InductorOption)])
UNCOMPILED = st.builds(
    ArmSpec,
    capture=st.sampled_from(sorted(set(Capture) - {Capture.REDUCE_OVERHEAD})),
    ranks=st.integers(1, 512),
)
COMPILED = st.builds(
    ArmSpec,
    GUARDS,
    SHAPES,
    st.just(Backend.INDUCTOR),
    st.sampled_from(Capture),
    options=OPTIONS,
    ranks=st.integers(1, 4),
)
BREAKING = st.builds(
    ArmSpec,
    GUARDS,
    SHAPES,
    st.sampled_from([Backend.EAGER, Backend.INDUCTOR]),
    ranks=st.integers(1, 4),
    breaks=st.just(True),
)
RELOADED = st.builds(
    ArmSpec,
    GUARDS,
    SHAPES,
    st.sampled_from([Backend.EAGER, Backend.INDUCTOR]),
    reloaded=st.just(True),
)
INTERPRETED = st.builds(
    ArmSpec,
    GUARDS,
    SHAPES,
    st.just(Backend.H200),
    options=OPTIONS,
)


@given(UNCOMPILED | COMPILED | BREAKING | RELOADED | INTERPRETED)
def test_a_name_reads_back(arm: ArmSpec) -> None:
    assert ArmSpec.parse(arm.name) == arm


def test_the_usual_arms_are_distinct_and_described() -> None:
    arms = every_arm()
    assert len({arm.name for arm in arms}) == len(arms) == len({arm.summary for arm in arms})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fast", "unknown arm 'fast'; nearest are "),
        ("inductor", "unknown arm 'inductor'"),
        ("inductor/full", "others are made as BACKEND/GUARDS"),
        ("eager/drop_all/stock", "unknown arm 'eager/drop_all/stock'"),
        ("eager/drop_all/full/static", "unknown arm"),
        ("eager/tp0", "unknown arm 'eager/tp0'"),
        ("no-deepstack/full", "unknown arm 'no-deepstack/full'"),
        ("aot_eager/drop_all/no_size_asserts", "no_size_asserts is an option of backend inductor"),
        ("eager/drop_all/reduce_overhead", "reduce_overhead is a mode of backend inductor"),
        ("eager/breaks", "breaks are those of graphs of torch.compile alone"),
        ("eager/drop_all/breaks/full", "breaks are those of graphs of torch.compile alone"),
        ("h200/drop_all/full", "has no graphs to capture, and no ranks"),
        ("h200/stock/breaks", "breaks are those of graphs of torch.compile alone"),
        ("eager/reloaded", "reloaded is a saved graph of torch.compile"),
        ("eager/drop_all/reloaded/full", "without captured graphs, ranks or breaks"),
        ("h200/drop_all/reloaded", "without captured graphs, ranks or breaks"),
        ("h200/drop_all/tp2", "has no graphs to capture, and no ranks"),
    ],
)
def test_what_is_no_arm_is_refused(name: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        ArmSpec.parse(name)
    assert words in str(caught.value)
