"""The row: one judgement as users read it, with everything that says what was judged.

Versioned, because runs are kept and compared for years; plain data, as everything in `contract.case`.
"""

from dataclasses import dataclass, field

import msgspec

from deepstack_harness.contract.case import Case, Judgement

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Row:
    """One judgement as users read it, one JSON object per line (`--json`)."""

    incident: str | None
    system: str
    family: str
    model_class: str | None
    revision: str
    source: str | None
    trace: str
    arm: str
    guard_policy: str
    shape_policy: str
    backend: str
    capture: str
    device: str
    dtype: str
    rule: str
    verdict: str
    value: float | None
    limit: float | None
    unit: str
    reach: str | None
    detail: str
    torch: str
    schema_version: int = field(default=SCHEMA_VERSION)

    @classmethod
    def of(cls, case: Case, judgement: Judgement, torch: str, incident: str | None = None) -> "Row":
        """The row of one judgement of one case."""
        arm, said = case.arm, judgement
        return cls(
            incident=incident, system="deepstack", family=case.family,
            model_class=case.model_class, revision=case.subject, source=case.source,
            trace=str(case.trace), arm=arm.name, guard_policy=arm.guards,
            shape_policy=arm.shapes, backend=arm.backend, capture=arm.capture,
            device=case.device, dtype=case.dtype, rule=said.rule, verdict=said.verdict,
            value=said.value, limit=said.limit, unit=said.unit, reach=None,
            detail=said.detail, torch=torch,
        )  # fmt: skip

    @classmethod
    def beside(
        cls,
        system: str,
        revision: str,
        judgement: Judgement,
        torch: str,
        *,
        incident: str | None = None,
        model_class: str | None = None,
        source: str | None = None,
    ) -> "Row":
        """The row of one judgement of a system beside the buffer: no family, trace or arm, on the CPU."""
        said = judgement
        return cls(
            incident=incident, system=system, family="", model_class=model_class,
            revision=revision, source=source, trace="", arm="", guard_policy="",
            shape_policy="", backend="", capture="", device="cpu", dtype="",
            rule=said.rule, verdict=said.verdict, value=said.value, limit=said.limit,
            unit=said.unit, reach=None, detail=said.detail, torch=torch,
        )  # fmt: skip

    def to_json(self) -> str:
        """One line of JSON, without a line end."""
        return msgspec.json.encode(self).decode()
