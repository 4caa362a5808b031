"""Figures of a run: each a table, most of them a plot too.  One figure, one file."""

from collections.abc import Callable, Sequence

from deepstack_harness.reporting.figures import distances, fuzzing, graphs, history, kernels, work
from deepstack_harness.reporting.figures.base import Figure
from deepstack_harness.reporting.run_data import RunData

FIGURES: Sequence[Callable[[RunData], Figure]] = (
    distances.figure,
    work.figure,
    kernels.figure,
    graphs.figure,
    history.figure,
    fuzzing.figure,
)


def figures_of(run: RunData) -> list[Figure]:
    """Return every figure, in the order they are shown; those without data say what is missing."""
    return [figure(run) for figure in FIGURES]
