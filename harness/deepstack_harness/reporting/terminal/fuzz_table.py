"""What `fuzz` says while it hunts, and at the end."""

from collections.abc import Sequence
from typing import Any

from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.row import SCHEMA_VERSION
from deepstack_harness.fuzzing.finding import Finding
from deepstack_harness.fuzzing.hunt import Progress
from deepstack_harness.reporting.terminal.output import Column, Output

_COLUMNS = (Column(6), Column(8, right=True), Column(8, right=True), Column(24), Column(60))
_HEADS = ("broken", "example", "seconds", "reach", "trace")


def status(progress: Progress, examples: int, findings: int) -> str:
    """One line about a hunt that goes on."""
    graphs = f", {progress.graphs} graphs of {progress.budget}" if progress.budget else ""
    return (
        f"{progress.examples} of {examples} examples, {progress.steps} steps, "
        f"{progress.steps_per_second:.0f} steps/s, {progress.states} states{graphs}, {findings} findings"
    )


def show_findings(output: Output, findings: Sequence[Finding]) -> None:
    """A row for each, and under it what was seen."""
    if not findings:
        return
    output.line()
    output.row(_COLUMNS, _HEADS, "bold")
    for one in findings:
        cells = (one.name, str(one.examples), f"{one.seconds:.1f}", one.reach or "", one.trace)
        output.row(_COLUMNS, cells, "red")
        alone = "" if one.alone is not False else " (only behind the traces before it)"
        output.line(f"        {one.detail}{alone}", "dim")
    output.line()


def row_of(finding: Finding, torch: str) -> dict[str, Any]:
    """A finding as one JSON object: the fields of every row, and those of a finding."""
    arm = ArmSpec.parse(finding.arm)
    return {
        "schema_version": SCHEMA_VERSION, "incident": None, "system": "deepstack",
        "family": finding.family, "model_class": finding.model_class, "revision": finding.target,
        "source": finding.source, "trace": finding.trace, "arm": arm.name, "guard_policy": arm.guards,
        "shape_policy": arm.shapes, "backend": arm.backend, "capture": arm.capture, "device": "cpu",
        "dtype": "float32", "rule": finding.rule, "verdict": "FAIL", "value": finding.value,
        "limit": finding.limit, "unit": finding.unit, "reach": finding.reach, "detail": finding.detail,
        "torch": torch, "kind": finding.kind, "pattern": finding.pattern, "examples": finding.examples,
        "seconds": round(finding.seconds, 3), "seed": finding.seed, "alone": finding.alone,
    }  # fmt: skip
