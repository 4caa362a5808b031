"""The progress line and the findings of `fuzz`."""

from collections.abc import Sequence
from typing import Any

from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.case import Regime
from deepstack_harness.contract.facts.systems import System
from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.row import SCHEMA_VERSION
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.watch import Progress
from deepstack_harness.reporting.terminal.output import Column, Output

_COLUMNS = (Column(6), Column(8, right=True), Column(8, right=True), Column(24), Column(60))
_HEADS = ("broken", "example", "seconds", "reach", "trace")


def status(progress: Progress, examples: int, findings: int) -> str:
    """Return one line about the progress of a hunt."""
    graphs = f", {plural(progress.graphs, 'graph')} of {progress.budget}" if progress.budget else ""
    return (
        f"{progress.examples} of {examples} examples, {progress.steps} steps, "
        f"{progress.steps_per_second:.0f} steps/s, {plural(progress.states, 'state')}{graphs}, "
        f"{plural(findings, 'finding')}"
    )


def show_findings(output: Output, findings: Sequence[Finding]) -> None:
    """Print a row for each finding, and under it what was seen."""
    if not findings:
        return
    output.line()
    output.row(_COLUMNS, _HEADS, "bold")
    for found in findings:
        cells = (found.name, str(found.examples), f"{found.seconds:.1f}", found.reach or "", found.trace)
        output.row(_COLUMNS, cells, Verdict.FAIL.style)
        alone = "" if found.alone is not False else " (only behind the traces before it)"
        output.line(f"        {found.detail}{alone}", "dim")
    output.line()


def row_of(finding: Finding, torch: str) -> dict[str, Any]:
    """Return a finding as one JSON object: the fields of every row, and those of a finding.

    A finding that ended its process has no rule.
    """
    arm, trace = ArmSpec.parse(finding.arm), Trace.parse(finding.trace)
    return {
        "schema_version": SCHEMA_VERSION, "incident": None, "system": System.DEEPSTACK,
        "engine": finding.engine, "family": finding.family, "model_class": finding.model_class,
        "revision": finding.target, "source": finding.source, "trace": finding.trace, "arm": arm.name,
        "regime": Regime.CAPTURED if trace.replays else Regime.LIVE, "guard_policy": arm.guards,
        "shape_policy": arm.shapes, "backend": arm.backend, "capture": arm.capture, "device": "cpu",
        "dtype": "float32", "rule": finding.rule, "verdict": Verdict.FAIL, "value": finding.value,
        "limit": finding.limit, "unit": finding.unit, "reach": finding.reach, "evidence": None,
        "effect": finding.effect, "detail": finding.detail, "node_id": None, "torch": torch, "case": "",
        "where": None, "expected": None, "kind": finding.kind, "shape": finding.shape,
        "examples": finding.examples,
        "seconds": round(finding.seconds, 3), "seed": finding.seed, "alone": finding.alone,
    }  # fmt: skip
