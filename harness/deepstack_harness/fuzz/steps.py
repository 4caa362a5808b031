"""Longer histories of `steps`, drawn and judged here, and measured in a worker."""

from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deepstack_harness.contract.oracles.promises import judge_steps
from deepstack_harness.contract.steps import SteppedHistory


def search(
    inputs: Sequence[str], examples: int, measure: Callable[[list[list[int]]], SteppedHistory]
) -> SteppedHistory | None:
    """Let hypothesis draw histories of two to five calls; return the smallest one that breaks a promise.

    `inputs` has the input of each setting that a call may have; `measure` runs a history of settings.
    """
    if not inputs:
        return None
    of_step = st.lists(st.sampled_from(range(len(inputs))), max_size=2, unique_by=lambda at: inputs[at])
    broken: list[SteppedHistory] = []

    @settings(
        max_examples=examples, database=None, deadline=None, derandomize=True,
        phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(of_step, min_size=2, max_size=5))
    def hold(chosen: list[list[int]]) -> None:
        measured = measure(chosen)
        if judge_steps(measured.region).broken:
            broken.append(measured)
            raise AssertionError(measured.words)

    try:
        hold()
    except AssertionError:
        return broken[-1]
    return None
