"""Findings of `audit` as SARIF 2.1.0, which code hosts show beside the lines of a pull request.

Properties are those of the standard (OASIS, sarif-v2.1.0); `properties` bags have what is ours alone.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from deepstack_harness import __version__
from deepstack_harness.auditing.audited_source import AuditedSource
from deepstack_harness.auditing.gates import FindingKey, key_of
from deepstack_harness.catalogue.reach import DEFAULT
from deepstack_harness.catalogue.upstream import link_of
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, Verdict

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_PLACE = re.compile(r"(?P<file>.+?)(?::(?P<first>\d+)(?:-(?P<last>\d+))?)?")


def sarif_text(audited: Sequence[AuditedSource], base: Collection[FindingKey] | None) -> str:
    """Return one run with a result per broken rule; `base` has the findings that are not new."""
    rows = [
        (row, one.references.get((row.model_class or row.revision, row.rule), ""))
        for one in audited
        for standing in one.standings
        for row in standing.rows
    ]
    broken = [(row, reference) for row, reference in rows if row.verdict in BROKEN]
    used = [rule for rule in Rule if any(row.rule is rule for row, _ in broken)]
    run = {
        "tool": {"driver": {
            "name": "deepstack-harness", "version": __version__, "rules": [_rule(rule) for rule in used],
        }},
        "columnKind": "unicodeCodePoints",
        "results": [_result(row, reference, used, base) for row, reference in broken],
        "invocations": [{
            "executionSuccessful": not any(row.verdict is Verdict.ERROR for row, _ in rows),
            "toolExecutionNotifications": list(_notifications(audited, [row for row, _ in rows])),
        }],
    }  # fmt: skip
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": str(rule),
        "name": rule.word,
        "shortDescription": {"text": f"{rule} {rule.word}"},
        "fullDescription": {"text": rule.promise},
    }


def _result(
    row: Row, reference: str, used: Sequence[Rule], base: Collection[FindingKey] | None
) -> dict[str, Any]:
    subject = row.model_class or row.revision
    trace = f" on '{row.trace}'" if row.trace else ""
    known = row.verdict is Verdict.XFAIL
    result: dict[str, Any] = {
        "ruleId": str(row.rule),
        "ruleIndex": used.index(row.rule),
        "level": "note" if known and row.reach != DEFAULT else "error" if row.reach == DEFAULT else "warning",
        "message": {"text": f"{subject}{trace}: {row.detail}"},
        "locations": [_location(row, subject)],
        "partialFingerprints": {"deepstackHarness/v1": _fingerprint(row)},
        "properties": {
            name: str(value)
            for name, value in (
                ("source", row.source), ("regime", row.regime), ("reach", row.reach),
                ("evidence", row.evidence), ("effect", row.effect), ("known", reference if known else None),
            )
            if value
        },
    }  # fmt: skip
    if base is not None:
        result["baselineState"] = "unchanged" if key_of(row) in base else "new"
    if known and (link := link_of(reference)):
        result["workItemUris"] = [link]
    return result


def _location(row: Row, subject: str) -> dict[str, Any]:
    location: dict[str, Any] = {"logicalLocations": [{"name": subject, "kind": "type"}]}
    place = _PLACE.fullmatch(row.where or "")
    if place:
        physical: dict[str, Any] = {"artifactLocation": {"uri": place["file"], "uriBaseId": "%SRCROOT%"}}
        if place["first"]:
            physical["region"] = {
                "startLine": int(place["first"]),
                "endLine": int(place["last"] or place["first"]),
            }
        location["physicalLocation"] = physical
    return location


def _fingerprint(row: Row) -> str:
    """Return what stays the same of a finding when lines move and versions change."""
    return hashlib.sha256("|".join(key_of(row)).encode()).hexdigest()[:16]


def _notifications(audited: Sequence[AuditedSource], rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if row.verdict is Verdict.ERROR:
            text = f"{row.rule} of {row.model_class or row.revision} was not judged: {row.detail}"
            yield {"level": "error", "message": {"text": text}}
    for one in audited:
        for refused in one.refused:
            text = f"{refused.model_class} cannot be driven: {refused.refusals[-1]}"
            yield {"level": "warning", "message": {"text": text}}
