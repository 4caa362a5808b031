"""Rows: one judgement as users read it, with everything that says what was judged.

Rows are stored and compared for years, so they are versioned and plain data.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from deepstack_harness.contract.case import Case, Regime
from deepstack_harness.contract.facts.systems import System
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Effect, Judgement, Verdict, against_expectation

SCHEMA_VERSION = 2
"""The version of every stored row, and of the folders that hold rows."""


class Evidence(StrEnum):
    """The ground that `Row.reach` rests on.

    ENGINE: seen in a running engine.  EMULATED: the engine's scheduler ran, graphs were emulated.  READ:
    read in the engine's source.
    """

    ENGINE = "engine"
    EMULATED = "emulated"
    READ = "read"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One judgement, one JSON object per line (`--json`, `rows.jsonl`).

    `engine` is the package whose source was judged, None for buffers of ours and of users.  `family`,
    `trace`, `arm` and what follows from the arm are empty for systems that play no trace.  `case` is the id
    of the case (`Case.id`, or one of its own in a test), empty where there is none.  `expected`: True where
    a failure of the rule is known, None where no catalogue was asked.  `node_id` is the pytest node id, in
    tests only.  `where` is a file of the package that was judged, with lines: `vllm/a.py:12-40`.
    """

    schema_version: int = SCHEMA_VERSION
    incident: str | None = None
    system: str = System.DEEPSTACK
    engine: str | None = None
    family: str = ""
    model_class: str | None = None
    revision: str
    source: str | None = None
    trace: str = ""
    arm: str = ""
    regime: Regime = Regime.NONE
    guard_policy: str = ""
    shape_policy: str = ""
    backend: str = ""
    capture: str = ""
    device: str = "cpu"
    dtype: str = ""
    rule: Rule
    verdict: Verdict
    value: float | None = None
    limit: float | None = None
    unit: str = ""
    reach: str | None = None
    evidence: Evidence | None = None
    effect: Effect | None = None
    detail: str = ""
    node_id: str | None = None
    torch: str = ""
    case: str = ""
    where: str | None = None
    expected: bool | None = None

    @property
    def place(self) -> tuple[str, str, str]:
        """Family, arm and device: the line of the verdict matrix."""
        return self.family or "-", self.arm or "-", self.device or "-"

    def to_json(self) -> str:
        """Return one line of JSON, without a line end."""
        return msgspec.json.encode(self).decode()


def row_of_case(case: Case, judgement: Judgement, torch: str, incident: str | None = None) -> Row:
    """Return the row of one judgement of one case, beside no expectation."""
    arm, said = case.arm, judgement
    return Row(
        incident=incident, engine=case.buffer.package, family=case.family,
        model_class=case.buffer.model_class, revision=case.subject, source=case.buffer.source,
        trace=str(case.trace), arm=arm.name, regime=case.regime, guard_policy=arm.guards,
        shape_policy=arm.shapes, backend=arm.backend, capture=arm.capture, device=case.device,
        dtype=case.dtype, rule=said.rule, verdict=said.verdict, value=said.value, limit=said.limit,
        unit=said.unit, effect=said.effect, detail=said.detail, torch=torch, case=case.id,
    )  # fmt: skip


def beside_expectation(row: Row, *, broken: bool | None, reference: str = "") -> Row:
    """Return the row as it stands beside what is known of its rule; see `against_expectation`.

    `reference` is the issue that a known failure waits for; it is added to the detail.
    """
    verdict = against_expectation(row.verdict, broken=broken)
    told = (
        f"{row.detail} [known: {reference}]".strip()
        if reference and verdict is not row.verdict
        else row.detail
    )
    return replace(row, verdict=verdict, expected=broken, detail=told)
