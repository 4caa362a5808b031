"""Verdicts and classes written by hand: rows with a rule, a verdict and a reach."""

from deepstack_harness.audit.audited_source import AuditedSource
from deepstack_harness.audit.class_verdicts import ClassVerdicts
from deepstack_harness.audit.gate import Base, seen_classes
from deepstack_harness.audit.source_worker import AuditedClass
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Effect, FaultKind, Row, Verdict
from deepstack_harness.engines.discover import FoundClass
from deepstack_harness.errors import Reason
from deepstack_harness.play.case_worker import ClassWays

MEMBER = "vllm/model_executor/models/qwen3_vl.py"


def audited_class(model_class: str, member: str = MEMBER, ways: ClassWays | None = None) -> AuditedClass:
    """Return a class that no worker defined; `ways` are those in which it could be called."""
    reason = Reason("it was not cut")
    return AuditedClass(FoundClass(model_class, member, reason, reason), ways or ClassWays())


def row(
    rule: Rule,
    verdict: Verdict,
    reach: str | None = None,
    unit: str = "rows",
    effect: Effect | None = None,
    shape: FaultKind = FaultKind.REPLACED,
) -> Row:
    return Row(
        engine="vllm", model_class="Qwen3VL", revision="vllm 0.22.1", source="vllm 0.22.1",
        trace="cap 16: get 4", regime=Regime.LIVE, rule=rule, verdict=verdict, value=3, unit=unit,
        reach=reach, effect=effect, detail="step 1 'get 4' was wrong", where=f"{MEMBER}:12-40", shape=shape,
    )  # fmt: skip


def class_verdicts(*rows: Row) -> ClassVerdicts:
    return ClassVerdicts("vllm 0.22.1", "Qwen3VL", rows)


def base_with(*rows: Row) -> Base:
    """Return a base `main` whose only class has these rows."""
    return Base("main", seen_classes([class_verdicts(*rows)]), {"Qwen3VL": MEMBER})


def audited(*rows: Row) -> AuditedSource:
    references = {("Qwen3VL", Rule.STRUCTURE): "vllm 43602", ("Qwen3VL", Rule.REJECTION): "unreported"}
    return AuditedSource("vllm 0.22.1", "vllm", (class_verdicts(*rows),), references=references)
