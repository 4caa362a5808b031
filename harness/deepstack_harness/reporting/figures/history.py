"""This run and those before it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from deepstack_harness.contract.rules import Verdict
from deepstack_harness.reporting.figures.base import Figure, Table
from deepstack_harness.reporting.figures.drawing import ACCENT, FAIL, KNOWN, MUTED, Drawing
from deepstack_harness.reporting.figures.scales import counts
from deepstack_harness.reporting.run_data import RunData
from deepstack_harness.reporting.verdict_words import summarise

MOST_RUNS = 60
_COLUMNS = (
    "started", "run", "commit", "torch", "cases", "unexpected", "broken as expected", "kept",
    "graphs", "seconds",
)  # fmt: skip


class Night(NamedTuple):
    """One run; `seconds` are those of its cases together."""

    started: str
    run: str
    commit: str
    torch: str
    cases: int
    unexpected: int
    known: int
    kept: int
    graphs: int
    seconds: float


def figure(run: RunData) -> Figure:
    """Lines over the runs, the newest last in the plot and first in the table."""
    key, title = "history", "History"
    if run.history is None:
        return Figure(key, title, "", absent="no earlier runs were given; --history takes their folder")
    if not run.history:
        return Figure(key, title, "", absent="the folder of earlier runs has none yet")
    nights = [_night(one) for one in (*run.history, run)][-MOST_RUNS:]
    says = "This run is the last point. Graphs and seconds are sums over all cases of a run."
    return Figure(key, title, says, Table(_COLUMNS, nights[::-1]), _plot(nights))


def _night(run: RunData) -> Night:
    summary = summarise(run)
    environment: Mapping[str, Any] = next(
        (one["environment"] for one in run.about if one.get("environment")), {}
    )
    return Night(
        started=run.when, run=run.name, commit=str(environment.get("commit") or "")[:12],
        torch=str(environment.get("torch") or ""), cases=summary.cases, unexpected=summary.unexpected,
        known=summary.counts[Verdict.XFAIL], kept=summary.counts[Verdict.PASS],
        graphs=sum(case.graphs or 0 for case in run.cases.values()),
        seconds=round(sum(case.seconds for case in run.cases.values()), 1),
    )  # fmt: skip


_LINES = (
    ("unexpected", "unexpected", "X", FAIL),
    ("broken as\nexpected", "known", "D", KNOWN),
    ("graphs", "graphs", "o", ACCENT),
    ("seconds", "seconds", "o", MUTED),
)


def _plot(nights: Sequence[Night]) -> str:
    drawing = Drawing(
        "history", "Unexpected, expected, graphs and seconds over the runs", 4.4, stacked=len(_LINES)
    )
    places = range(len(nights))
    with drawing as stacked:
        for axes, (label, name, mark, colour) in zip(stacked, _LINES, strict=True):
            values = [getattr(one, name) for one in nights]
            axes.plot(places, values, marker=mark, color=colour)
            axes.set_ylim(0, max(values) * 1.2 or 1)
            counts(axes.yaxis, most=3)
            axes.set_ylabel(label, rotation=0, ha="right", va="center")
        every = max(1, len(nights) // 6)
        stacked[-1].set_xticks(list(places)[::every], [one.started[:10] for one in nights][::every])
    return drawing.svg
