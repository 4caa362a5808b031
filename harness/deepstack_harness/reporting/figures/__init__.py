"""Figures of what a run measured: each a table, most of them a plot too.  One figure, one file."""

from collections.abc import Callable, Sequence

from typing_extensions import TypeIs

from deepstack_harness.catalogue.registry import EXTRA_FIGURES
from deepstack_harness.errors import UsageError
from deepstack_harness.reporting.figures import distances, fuzzing, graphs, history, kernels, work
from deepstack_harness.reporting.figures.base import Figure
from deepstack_harness.reporting.run_data import RunData

MakeFigure = Callable[[RunData], Figure]

FIGURES: Sequence[MakeFigure] = (
    distances.figure,
    work.figure,
    kernels.figure,
    graphs.figure,
    history.figure,
    fuzzing.figure,
)


def figures_of(run: RunData) -> list[Figure]:
    """Make every figure, ours in their order, then those of other packages, sorted by name.

    A figure without data says what is missing.  Raises `UsageError` for a figure of another package
    that cannot be made.
    """
    return [*(figure(run) for figure in FIGURES), *(_extra(name, run) for name in EXTRA_FIGURES)]


def _extra(name: str, run: RunData) -> Figure:
    make = EXTRA_FIGURES.load(name, _makes_figures, "a function from RunData to Figure")
    whose = f"figure '{name}' of {EXTRA_FIGURES[name].distribution}"
    try:
        made = make(run)
    except Exception as error:  # noqa: BLE001  # another package may raise anything
        raise UsageError(f"{whose} raised {type(error).__name__}: {error}") from None
    if not isinstance(made, Figure):
        raise UsageError(f"{whose} returned {made!r:.200}, which is not a Figure")
    return made


def _makes_figures(found: object) -> TypeIs[MakeFigure]:
    return callable(found)
