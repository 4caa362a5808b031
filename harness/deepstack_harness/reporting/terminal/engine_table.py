"""The table of `engine`: a line for each schedule, the broken rules under it, and one line per class."""

from collections.abc import Iterable

from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule, names_of
from deepstack_harness.contract.verdicts import BROKEN, KEPT, Verdict
from deepstack_harness.live_engine.answers import ORACLES
from deepstack_harness.live_engine.played import EngineResult
from deepstack_harness.reporting.terminal.output import Column, Output

_COLUMNS = (
    Column(22), Column(14), Column(24), Column(18), Column(5, right=True), Column(8, right=True),
    Column(8, right=True), Column(8, right=True), Column(8, right=True), Column(0),
)  # fmt: skip
_HEAD = ("family", "arm", "schedule", "graphs", "steps", "replayed", "distance", "limit", "seconds", "broken")


class EngineTable:
    """Results as they come; the last lines sum them up by class and regime."""

    def __init__(self, output: Output) -> None:
        """Print the head."""
        self._output = output
        self._results: list[EngineResult] = []
        output.line(
            "distance: largest difference of log-probabilities that should be equal; graphs: emulated"
        )
        output.row(_COLUMNS, _HEAD, "bold")

    def show(self, result: EngineResult) -> None:
        """Print one result, and a line for each rule that it breaks."""
        self._results.append(result)
        worst = _worst(result)
        figures = [
            _figure(worst.value if worst else None),
            _figure(worst.limit if worst else None),
            f"{result.seconds:.1f}",
        ]
        graphs = result.replay.name if result.replay else "-"
        self._output.row(
            _COLUMNS,
            [result.order.model.family, result.order.arm, result.name, graphs, str(result.steps),
             str(result.replayed), *figures, names_of(row.rule for row in result.broken)],
            "red" if result.broken else "",
        )  # fmt: skip
        for row in result.rows:
            self._output.record(row)
        for row in result.broken:
            self._output.line(f"    {row.rule} {row.rule.word}: {row.detail} ({row.reach})", "red")

    def close(self, regime: str, seconds: float) -> bool:
        """Print what each class keeps and breaks, and the blind spots; return whether the regime is good."""
        rows = [row for result in self._results for row in result.rows]
        self._output.line()
        for oracle in ORACLES.values():
            self._output.line(f"{oracle.name}: {oracle.question} Cannot see {oracle.cannot_see}.", "dim")
        met = frozenset().union(*(result.met for result in self._results))
        self._output.line(f"met {len(met)} distinct pairs of dispatch and visual state", "dim")
        good = True
        for label, model_class in sorted({(row.revision, row.model_class or "") for row in rows}):
            mine = [row for row in rows if row.model_class == model_class]
            wrong = [row for row in mine if _counts(row, regime)]
            self._output.verdict(f"{label}, {model_class}: {_said(mine)}", good=not wrong)
            good = good and not wrong
        self._output.line(f"{len(self._results)} results in {seconds:.0f} s")
        return good and bool(rows)


def _said(rows: Iterable[Row]) -> str:
    rows = list(rows)
    told = []
    for regime, name in ((Regime.LIVE, "live"), (Regime.CAPTURED, "emulated replays")):
        mine = [row for row in rows if row.regime is regime]
        broken = {row.rule for row in mine if row.verdict in BROKEN}
        kept = {row.rule for row in mine if row.verdict in KEPT} - broken
        unjudged = {row.rule for row in mine if row.verdict is Verdict.ERROR}
        if mine:
            said = f"breaks {names_of(broken)}" if broken else f"keeps {names_of(kept)}"
            told.append(f"{name}: {said}" + (f", not judged {names_of(unjudged)}" if unjudged else ""))
    return "; ".join(told)


def _counts(row: Row, regime: str) -> bool:
    wrong = row.verdict in BROKEN or row.verdict is Verdict.ERROR
    return wrong and regime in ("both", row.regime)


def _worst(result: EngineResult) -> Row | None:
    """Return the row of answers that should be equal and are furthest apart."""
    rows = [
        row for row in result.rows if row.rule is Rule.R0 and row.value is not None and row.limit is not None
    ]
    return max(rows, key=lambda row: (row.verdict in BROKEN, row.value), default=None)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
