"""Bytes that generated kernels move, against those that must move."""

from collections.abc import Mapping, Sequence
from typing import Any

from deepstack_harness.reporting.figures.base import Figure, Table
from deepstack_harness.reporting.figures.drawing import ACCENT, FAIL, LINE, Drawing, label_of
from deepstack_harness.reporting.figures.scales import powers_of_ten
from deepstack_harness.reporting.run_data import RunData

MOST_LINES = 30
_TELLING = 1.1  # times as many bytes as must move: above this a graph is marked
_COLUMNS = (
    "family", "revision", "target", "dtype", "tokens", "capacity", "graph", "kernels", "largest, points",
    "rows, at most", "bytes moved", "bytes that must move", "times as many",
)  # fmt: skip


def figure(run: RunData) -> Figure:
    """One line for each compiled graph of `kernels.jsonl`."""
    key, title = "kernels", "Kernels against ideal"
    graphs = [row for row in run.kernels or () if row.get("kind") == "graph"]
    if not graphs:
        return Figure(key, title, "", absent="no kernels.jsonl beside this run; 'kernels --json' writes it")
    says = (
        "Bytes that the generated kernels of a graph move, against those they would move if no buffer had "
        "more token rows than the step."
    )
    graphs.sort(key=_times, reverse=True)
    return Figure(
        key, title, says, Table(_COLUMNS, [_row(one) for one in graphs]), _plot(graphs[:MOST_LINES])
    )


def _count(graph: Mapping[str, Any], name: str) -> int:
    """A count of a file that somebody else may have written: 0 where it is none."""
    value = graph.get(name)
    return int(value) if isinstance(value, int | float) else 0


def _times(graph: Mapping[str, Any]) -> float:
    return _count(graph, "bytes") / max(_count(graph, "ideal_bytes"), 1)


def _row(graph: Mapping[str, Any]) -> tuple[str | float | None, ...]:
    texts = [str(graph.get(name, "")) for name in ("family", "revision", "target", "dtype")]
    names = ("tokens", "capacity", "graph", "kernels", "largest", "rows", "bytes", "ideal_bytes")
    return (*texts, *(_count(graph, name) for name in names), round(_times(graph), 2))


def _name(graph: Mapping[str, Any]) -> str:
    return label_of(*(graph.get(name) for name in ("family", "revision", "target", "tokens")), "rows")


def _plot(graphs: Sequence[Mapping[str, Any]]) -> str:
    drawing = Drawing(
        "kernels", "Bytes moved and bytes that must move, for each graph, log scale", 1.0 + 0.24 * len(graphs)
    )
    with drawing as (axes,):
        places = list(range(len(graphs), 0, -1))
        ideal = [max(_count(one, "ideal_bytes"), 1) for one in graphs]
        moved = [max(_count(one, "bytes"), 1) for one in graphs]
        axes.hlines(places, ideal, moved, color=LINE, linewidth=3)
        axes.plot(ideal, places, linestyle="", marker="|", markersize=11, color=ACCENT, label="must move")
        much = [_times(one) > _TELLING for one in graphs]
        for label, marker, colour, wanted in (
            ("moved", "o", ACCENT, False),
            ("moved too much", "X", FAIL, True),
        ):
            chosen = [(x, y) for x, y, told in zip(moved, places, much, strict=True) if told == wanted]
            if chosen:
                x, y = zip(*chosen, strict=True)
                axes.plot(x, y, linestyle="", marker=marker, color=colour, label=label)
        axes.set_yticks(places, [_name(one) for one in graphs])
        axes.set_ylim(0.4, len(graphs) + 0.6)
        axes.grid(visible=False, axis="y")
        powers_of_ten(axes, [*ideal, *moved])
        axes.set_xlabel("bytes")
        drawing.figure.legend(loc="outside upper right", ncols=3)
    return drawing.svg
