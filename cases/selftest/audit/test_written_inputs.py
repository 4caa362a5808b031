"""Wrong and right regions in unusual spellings, written before the analysis: `written/engine` has them.

Each class of `wrong_attributes.py` reads what only a step writes, those of `right_attributes.py` do not.
"""

from pathlib import Path

import pytest

from cases.selftest.audit.written_sources import source_of
from deepstack_harness.audit.inputs import (
    AuditedInputs,
    InputChange,
    InputKind,
    InputStanding,
    Standing,
    audit_inputs,
)

ROOT = Path(__file__).parent / "written"


@pytest.fixture(scope="module")
def audited() -> AuditedInputs:
    files = {str(path.relative_to(ROOT)): path.read_bytes() for path in sorted(ROOT.rglob("*.py"))}
    return audit_inputs(source_of(files))


def attributes(audited: AuditedInputs, module: str) -> dict[str, list[InputStanding]]:
    """The rows of attributes of each compiled class of a file."""
    rows: dict[str, list[InputStanding]] = {
        region.model_class: [] for region in audited.regions if region.member.endswith(f"/{module}.py")
    }
    for row in audited.standings:
        if row.kind is InputKind.ATTRIBUTE and row.model_class in rows:
            rows[row.model_class].append(row)
    return rows


def test_each_wrong_attribute_is_at_risk(audited: AuditedInputs) -> None:
    rows = attributes(audited, "wrong_attributes")
    missed = {name for name, own in rows.items() if Standing.AT_RISK not in {row.standing for row in own}}
    assert (missed, len(rows)) == (set(), 22)


def test_no_right_attribute_is_at_risk(audited: AuditedInputs) -> None:
    rows = attributes(audited, "right_attributes")
    wrong = {name: own for name, own in rows.items() if {row.standing for row in own} - {Standing.SAME}}
    assert (wrong, len(rows)) == ({}, 15)


@pytest.mark.parametrize(
    ("model_class", "name", "change", "writer"),
    [
        ("Rebound", "rows", InputChange.PRESENCE, "before_step"),
        ("ThroughProperty", "_rows", InputChange.PRESENCE, "current"),
        ("InSubmodule", "rows", InputChange.PRESENCE, "before_step"),
        ("ByRunner", "scale_now", InputChange.VALUE, "execute_model"),
        ("Flag", "rows", InputChange.VALUE, "before_step"),
        ("Replaced", "rows", InputChange.STORAGE, "before_step"),
        ("FreshInEveryCall", "rows", InputChange.STORAGE, "prepare"),
    ],
)
def test_a_row_names_what_changes_and_who_writes_it(
    audited: AuditedInputs, model_class: str, name: str, change: InputChange, writer: str
) -> None:
    (row,) = attributes(audited, "wrong_attributes")[model_class]
    assert (row.input, row.change, row.writers[0].function) == (name, change, writer)
    member, _, line = row.where.rpartition(":")
    assert name.lstrip("_") in (ROOT / member).read_text().splitlines()[int(line) - 1]


@pytest.mark.parametrize(
    ("model_class", "standing"), [("FixedForARun", Standing.SAME), ("ByRequests", Standing.AT_RISK)]
)
def test_the_condition_of_the_runner_decides(
    audited: AuditedInputs, model_class: str, standing: Standing
) -> None:
    rows = {row.input: row for row in audited.standings if row.model_class == model_class}
    conditions = {name: row for name, row in rows.items() if name.startswith("by_")}
    others = {name: row.why for name, row in conditions.items() if row.standing is not standing}
    assert others == {}
    assert len(conditions) >= 6


def test_the_condition_of_the_caller_decides(audited: AuditedInputs) -> None:
    rows = {row.input: row.standing for row in audited.standings if row.model_class == "InnerOfOuter"}
    assert rows == {
        "when_wide": Standing.SAME,
        "when_named": Standing.SAME,
        "when_switched": Standing.AT_RISK,
        "when_listed": Standing.AT_RISK,
    }
