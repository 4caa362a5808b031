"""Rows processed against rows asked for."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from deepstack_harness.reporting.figures.base import Figure, Table
from deepstack_harness.reporting.figures.drawing import ACCENT, FAIL, KNOWN, MUTED, Drawing
from deepstack_harness.reporting.run_data import RunData

_COLUMNS = ("family", "buffer", "arm", "asked", "processed", "times as many", "steps")


class Point(NamedTuple):
    """Steps that are alike: who processed how many rows for how many."""

    family: str
    subject: str
    arm: str
    asked: int
    processed: int

    @property
    def times(self) -> float:
        """Rows processed for each row asked."""
        return self.processed / max(self.asked, 1)


def figure(run: RunData) -> Figure:
    """Every step that counted its rows; equal ones once."""
    key, title = "work", "Rows processed against rows asked"
    points = Counter(
        Point(case.family, case.subject, case.arm, step.asked, step.processed)
        for case in run.cases.values()
        for step in case.steps
        if step.asked is not None and step.processed is not None
    )
    if not points:
        return Figure(key, title, "", absent="no case of this run counted rows")
    says = (
        "Rows that kernels and opaque operations worked on, for each step. On the line is right; "
        "above it the step paid for rows that nobody asked for, below it rows are missing."
    )
    found = sorted(points, key=lambda point: abs(point.times - 1), reverse=True)
    rows = [(*point, round(point.times, 2), points[point]) for point in found]
    return Figure(key, title, says, Table(_COLUMNS, rows), _plot(found))


_KINDS = (("more than asked", "X", FAIL), ("as asked", "o", ACCENT), ("fewer than asked", "v", KNOWN))


def _plot(points: Sequence[Point]) -> str:
    drawing = Drawing("work", "Rows processed against rows asked for, log scale", 3.4)
    most = max(max(point.asked, point.processed, 1) for point in points)
    with drawing as (axes,):
        for scale in (axes.set_xscale, axes.set_yscale):
            scale("symlog", base=2, linthresh=1)
        axes.plot([0, most], [0, most], color=MUTED, linewidth=1, linestyle="--", label="as it should be")
        for (label, marker, colour), wanted in zip(_KINDS, (1, 0, -1), strict=True):
            at = {(one.asked, one.processed) for one in points if _side(one) == wanted}
            if at:
                asked, processed = zip(*sorted(at), strict=True)
                axes.plot(asked, processed, linestyle="", marker=marker, color=colour, label=label)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel("rows asked for")
        axes.set_ylabel("rows processed")
        drawing.figure.legend(loc="outside upper right", ncols=4)
    return drawing.svg


def _side(point: Point) -> int:
    return (point.processed > point.asked) - (point.processed < point.asked)
