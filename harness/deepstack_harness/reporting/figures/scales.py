"""Ticks in plain text: powers of ten, and counts."""

import math
from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

MOST_TICKS = 6


def powers_of_ten(
    axes: Axes, values: Iterable[float], zero: float | None = None, infinite: float | None = None
) -> None:
    """A log scale over all `values` (> 0), with ticks such as 1e-06.

    What stands for zero is written as `0`, for not finite as `not finite`.
    """
    known = list(values)
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    high = max(high, low + 1)
    step = math.ceil((high - low) / MOST_TICKS)
    powers = list(range(high, low - 1, -step))
    if zero is not None and powers[-1] != low:
        powers[-1] = low  # the tick that says 0 is there, and none so near that they overlap
    ticks = [10.0**power for power in powers]

    def written(value: float, _: object) -> str:
        if zero is not None and value <= zero * 1.001:
            return "0"
        if infinite is not None and value >= infinite * 0.999:
            return "not finite"
        return f"1e{round(math.log10(value)):+03d}" if not 0.01 <= value <= 1000 else f"{value:g}"

    axes.set_xscale("log")
    axes.set_xlim(10.0**low * 0.7, 10.0**high * 1.4)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(written))


def counts(axis: Axis, most: int = 6) -> None:
    """Whole numbers, with commas, `most` of them."""
    axis.set_major_locator(MaxNLocator(nbins=most, integer=True, min_n_ticks=1))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
