"""A figure of the report: verdicts of R4 on block buffers."""

from collections import Counter

from deepstack_harness.contract.rules import Rule
from deepstack_harness.runs.report.run_data import Figure, RunData, Table


def figure(run: RunData) -> Figure:
    """Count the verdicts of R4 by revision."""
    says = "Verdicts of R4 on buffers that grow in blocks."
    rows = [row for row in run.rows if row.rule is Rule.CAPACITY and row.revision.startswith("blocks")]
    counts = Counter((row.revision, str(row.verdict)) for row in rows)
    if not counts:
        return Figure("block-growth", "Growth in blocks", says, absent="no block buffer was played")
    lines = [(revision, verdict, count) for (revision, verdict), count in sorted(counts.items())]
    return Figure("block-growth", "Growth in blocks", says, Table(("revision", "verdict", "cases"), lines))
