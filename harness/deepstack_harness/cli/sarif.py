"""SARIF 2.1.0 (OASIS) of an audit, which code hosts show beside the lines of a pull request.

What is ours alone is in the `properties` bags.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from deepstack_harness import __version__
from deepstack_harness.audit.account import UnjudgedCarrier
from deepstack_harness.audit.audited_source import AuditedSource, FindingKey, key_of
from deepstack_harness.audit.driven_inputs import Driven, DriveResult
from deepstack_harness.audit.inputs.rows import InputStanding
from deepstack_harness.catalogue.known import link_of
from deepstack_harness.catalogue.orders import DEFAULT
from deepstack_harness.contract.rules import Promise, Rule
from deepstack_harness.contract.verdicts import BROKEN, Row, Verdict

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_PLACE = re.compile(r"(?P<file>.+?)(?::(?P<first>\d+)(?:-(?P<last>\d+))?)?")


def sarif_text(audited: Sequence[AuditedSource], base: Collection[FindingKey] | None) -> str:
    """Return one run with a result per broken rule; `base` has the findings that are not new."""
    rows = [
        (row, source.references.get((row.model_class or row.revision, row.rule), ""))
        for source in audited
        for verdicts in source.subjects
        for row in verdicts.rows
    ]
    broken = [(row, reference) for row, reference in rows if row.verdict in BROKEN]
    used = [rule for rule in Rule if any(row.rule is rule for row, _ in broken)]
    carriers = [(source, carrier) for source in audited for carrier in source.account.unjudged]
    rules = [*map(_rule, used), *([_NOT_JUDGED] if carriers else [])]
    results = [
        *(_result(row, reference, used, base) for row, reference in broken),
        *(_unjudged_result(source, carrier, len(used), base) for source, carrier in carriers),
    ]
    notifications = list(_notifications([row for row, _ in rows]))
    return _document(rules, results, notifications, successful=not notifications)


def _document(
    rules: Sequence[Mapping[str, Any]],
    results: Sequence[Mapping[str, Any]],
    notifications: Sequence[Mapping[str, Any]] = (),
    *,
    successful: bool,
) -> str:
    run = {
        "tool": {"driver": {"name": "deepstack-harness", "version": __version__, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": results,
        "invocations": [{"executionSuccessful": successful, "toolExecutionNotifications": notifications}],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def inputs_sarif_text(inputs: Sequence[tuple[str, InputStanding, DriveResult]]) -> str:
    """Return one run with a result per input at risk that breaks a promise, or could not be driven.

    Each comes with the label of its source.
    """
    told = [each for each in inputs if each[2].driven in (Driven.BROKEN, Driven.UNKNOWN)]
    used = [promise for promise in Promise if any(result.promise is promise for _, _, result in told)]
    unknown = any(result.driven is Driven.UNKNOWN for _, _, result in told)
    rules = [*map(_promise_rule, used), *([_NOT_DRIVEN] if unknown else [])]
    return _document(
        rules, [_input_result(label, row, result, used) for label, row, result in told], successful=True
    )


def _promise_rule(promise: Promise) -> dict[str, Any]:
    return {
        "id": str(promise), "name": promise.word,
        "shortDescription": {"text": f"{promise} {promise.word}"},
        "fullDescription": {"text": promise.text},
    }  # fmt: skip


def _input_result(
    label: str, row: InputStanding, result: DriveResult, used: Sequence[Promise]
) -> dict[str, Any]:
    """Return the result of one input at risk: an error where it breaks a promise, else a warning."""
    broken = result.driven is Driven.BROKEN and result.promise is not None
    rule = str(result.promise) if broken else str(_NOT_DRIVEN["id"])
    key = f"{row.model_class}|{row.member}|{row.input}|{rule}"
    name = f"{row.model_class}.{row.input}"
    return {
        "ruleId": rule,
        "ruleIndex": used.index(result.promise) if broken and result.promise else len(used),
        "level": "error" if broken else "warning",
        "message": {"text": f"{name}: {result.detail}"},
        "locations": [_location(result.where or f"{row.member}:{row.line}", row.model_class)],
        "partialFingerprints": {"deepstackHarness/v1": hashlib.sha256(key.encode()).hexdigest()[:16]},
        "properties": {"source": label, **({"arm": result.arm} if broken else {})},
    }


_NOT_DRIVEN: Mapping[str, Any] = {
    "id": "not-driven",
    "name": "not driven",
    "shortDescription": {"text": "an input is at risk, and could not be driven"},
    "fullDescription": {
        "text": "A warm-up may not see an input as later steps do, and nothing shows what comes of it."
    },
}
_NOT_JUDGED: Mapping[str, Any] = {
    "id": "not-judged",
    "name": "not judged",
    "shortDescription": {"text": "a payload is carried, and no rule was judged"},
    "fullDescription": {
        "text": "A class or function carries a payload and cannot be driven, so that nothing is known of it."
    },
}


def _unjudged_result(
    source: AuditedSource, carrier: UnjudgedCarrier, index: int, base: Collection[FindingKey] | None
) -> dict[str, Any]:
    """Return the result of a carrier that was not judged: an error, or a note where it is known."""
    key = f"{carrier.name}|{carrier.member}|{_NOT_JUDGED['id']}"
    result: dict[str, Any] = {
        "ruleId": _NOT_JUDGED["id"],
        "ruleIndex": index,
        "level": "note" if carrier.reason else "error",
        "message": {"text": f"{carrier.name} was not judged: {carrier.why}"},
        "locations": [_location(carrier.where, carrier.name)],
        "partialFingerprints": {"deepstackHarness/v1": hashlib.sha256(key.encode()).hexdigest()[:16]},
        "properties": {"source": source.label, **({"known": carrier.reason} if carrier.reason else {})},
    }
    if base is not None:
        result["baselineState"] = "new"
    return result


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
        "locations": [_location(row.where, subject)],
        "partialFingerprints": {"deepstackHarness/v1": _fingerprint(row)},
        "properties": {
            name: str(value)
            for name, value in (
                ("promise", row.promise), ("source", row.source), ("regime", row.regime),
                ("reach", row.reach), ("evidence", row.evidence), ("effect", row.effect),
                ("known", reference if known else None),
            )
            if value
        },
    }  # fmt: skip
    if base is not None:
        result["baselineState"] = "unchanged" if key_of(row) in base else "new"
    if known and (link := link_of(reference)):
        result["workItemUris"] = [link]
    return result


def _location(where: str | None, subject: str) -> dict[str, Any]:
    location: dict[str, Any] = {"logicalLocations": [{"name": subject, "kind": "type"}]}
    place = _PLACE.fullmatch(where or "")
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


def _notifications(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if row.verdict is Verdict.ERROR:
            text = f"{row.rule} of {row.model_class or row.revision} was not judged: {row.detail}"
            yield {"level": "error", "message": {"text": text}}
