"""Figures of what a run measured: each a table, and most of them a plot too.

- distances: compiled output to eager output, against rounding and the effect of the payload
- work: rows processed against rows requested
- kernels: bytes that generated kernels move, against those that must move
- graphs: graphs built over the steps of a trace, against the budget
- measured: figures of the stages of a night, such as what a payload costs on a GPU
- history: this run and the runs before it
- fuzz: the findings next to a run

A figure is a function from `RunData` to `Figure`; other packages declare theirs under
`deepstack_harness.figures`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from typing_extensions import TypeIs

from deepstack_harness.catalogue.registry import EXTRA_FIGURES
from deepstack_harness.contract.observation import Distances
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, Verdict
from deepstack_harness.errors import UsageError
from deepstack_harness.runs.records import CaseRecord
from deepstack_harness.runs.report.drawing import (
    ACCENT,
    FAIL,
    KEPT,
    KNOWN,
    LINE,
    MUTED,
    Drawing,
    counts,
    label_of,
    powers_of_ten,
)
from deepstack_harness.runs.report.run_data import Figure, RunData, Table, summarise

MOST_DISTANCES = 36
"""Lines of the plot of distances, the worst ones; the table has all."""
# The output of an uncompiled run is not compared.
_NOT_COMPARED = frozenset({Verdict.SKIP, Verdict.MISSING, Verdict.ERROR})
_ZERO, _INFINITE = 1e-10, 1e6
_DISTANCE_COLUMNS = (
    "family", "arm", "dtype", "device", "compiled to eager", "rounding", "effect of the payload",
    "compiled to zero-deepstack", "compiled to no-deepstack", "R0", "buffer", "trace",
)  # fmt: skip


class FurthestCase(NamedTuple):
    """The case of a family, an arm, a dtype and a device that is furthest off."""

    case: CaseRecord
    apart: Distances
    verdict: Verdict


def figure_distances(run: RunData) -> Figure:
    """Return the worst case of each family, arm, dtype and device that R0 was judged for."""
    key, title = "distances", "Output distance against the controls"
    furthest = _furthest(run)
    if not furthest:
        return Figure(key, title, "", absent="no case of this run compared outputs")
    says = (
        "Largest absolute difference of compiled output to eager output, of the worst case. The bar goes "
        "from what rounding explains (eager in this dtype to eager in float64) to what the payload does "
        "(eager to the zero-deepstack control): a good dot lies left of it or at its left end, a dot near "
        "its right end has lost the payload."
    )
    rows = [
        (
            line.case.family, line.case.arm, line.case.dtype, line.case.device, line.apart.eager,
            line.apart.rounding, line.apart.effect, line.apart.zero_deepstack, line.apart.no_deepstack,
            line.verdict, line.case.subject, line.case.trace,
        )
        for line in furthest
    ]  # fmt: skip
    plot = _plot_distances(furthest[:MOST_DISTANCES])
    return Figure(key, title, says, Table(_DISTANCE_COLUMNS, rows), plot)


def _furthest(run: RunData) -> list[FurthestCase]:
    rows = {row.case: row for row in run.rows if row.rule is Rule.OUTPUT}
    furthest: dict[tuple[str, ...], FurthestCase] = {}
    for case in run.cases.values():
        row = rows.get(case.case)
        if case.distances is None or row is None or row.verdict in _NOT_COMPARED:
            continue
        candidate = FurthestCase(case, case.distances, row.verdict)
        place = (case.family, case.arm, case.dtype, case.device)
        furthest[place] = max(furthest.get(place, candidate), candidate, key=_how_wrong)
    return sorted(furthest.values(), key=_how_wrong, reverse=True)


def _how_wrong(furthest: FurthestCase) -> tuple[bool, float]:
    """Return a sort key: wrong cases are larger than right ones, and of these the furthest off."""
    return furthest.verdict in BROKEN, furthest.apart.eager


def _plot_distances(lines: Sequence[FurthestCase]) -> str:
    drawing = Drawing(
        "distances", "Output distance of each family and arm, log scale", 1.0 + 0.22 * len(lines)
    )
    with drawing as (axes,):
        places = range(len(lines), 0, -1)
        effect = [_on_scale(line.apart.effect) for line in lines]
        rounding = [_on_scale(line.apart.rounding or line.apart.effect) for line in lines]  # 0: not measured
        axes.hlines(places, rounding, effect, color=KEPT, linewidth=5, alpha=0.35, label="rounding to effect")
        _dots(axes, "broken (R0)", "X", FAIL, zip(places, lines, strict=True), broken=True)
        _dots(axes, "within the tolerance", "o", ACCENT, zip(places, lines, strict=True), broken=False)
        axes.set_yticks(
            list(places), [label_of(line.case.family, line.case.arm, line.case.dtype) for line in lines]
        )
        axes.set_ylim(0.4, len(lines) + 0.6)
        axes.grid(visible=False, axis="y")
        off = [_on_scale(line.apart.eager) for line in lines]
        powers_of_ten(axes, [*rounding, *effect, *off], _ZERO, _INFINITE)
        axes.set_xlabel("largest absolute difference", color=MUTED)
        drawing.figure.legend(loc="outside upper right", ncols=3)
    return drawing.svg


def _dots(
    axes: Axes,
    label: str,
    marker: str,
    colour: str,
    lines: Iterable[tuple[int, FurthestCase]],
    *,
    broken: bool,
) -> None:
    chosen = [(place, line) for place, line in lines if _how_wrong(line)[0] == broken]
    if chosen:
        places = [place for place, _ in chosen]
        axes.plot(
            [_on_scale(line.apart.eager) for _, line in chosen], places,
            linestyle="", marker=marker, color=colour, label=label,
        )  # fmt: skip


def _on_scale(value: float | None) -> float:
    """Return a value that a log scale can show: zero and what is not finite lie at its ends."""
    return min(max(value or 0.0, _ZERO), _INFINITE)


def figure_fuzzing(run: RunData) -> Figure:
    """Return the files of its findings, by name."""
    key, title = "fuzz", "Findings of the fuzzer"
    if run.fuzz is None:
        return Figure(key, title, "", absent="no folder fuzz next to this run; a nightly run writes it")
    if not run.fuzz:
        return Figure(key, title, "", absent="the fuzzer found nothing")
    says = "Files in the folder fuzz of this run."
    return Figure(key, title, says, Table(("file",), [(name,) for name in run.fuzz]))


MOST_ARMS = 6
"""Arms of a plot, so that its colours differ."""
_GRAPH_COLUMNS = (
    "family",
    "buffer",
    "arm",
    "graphs",
    "budget",
    "recompiles",
    "graphs after each step",
    "trace",
)


def figure_graphs(run: RunData) -> Figure:
    """Return every case that compiled, those over their budget first."""
    key, title = "graphs", "Graphs over steps"
    cases = sorted((case for case in run.cases.values() if case.graphs), key=_over_budget, reverse=True)
    if not cases:
        return Figure(key, title, "", absent="no case of this run compiled")
    says = (
        "Graphs that the compiler had built after each step of a trace; of each arm the case that is "
        "furthest over its budget. A good line rises at the first step and then stays."
    )
    rows, worst = [], dict[str, CaseRecord]()
    for case in cases:
        after = " ".join(str(step.graphs) for step in case.steps)
        rows.append((
            case.family, case.subject, case.arm, case.graphs, case.graph_budget, case.recompiles, after,
            case.trace,
        ))  # fmt: skip
        if case.steps:
            worst.setdefault(case.arm, case)
    plot = _plot_graphs(list(worst.values())[:MOST_ARMS])
    return Figure(key, title, says, Table(_GRAPH_COLUMNS, rows), plot)


def _over_budget(case: CaseRecord) -> tuple[int, int]:
    built = case.graphs or 0
    return built - case.graph_budget, built


def _plot_graphs(cases: Sequence[CaseRecord]) -> str | None:
    if not cases:
        return None
    drawing = Drawing("graphs", "Graphs built after each step, one line for each arm", 3.2)
    marks = "oXsvD^"
    with drawing as (axes,):
        for mark, case in zip(marks, cases, strict=False):
            built = [step.graphs for step in case.steps]
            over = _over_budget(case)[0] > 0
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


MOST_RUNS = 60
"""Runs of the plot of the history: two months of nights."""
_HISTORY_COLUMNS = (
    "started", "run", "commit", "torch", "cases", "unexpected", "broken as expected", "kept",
    "graphs", "seconds",
)  # fmt: skip


def figure_history(run: RunData) -> Figure:
    """Return lines over the runs, the newest last in the plot and first in the table."""
    key, title = "history", "History"
    if run.history is None:
        return Figure(key, title, "", absent="no earlier runs were given; --history takes their folder")
    if not run.history:
        return Figure(key, title, "", absent="the folder of earlier runs has none yet")
    points = [_history_point(earlier) for earlier in (*run.history, run)][-MOST_RUNS:]
    says = "This run is the last point. Graphs and seconds are sums over all cases of a run."
    return Figure(key, title, says, Table(_HISTORY_COLUMNS, points[::-1]), _plot_history(points))


def _history_point(run: RunData) -> tuple[str | float, ...]:
    """Return the cells of a run, in the order of the columns."""
    summary, cases = summarise(run), run.cases.values()
    environment = run.about[0].environment if run.about else None
    commit, torch = (environment.commit, environment.torch) if environment else ("", "")
    return (
        run.when, run.name, (commit or "")[:12], torch or "", summary.cases, summary.unexpected,
        summary.counts[Verdict.XFAIL], summary.counts[Verdict.PASS], sum(case.graphs or 0 for case in cases),
        round(sum(case.seconds for case in cases), 1),
    )  # fmt: skip


_HISTORY_LINES = (
    ("unexpected", "X", FAIL), ("broken as expected", "D", KNOWN), ("graphs", "o", ACCENT),
    ("seconds", "o", MUTED),
)  # fmt: skip


def _plot_history(points: Sequence[tuple[str | float, ...]]) -> str:
    drawing = Drawing(
        "history", "Unexpected, expected, graphs and seconds over the runs", 4.4, stacked=len(_HISTORY_LINES)
    )
    places = range(len(points))
    with drawing as stacked:
        for axes, (column, mark, colour) in zip(stacked, _HISTORY_LINES, strict=True):
            values = [float(point[_HISTORY_COLUMNS.index(column)]) for point in points]
            axes.plot(places, values, marker=mark, color=colour)
            axes.set_ylim(0, max(values) * 1.2 or 1)
            counts(axes.yaxis, most=3)
            axes.set_ylabel(column.replace(" as ", " as\n"), rotation=0, ha="right", va="center")
        every = max(1, len(points) // 6)
        stacked[-1].set_xticks(list(places)[::every], [str(point[0])[:10] for point in points][::every])
    return drawing.svg


MOST_KERNEL_GRAPHS = 30
"""Graphs of the plot of kernels, the most wasteful ones; the table has all."""
_WASTEFUL = 1.1  # times as many bytes as must move: above this a graph is marked
_KERNEL_COLUMNS = (
    "family", "revision", "target", "dtype", "tokens", "capacity", "graph", "kernels", "largest, points",
    "rows, at most", "bytes moved", "bytes that must move", "times as many",
)  # fmt: skip


def figure_kernels(run: RunData) -> Figure:
    """Return one line for each compiled graph of `kernels.jsonl`."""
    key, title = "kernels", "Kernels against ideal"
    graphs = [row for row in run.kernels or () if row.get("kind") == "graph"]
    if not graphs:
        return Figure(key, title, "", absent="no kernels.jsonl next to this run; 'kernels --json' writes it")
    says = (
        "Bytes that the generated kernels of a graph move, against those they would move if no buffer had "
        "more token rows than the step."
    )
    graphs.sort(key=_excess, reverse=True)
    return Figure(
        key,
        title,
        says,
        Table(_KERNEL_COLUMNS, [_kernel_row(graph) for graph in graphs]),
        _plot_kernels(graphs[:MOST_KERNEL_GRAPHS]),
    )


def _count_in(graph: Mapping[str, Any], name: str) -> int:
    """Return a count of a file that somebody else may have written; 0 for anything else."""
    value = graph.get(name)
    return int(value) if isinstance(value, int | float) else 0


def _excess(graph: Mapping[str, Any]) -> float:
    return _count_in(graph, "bytes") / max(_count_in(graph, "ideal_bytes"), 1)


def _kernel_row(graph: Mapping[str, Any]) -> tuple[str | float | None, ...]:
    texts = [str(graph.get(name, "")) for name in ("family", "revision", "target", "dtype")]
    names = ("tokens", "capacity", "graph", "kernels", "largest", "rows", "bytes", "ideal_bytes")
    return (*texts, *(_count_in(graph, name) for name in names), round(_excess(graph), 2))


def _plot_kernels(graphs: Sequence[Mapping[str, Any]]) -> str:
    drawing = Drawing(
        "kernels", "Bytes moved and bytes that must move, for each graph, log scale", 1.0 + 0.24 * len(graphs)
    )
    with drawing as (axes,):
        places = list(range(len(graphs), 0, -1))
        ideal = [max(_count_in(graph, "ideal_bytes"), 1) for graph in graphs]
        moved = [max(_count_in(graph, "bytes"), 1) for graph in graphs]
        axes.hlines(places, ideal, moved, color=LINE, linewidth=3)
        axes.plot(ideal, places, linestyle="", marker="|", markersize=11, color=ACCENT, label="must move")
        much = [_excess(graph) > _WASTEFUL for graph in graphs]
        for label, marker, colour, wasteful in (
            ("moved", "o", ACCENT, False),
            ("moved too much", "X", FAIL, True),
        ):
            chosen = [
                (x, y) for x, y, is_much in zip(moved, places, much, strict=True) if is_much == wasteful
            ]
            if chosen:
                x, y = zip(*chosen, strict=True)
                axes.plot(x, y, linestyle="", marker=marker, color=colour, label=label)
        axes.set_yticks(
            places,
            [
                label_of(*(graph.get(name) for name in ("family", "revision", "target", "tokens")), "rows")
                for graph in graphs
            ],
        )
        axes.set_ylim(0.4, len(graphs) + 0.6)
        axes.grid(visible=False, axis="y")
        powers_of_ten(axes, [*ideal, *moved])
        axes.set_xlabel("bytes")
        drawing.figure.legend(loc="outside upper right", ncols=3)
    return drawing.svg


_WORK_COLUMNS = ("family", "buffer", "arm", "requested", "processed", "times as many", "steps")


class StepWork(NamedTuple):
    """Steps that are alike: who processed how many rows for how many."""

    family: str
    subject: str
    arm: str
    asked: int
    processed: int

    @property
    def times(self) -> float:
        """Rows processed for each row requested."""
        return self.processed / max(self.asked, 1)


def figure_work(run: RunData) -> Figure:
    """Return every step that counted its rows; equal ones once."""
    key, title = "work", "Rows processed against rows requested"
    points = Counter(
        StepWork(case.family, case.subject, case.arm, step.asked, step.processed)
        for case in run.cases.values()
        for step in case.steps
        if step.asked is not None and step.processed is not None
    )
    if not points:
        return Figure(key, title, "", absent="no case of this run counted rows")
    says = (
        "Rows that kernels and opaque operations worked on, for each step. On the line is right; "
        "above it the step paid for rows that nobody requested, below it rows are missing."
    )
    furthest_first = sorted(points, key=lambda point: abs(point.times - 1), reverse=True)
    rows = [(*point, round(point.times, 2), points[point]) for point in furthest_first]
    return Figure(key, title, says, Table(_WORK_COLUMNS, rows), _plot_work(furthest_first))


_WORK_KINDS = (
    ("more than requested", "X", FAIL),
    ("as requested", "o", ACCENT),
    ("fewer than requested", "v", KNOWN),
)


def _plot_work(points: Sequence[StepWork]) -> str:
    drawing = Drawing("work", "Rows processed against rows requested, log scale", 3.4)
    most = max(max(point.asked, point.processed, 1) for point in points)
    with drawing as (axes,):
        for scale in (axes.set_xscale, axes.set_yscale):
            scale("symlog", base=2, linthresh=1)
        axes.plot([0, most], [0, most], color=MUTED, linewidth=1, linestyle="--", label="as it should be")
        for (label, marker, colour), side in zip(_WORK_KINDS, (1, 0, -1), strict=True):
            places = {
                (point.asked, point.processed)
                for point in points
                if (point.processed > point.asked) - (point.processed < point.asked) == side
            }
            if places:
                asked, processed = zip(*sorted(places), strict=True)
                axes.plot(asked, processed, linestyle="", marker=marker, color=colour, label=label)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel("rows requested")
        axes.set_ylabel("rows processed")
        drawing.figure.legend(loc="outside upper right", ncols=4)
    return drawing.svg


_MEASURED_COLUMNS = (
    "stage", "measure", "value", "against", "unit", "ratio", "conditions", "detail",
)  # fmt: skip


def figure_measured(run: RunData) -> Figure:
    """Return every figure that the stages of the night measured, in their order."""
    key, title = "measured", "Measured on this machine"
    rows = [
        (
            stage.stage, figure.measure, round(figure.value, 1),
            None if figure.control is None else round(figure.control, 1), figure.unit,
            None if figure.ratio is None else round(figure.ratio, 3),
            ", ".join(f"{name} {value}" for name, value in figure.conditions.items()), figure.detail,
        )
        for stage in run.stages or ()
        for figure in stage.measured
    ]  # fmt: skip
    if not rows:
        return Figure(key, title, "", absent="no stage measured a figure; 'nightly --tier gpu' has some")
    says = "Each figure against its control: the same step without what is measured, or the prediction."
    return Figure(key, title, says, Table(_MEASURED_COLUMNS, rows))


MakeFigure = Callable[[RunData], Figure]

FIGURES: Sequence[MakeFigure] = (
    figure_distances,
    figure_work,
    figure_kernels,
    figure_graphs,
    figure_measured,
    figure_history,
    figure_fuzzing,
)


def figures_of(run: RunData) -> list[Figure]:
    """Make every figure, ours in their order, then those of other packages, sorted by name.

    A figure without data names what is missing.  Raises `UsageError` for a figure of another package
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


def _makes_figures(loaded: object) -> TypeIs[MakeFigure]:
    return callable(loaded)
