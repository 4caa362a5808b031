"""The table of `repro --workload`: what an evaluation of the same traffic would report."""

from collections.abc import Sequence

from deepstack_harness.contract.case import Case, GraphFacts
from deepstack_harness.oracles.evaluation import Evaluation
from deepstack_harness.reporting.terminal.output import Column, Output

_HEADINGS = ("revision", "arm", "greedy as eager", "runs", "token counts", "graphs", "died", "leaked rows")


class EvaluationTable:
    """One row per revision and arm, as they finish."""

    def __init__(self, output: Output, names: Sequence[tuple[str, str]]) -> None:
        """`names` are the revisions and arms that will come: they set the widths."""
        self._output = output
        left = [max(map(len, column)) for column in zip(*names, _HEADINGS[:2], strict=True)]
        self._columns = [*map(Column, left), *(Column(len(title), right=True) for title in _HEADINGS[2:])]
        output.row(self._columns, _HEADINGS, "dim")

    def add(self, case: Case, graphs: GraphFacts | None, found: Evaluation) -> None:
        """Print and record one row."""
        cells = [
            case.revision,
            case.arm.name,
            "-" if found.agreement is None else f"{found.agreement:.4f}",
            str(found.runs),
            str(found.counts),
            "-" if graphs is None else str(graphs.graphs),
            str(found.died),
            str(found.leaked),
        ]
        bad = found.agreement != 1 or found.died or found.leaked
        self._output.row(self._columns, cells, "red" if bad else "")
        self._output.record({"revision": case.revision, "arm": case.arm.name, "evaluation": found})
