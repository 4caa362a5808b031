"""Judge a text model whose payload is an argument: live by the audit traces, captured by its own graphs."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from deepstack_harness.auditing.source_worker import AuditedClass, SourceWorker
from deepstack_harness.auditing.standing import Standing
from deepstack_harness.catalogue.matrix import AUDIT_TRACES, Where, plan_audit
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import BROKEN, Verdict
from deepstack_harness.oracles.judged_case import JudgedCase
from deepstack_harness.sources.source import buffer_of

WHERE = Where("qwen3_vl")
"""Its hidden size and levels are those that buffers are made with; no decoder runs."""
LIVE_TRACES = tuple(map(Trace.parse, AUDIT_TRACES))
"""The audit traces without those that record calls of a buffer: the engine's own runner captures."""


def judge_replayed(found: AuditedClass, traces: Iterable[str], worker: SourceWorker) -> list[JudgedCase]:
    """Play traces under the graphs of the engine's own runner, and judge them."""
    buffer = replace(buffer_of(worker.source, found.model_class), replayed=True)
    return worker.judge(plan_audit(WHERE, buffer, map(Trace.parse, traces)), found.model_class, "methods")


def told(standing: Standing, found: AuditedClass, cannot_ask: Mapping[Rule, str]) -> Standing:
    """Return the standing with what cannot be asked of the engine, and with what its graphs lose."""
    return replace(standing, rows=tuple(_told(standing.rows, found, cannot_ask)))


def _told(rows: Iterable[Row], found: AuditedClass, cannot_ask: Mapping[Rule, str]) -> Iterable[Row]:
    for row in rows:
        if row.rule in cannot_ask:
            yield replace(row, verdict=Verdict.SKIP, value=None, detail=cannot_ask[row.rule], expected=None)
        elif row.regime is Regime.CAPTURED and row.verdict in BROKEN and found.lost:
            yield replace(row, detail=f"{row.detail}; {found.lost} ({found.replayed_at})")
        else:
            yield row
