"""Judgements against what is known: expected failures, improvements, and what is new."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule, Verdict


def expect(rows: Iterable[Row], known: Mapping[Rule, str]) -> list[Row]:
    """FAIL that is known becomes XFAIL, PASS where a failure is known becomes IMPROVED."""
    return [_expected(row, known.get(Rule(row.rule))) for row in rows]


def _expected(row: Row, reference: str | None) -> Row:
    if reference is None:
        return row
    changed = {Verdict.FAIL: Verdict.XFAIL, Verdict.PASS: Verdict.IMPROVED}.get(Verdict(row.verdict))
    return (
        replace(row, verdict=changed, detail=f"{row.detail} [known: {reference}]".strip()) if changed else row
    )
