"""Rows: the public columns in their order, and what each kind of case fills in."""

from dataclasses import fields, replace

import msgspec

from deepstack_harness.contract.arm_spec import ArmSpec
from deepstack_harness.contract.buffer_ref import registered, source_buffer
from deepstack_harness.contract.case import Case
from deepstack_harness.contract.row import Row, beside_expectation, row_of_case
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.trace import Trace
from deepstack_harness.contract.verdicts import Effect, Judgement, Verdict

PUBLIC = (
    "schema_version incident system engine family model_class revision source trace arm regime guard_policy "
    "shape_policy backend capture device dtype rule verdict value limit unit reach evidence effect detail "
    "node_id torch case where expected"
)
CASE = Case(
    "qwen3_vl",
    registered("pr43617"),
    Trace.parse("cap 4: capture 4; replay 4"),
    ArmSpec.parse("eager/drop_all/full"),
    caller="static_inputs",
)
SAID = Judgement(Rule.R5, Verdict.FAIL, 3, 0, "rows", "row 1", Effect.OUTPUT)


def test_the_columns_are_public_and_stay() -> None:
    assert [field.name for field in fields(Row)] == PUBLIC.split()
    row = row_of_case(CASE, SAID, "2.13.0", "5962")
    written = msgspec.json.decode(row.to_json())
    assert list(written) == PUBLIC.split()
    assert written["schema_version"] == 2
    assert msgspec.json.decode(row.to_json(), type=Row) == row


def test_a_row_says_what_was_judged_and_how() -> None:
    row = row_of_case(CASE, SAID, "2.13.0", "5962")
    assert (row.incident, row.system, row.revision, row.case) == (
        "5962", "deepstack", "pr43617@static_inputs", CASE.id,
    )  # fmt: skip
    assert (row.engine, row.model_class, row.source, row.node_id, row.expected) == (None,) * 5
    assert (row.arm, row.guard_policy, row.backend, row.capture, row.regime) == (
        "eager/drop_all/full", "drop_all", "eager", "full", "captured",
    )  # fmt: skip
    assert (row.rule, row.verdict, row.value, row.limit, row.unit, row.effect, row.detail) == (
        Rule.R5, Verdict.FAIL, 3, 0, "rows", Effect.OUTPUT, "row 1",
    )  # fmt: skip


def test_a_row_of_a_source_names_its_engine_and_class() -> None:
    row = row_of_case(
        replace(CASE, buffer=source_buffer("vllm", "0.33.0", "vllm 0.33.0", "Any"), caller="engine"), SAID, ""
    )
    assert (row.engine, row.source, row.model_class, row.revision) == (
        "vllm", "vllm 0.33.0", "Any", "vllm 0.33.0",
    )  # fmt: skip


def test_a_reference_is_told_only_where_it_changes_the_verdict() -> None:
    row = row_of_case(CASE, SAID, "")
    known = beside_expectation(row, broken=True, reference="vllm 43602")
    assert (known.verdict, known.expected, known.detail) == (Verdict.XFAIL, True, "row 1 [known: vllm 43602]")
    lost = replace(row, verdict=Verdict.ERROR)
    assert beside_expectation(lost, broken=True, reference="x") == replace(lost, expected=True)
    assert beside_expectation(row, broken=False) == replace(row, expected=False)
    assert beside_expectation(row, broken=None) == row
