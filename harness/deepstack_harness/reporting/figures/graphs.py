"""Graphs built over the steps of a trace, against the budget."""

from collections.abc import Sequence

from deepstack_harness.reporting.figures.base import Figure, Table
from deepstack_harness.reporting.figures.drawing import ACCENT, FAIL, MUTED, Drawing, label_of
from deepstack_harness.reporting.figures.scales import counts
from deepstack_harness.reporting.run_data import RunData
from deepstack_harness.results.records import CaseRecord

MOST_LINES = 6
_COLUMNS = ("family", "buffer", "arm", "graphs", "budget", "recompiles", "graphs after each step", "trace")


def figure(run: RunData) -> Figure:
    """Every case that compiled, those over their budget first."""
    key, title = "graphs", "Graphs over steps"
    cases = sorted((case for case in run.cases.values() if case.graphs), key=_over, reverse=True)
    if not cases:
        return Figure(key, title, "", absent="no case of this run compiled")
    says = (
        "Graphs that the compiler had built after each step of a trace; of each arm the case that is "
        "furthest over its budget. A good line rises at the first step and then stays."
    )
    return Figure(key, title, says, Table(_COLUMNS, [_row(one) for one in cases]), _plot(_of_each_arm(cases)))


def _over(case: CaseRecord) -> tuple[int, int]:
    built = case.graphs or 0
    return built - case.graph_budget, built


def _row(case: CaseRecord) -> tuple[str | int | None, ...]:
    after = " ".join(str(step.graphs) for step in case.steps)
    return (
        case.family, case.subject, case.arm, case.graphs, case.graph_budget, case.recompiles, after,
        case.trace,
    )  # fmt: skip


def _of_each_arm(cases: Sequence[CaseRecord]) -> list[CaseRecord]:
    """Of the arms that are furthest over their budget, the first case with steps."""
    found: dict[str, CaseRecord] = {}
    for case in cases:
        if case.steps:
            found.setdefault(case.arm, case)
    return list(found.values())[:MOST_LINES]


def _plot(cases: Sequence[CaseRecord]) -> str | None:
    if not cases:
        return None
    drawing = Drawing("graphs", "Graphs built after each step, one line for each arm", 3.2)
    marks = "oXsvD^"
    with drawing as (axes,):
        for mark, case in zip(marks, cases, strict=False):
            built = [step.graphs for step in case.steps]
            over = _over(case)[0] > 0
            axes.plot(
                range(1, len(built) + 1), built, drawstyle="steps-post", marker=mark, alpha=0.9,
                color=FAIL if over else ACCENT, linestyle="-" if over else "--",
                label=label_of(f"{case.arm}, {case.subject} ({case.graphs} of {case.graph_budget})"),
            )  # fmt: skip
        budget = max(case.graph_budget for case in cases)
        axes.axhline(budget, color=MUTED, linewidth=1, linestyle=":", label=f"largest budget ({budget})")
        axes.set_ylim(bottom=0)
        counts(axes.xaxis)
        counts(axes.yaxis)
        axes.set_xlabel("step")
        axes.set_ylabel("graphs")
        drawing.figure.legend(loc="outside upper left", ncols=2)
    return drawing.svg
