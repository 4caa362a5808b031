"""How far compiled output is from eager, against rounding and the payload's effect."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from deepstack_harness.contract.case import Distances
from deepstack_harness.contract.rules import Rule, Verdict
from deepstack_harness.reporting.figures.base import Figure, Table
from deepstack_harness.reporting.figures.drawing import ACCENT, FAIL, KEPT, MUTED, Drawing, label_of
from deepstack_harness.reporting.figures.scales import powers_of_ten
from deepstack_harness.reporting.run_data import RunData
from deepstack_harness.results.records import CaseRecord

MOST_LINES = 36
_NOT_COMPARED = frozenset({Verdict.SKIP, Verdict.ERROR})  # the output of an uncompiled run is not looked at
_ZERO, _INFINITE = 1e-10, 1e6
_COLUMNS = (
    "family", "arm", "dtype", "device", "compiled to eager", "rounding", "effect of the payload",
    "compiled to zero-deepstack", "compiled to no-deepstack", "R0", "buffer", "trace",
)  # fmt: skip


class Worst(NamedTuple):
    """Of all cases of a family, an arm, a dtype and a device the one that is furthest off."""

    case: CaseRecord
    apart: Distances
    verdict: Verdict


def figure(run: RunData) -> Figure:
    """Worst case of each family, arm, dtype and device that R0 was judged for."""
    key, title = "distances", "Output distance against the controls"
    lines = _worst(run)
    if not lines:
        return Figure(key, title, "", absent="no case of this run compared outputs")
    says = (
        "Largest absolute difference of compiled output to eager output, of the worst case. The bar goes "
        "from what rounding explains (eager in this dtype to eager in float64) to what the payload does "
        "(eager to the zero-deepstack control): a good dot lies left of it or at its left end, a dot near "
        "its right end has lost the payload."
    )
    return Figure(key, title, says, Table(_COLUMNS, [_row(one) for one in lines]), _plot(lines[:MOST_LINES]))


def _worst(run: RunData) -> list[Worst]:
    judged = {row.case: row for row in run.rows if row.rule is Rule.R0}
    found: dict[tuple[str, ...], Worst] = {}
    for case in run.cases.values():
        row = judged.get(case.case)
        if case.distances is None or row is None or row.verdict in _NOT_COMPARED:
            continue
        one = Worst(case, case.distances, row.verdict)
        place = (case.family, case.arm, case.dtype, case.device)
        found[place] = max(found.get(place, one), one, key=_off)
    return sorted(found.values(), key=_off, reverse=True)


def _off(one: Worst) -> tuple[bool, float]:
    """Of wrong ones the furthest comes first."""
    return one.verdict in {Verdict.FAIL, Verdict.XFAIL}, one.apart.eager


def _row(one: Worst) -> tuple[str | float | None, ...]:
    case, apart = one.case, one.apart
    return (
        case.family, case.arm, case.dtype, case.device, apart.eager, apart.rounding, apart.effect,
        apart.zero_deepstack, apart.no_deepstack, one.verdict, case.subject, case.trace,
    )  # fmt: skip


def _plot(lines: Sequence[Worst]) -> str:
    drawing = Drawing(
        "distances", "Output distance of each family and arm, log scale", 1.0 + 0.22 * len(lines)
    )
    with drawing as (axes,):
        places = range(len(lines), 0, -1)
        effect = [_within(one.apart.effect) for one in lines]
        rounding = [_within(one.apart.rounding or one.apart.effect) for one in lines]  # 0: not measured
        axes.hlines(places, rounding, effect, color=KEPT, linewidth=5, alpha=0.35, label="rounding to effect")
        _dots(axes, "broken (R0)", "X", FAIL, zip(places, lines, strict=True), broken=True)
        _dots(axes, "within the tolerance", "o", ACCENT, zip(places, lines, strict=True), broken=False)
        axes.set_yticks(
            list(places), [label_of(one.case.family, one.case.arm, one.case.dtype) for one in lines]
        )
        axes.set_ylim(0.4, len(lines) + 0.6)
        axes.grid(visible=False, axis="y")
        off = [_within(one.apart.eager) for one in lines]
        powers_of_ten(axes, [*rounding, *effect, *off], _ZERO, _INFINITE)
        axes.set_xlabel("largest absolute difference", color=MUTED)
        drawing.figure.legend(loc="outside upper right", ncols=3)
    return drawing.svg


def _dots(
    axes: Axes, label: str, marker: str, colour: str, lines: Iterable[tuple[int, Worst]], *, broken: bool
) -> None:
    chosen = [(place, one) for place, one in lines if _off(one)[0] == broken]
    if chosen:
        places = [place for place, _ in chosen]
        axes.plot(
            [_within(one.apart.eager) for _, one in chosen], places,
            linestyle="", marker=marker, color=colour, label=label,
        )  # fmt: skip


def _within(value: float | None) -> float:
    """What a log scale can show: zero and what is not finite lie at its ends."""
    return min(max(value or 0.0, _ZERO), _INFINITE)
