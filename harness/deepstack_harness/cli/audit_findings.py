"""Findings of an audit, and their three renderings: SARIF, annotations and Markdown.

`audit_findings` and `input_findings` say once what a finding is: its rule, its place and whether the audit
fails for it.  SARIF 2.1.0 (OASIS) is read by code hosts, which show it beside the lines of a pull request;
what is ours alone is in the `properties` bags.  GitHub shows annotations there without any upload, and
Markdown as the summary of a job or a comment.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepstack_harness import __version__
from deepstack_harness.audit.account import UnjudgedCarrier
from deepstack_harness.audit.audited_source import AuditedSource
from deepstack_harness.audit.gate import GateResult, cause_of, shown_of, subject_of
from deepstack_harness.catalogue.known import UNREPORTED, link_of
from deepstack_harness.catalogue.orders import REACHES, reach_kind
from deepstack_harness.contract.rules import Promise, Rule
from deepstack_harness.contract.verdicts import BROKEN, Row, Verdict
from deepstack_harness.document.markdown import (
    MOST_ANNOTATIONS,
    annotation,
    cell_text,
    code,
    plain,
    table_head,
    table_row,
)
from deepstack_harness.document.shown import problem_of
from deepstack_harness.engines.known import open_source
from deepstack_harness.sources.tree import Tree
from deepstack_harness.text import one_line, plural, shortened

if TYPE_CHECKING:
    from deepstack_harness.audit.inputs import InputStanding


class FindingLevel(StrEnum):
    """Severity of a finding, in the words of SARIF, the worst first."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class JudgedRule:
    """The rule or promise that a finding is about: what SARIF calls a reporting descriptor."""

    id: str
    word: str
    sentence: str

    @property
    def title(self) -> str:
        """The id with its word; "not judged" is said once."""
        return f"{self.id} {self.word}" if self.id != self.word.replace(" ", "-") else self.word


_NOT_JUDGED = JudgedRule(
    "not-judged",
    "not judged",
    "A class or function carries a payload and cannot be driven, so that nothing is known of it.",
)


_NOT_DRIVEN = JudgedRule(
    "not-driven",
    "not driven",
    "A warm-up may not see an input as later steps do, and nothing shows what comes of it.",
)


@dataclass(frozen=True)
class AuditFinding:
    """One cause of an audit, as every output shows it.

    `fails` is True where the exit code is 1 for it.  `subject` is the class with the lines of `where`, and
    `others` are those that have the fault from there.  `text` is what a user of the engine notices, `detail`
    the trace that shows it, and `new` what is new about it beside a base.  `where` is `FILE:FIRST-LAST`,
    `FILE:LINE`, `FILE` or empty.  `key` stays the same when lines move and versions change.  `in_base` says
    whether the source of `--base` has it too, and is None without one.  `known` is the reference or the
    reason of its entry in the catalogue.  `measured` is False for a rule that could not be judged, or was
    known to be broken and is not.
    """

    judged: JudgedRule
    level: FindingLevel
    subject: str
    text: str
    where: str
    key: str
    fails: bool
    in_base: bool | None = None
    known: str = ""
    measured: bool = True
    properties: Mapping[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    detail: str = ""
    new: str = ""

    @property
    def sentence(self) -> str:
        """Everything about it on one line, without rule and place."""
        others = f"also in {', '.join(self.others)}" if self.others else ""
        known = "" if self.known in ("", UNREPORTED) else f"known: {self.known}"
        new = f"new: {self.new}" if self.new else ""
        return "; ".join(filter(None, [f"{self.subject}: {self.text}", new, self.detail, others, known]))

    @property
    def file_lines(self) -> tuple[str, tuple[int, int] | None]:
        """The file, and its first and last line; "" without a place, None without lines."""
        place = _PLACE.fullmatch(self.where)
        if place is None:
            return "", None
        first = place["first"]
        return place["file"], (int(first), int(place["last"] or first)) if first else None


_PLACE = re.compile(r"(?P<file>.+?)(?::(?P<first>\d+)(?:-(?P<last>\d+))?)?")


def audit_findings(
    audited: Sequence[AuditedSource],
    result: GateResult,
    folders: Mapping[str, str] | None = None,
    changed: Collection[str] = (),
) -> list[AuditFinding]:
    """Return the findings of an audit, one for each cause.

    Beside a base those that fail come first, then those in `changed` files.  Classes that break a rule by the
    same lines have one cause.  `result` says which findings fail the audit and which are new, and `folders`
    has the folder of each source (by label) below the root of the repository, with a slash at the end.
    """
    found: list[AuditFinding] = []
    for source in audited:
        own = [*_broken(source, result), *_not_measured(source, result)]
        state = None if result.base is None else False
        for carrier in source.account.unjudged:
            fails = carrier in result.carriers
            old = state if fails or result.base is None else True
            own.append(replace(_of_carrier(source.label, carrier, fails=fails), in_base=old))
        folder = (folders or {}).get(source.label, "")
        found += [replace(each, where=f"{folder}{each.where}") if each.where else each for each in own]

    own_files = {f"{folder}{name}" for folder in {"", *(folders or {}).values()} for name in changed}

    def rank(each: AuditFinding) -> tuple[bool, int, bool]:
        return not each.fails, list(FindingLevel).index(each.level), each.file_lines[0] not in own_files

    return sorted(found, key=rank) if result.base is not None else found


def _broken(source: AuditedSource, result: GateResult) -> Iterator[AuditFinding]:
    """Yield each cause of broken rules, with the classes that share it."""
    causes: dict[tuple[object, ...], list[tuple[Row, tuple[Row, ...]]]] = {}
    for verdicts in source.subjects:
        for row, also in verdicts.findings:
            shown = shown_of((row, also), result.failing)
            key = *cause_of(shown), shown in result.failing
            causes.setdefault(key, []).append((shown, tuple(each for each in (row, *also) if each != shown)))
    for members in causes.values():
        row, also = min(members, key=lambda each: REACHES.index(reach_kind(each[0].reach)))
        reference = source.references.get((subject_of(row), row.rule), "")
        names = list(dict.fromkeys(subject_of(each) for each, _ in members))
        own = (name for name in names if source.members.get(name) == _file(row))
        subject = next(own, subject_of(row))
        others = tuple(name for name in names if name != subject)
        effects = ", ".join(dict.fromkeys(str(each.rule) for each in also))
        finding = _of_row(row, reference, fails=row in result.failing)
        yield replace(
            finding,
            subject=subject,
            others=others,
            new=result.why(row),
            in_base=result.in_base(row),
            level=_level_of(row, result),
            key="|".join((subject, row.rule, row.regime, row.shape or "")),
            detail=f"{finding.detail}; with it {effects}" if effects else finding.detail,
        )


def _file(row: Row) -> str:
    return (row.where or "").partition(":")[0]


def _level_of(row: Row, result: GateResult) -> FindingLevel:
    """Return an error for what fails, a note for what the base or a catalogue has, else a warning."""
    if row in result.failing:
        return FindingLevel.ERROR
    old = result.in_base(row)
    known = row.verdict is Verdict.XFAIL if old is None else old
    return FindingLevel.NOTE if known else FindingLevel.WARNING


def _not_measured(source: AuditedSource, result: GateResult) -> Iterator[AuditFinding]:
    for row in (row for verdicts in source.subjects for row in verdicts.rows):
        if row in result.failing and row.verdict not in BROKEN:
            mended = row.verdict is Verdict.IMPROVED
            words = "is known to be broken, and kept now" if mended else "was not tested"
            yield _unmeasured(row, words, fails=True)
    for verdicts in source.subjects:
        rows = [row for row in result.unjudged if subject_of(row) == verdicts.model_class]
        if result.base is None:
            yield from (_unmeasured(row, "was not judged", fails=True) for row in rows)
        elif rows:
            # One change may keep many rules from being judged: the class is one finding.
            rules = ", ".join(dict.fromkeys(f"{row.rule} {result.why(row)}" for row in rows))
            finding = _unmeasured(rows[0], "is not judged as before", fails=True)
            yield replace(
                finding, new=rules, in_base=False, where=source.members.get(verdicts.model_class, "")
            )


def input_findings(
    label: str, driven: Iterable[tuple[InputStanding, Row[Promise]]], folder: str = ""
) -> list[AuditFinding]:
    """Return the inputs at risk of a source that break a promise, or could not be driven."""
    found = []
    for row, result in driven:
        if result.verdict not in (Verdict.FAIL, Verdict.ERROR):
            continue
        promise = result.rule if result.verdict is Verdict.FAIL else None
        judged = JudgedRule(str(promise), promise.word, promise.text) if promise else _NOT_DRIVEN
        where = result.where or f"{row.member}:{row.line}"
        found.append(
            AuditFinding(
                judged,
                FindingLevel.ERROR,
                row.model_class,
                f"its input {row.input}: {result.detail}",
                f"{folder}{where}",
                f"{row.model_class}|{row.member}|{row.input}|{judged.id}",
                fails=True,
                properties={"source": label, **({"arm": result.arm} if promise else {})},
            )
        )
    return found


def folder_of(text: str) -> str:
    """Return the folder of a source below the root of the repository, with a slash; "" for what is no tree.

    The root is GITHUB_WORKSPACE, or the current folder: `--source python` has its files in `python/`.
    """
    source = open_source(text)
    if not isinstance(source, Tree):
        return ""
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
    folder = source.root.resolve()
    inside = folder.is_relative_to(root) and folder != root
    return f"{folder.relative_to(root).as_posix()}/" if inside else ""


def _of_row(row: Row, reference: str, *, fails: bool) -> AuditFinding:
    trace = f"'{row.trace}': " if row.trace else ""
    known = row.verdict is Verdict.XFAIL
    named = (
        ("promise", row.promise), ("source", row.source), ("regime", row.regime), ("reach", row.reach),
        ("evidence", row.evidence), ("effect", row.effect), ("known", reference if known else None),
    )  # fmt: skip
    return AuditFinding(
        JudgedRule(str(row.rule), row.rule.word, row.rule.promise),
        FindingLevel.ERROR,
        subject_of(row),
        problem_of(row),
        row.where or "",
        "",
        fails,
        known=reference if known else "",
        properties={name: str(value) for name, value in named if value},
        detail=f"{trace}{row.detail}",
    )


def _unmeasured(row: Row, words: str, *, fails: bool) -> AuditFinding:
    subject = subject_of(row)
    judged = JudgedRule(str(row.rule), row.rule.word, row.rule.promise)
    key = "|".join((subject, row.rule, row.regime, row.shape or "", row.verdict))
    level = FindingLevel.ERROR if fails else FindingLevel.WARNING
    text = f"{row.rule} {words}"
    return AuditFinding(
        judged, level, subject, text, row.where or "", key, fails, measured=False, detail=row.detail
    )


def _of_carrier(label: str, carrier: UnjudgedCarrier, *, fails: bool) -> AuditFinding:
    """Return a carrier that was not judged: an error, or a note where it is known or in the base too."""
    known = {"known": carrier.reason} if carrier.reason else {}
    return AuditFinding(
        _NOT_JUDGED,
        FindingLevel.ERROR if fails else FindingLevel.NOTE,
        carrier.name,
        f"it was not judged: {carrier.why}",
        carrier.where,
        f"{carrier.name}|{carrier.member}|{_NOT_JUDGED.id}",
        fails=fails,
        known=carrier.reason,
        properties={"source": label, **known},
    )


_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif_text(findings: Sequence[AuditFinding]) -> str:
    """Return one run with a result for each finding that was measured, and a notification for the others."""
    results = [finding for finding in findings if finding.measured]
    order = [*map(str, Rule), *map(str, Promise), _NOT_JUDGED.id, _NOT_DRIVEN.id]
    used = sorted({finding.judged for finding in results}, key=lambda judged: order.index(judged.id))
    rules = [
        {
            "id": judged.id,
            "name": judged.word,
            "shortDescription": {"text": judged.title},
            "fullDescription": {"text": judged.sentence},
        }
        for judged in used
    ]
    unmeasured = [finding for finding in findings if not finding.measured]
    run = {
        "tool": {"driver": {"name": "deepstack-harness", "version": __version__, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(finding, used.index(finding.judged)) for finding in results],
        "invocations": [{
            "executionSuccessful": all(finding.level is not FindingLevel.ERROR for finding in unmeasured),
            "toolExecutionNotifications": [
                {"level": finding.level, "message": {"text": finding.sentence}} for finding in unmeasured
            ],
        }],
    }  # fmt: skip
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _sarif_result(finding: AuditFinding, index: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.judged.id,
        "ruleIndex": index,
        "level": finding.level,
        "message": {"text": finding.sentence},
        "locations": [_sarif_location(finding)],
        "partialFingerprints": {"deepstackHarness/v1": hashlib.sha256(finding.key.encode()).hexdigest()[:16]},
        "properties": dict(finding.properties),
    }
    if finding.in_base is not None:
        result["baselineState"] = "unchanged" if finding.in_base else "new"
    if link := link_of(finding.known):
        result["workItemUris"] = [link]
    return result


def _sarif_location(finding: AuditFinding) -> dict[str, Any]:
    names = (finding.subject, *finding.others)
    location: dict[str, Any] = {"logicalLocations": [{"name": name, "kind": "type"} for name in names]}
    file, lines = finding.file_lines
    if file:
        physical: dict[str, Any] = {"artifactLocation": {"uri": file, "uriBaseId": "%SRCROOT%"}}
        if lines:
            physical["region"] = {"startLine": lines[0], "endLine": lines[1]}
        location["physicalLocation"] = physical
    return location


_KINDS = {FindingLevel.ERROR: "error", FindingLevel.WARNING: "warning", FindingLevel.NOTE: "notice"}
"""The words of GitHub for the levels of SARIF, the worst first."""


def annotations_of(findings: Sequence[AuditFinding], answer: str, *, good: bool) -> Iterator[str]:
    """Yield a workflow command for each finding that the base lacks, and a last one with the answer.

    GitHub shows ten of a kind for each step: the last one of a kind counts the others.
    """
    new = [finding for finding in findings if not finding.in_base]
    for level, kind in _KINDS.items():
        chosen = [finding for finding in new if finding.level is level]
        for finding in chosen[:MOST_ANNOTATIONS]:
            file, lines = finding.file_lines
            title = f"{finding.judged.title}: {finding.subject}"
            yield annotation(kind, title, shortened(finding.sentence, _LONGEST), file, lines)
        if (left := len(chosen) - MOST_ANNOTATIONS) > 0:
            yield annotation(kind, "and more", f"{plural(left, 'finding')} more; --sarif has them all")
    old = (
        f"; {plural(len(findings) - len(new), 'finding')} of the base left out"
        if len(new) < len(findings)
        else ""
    )
    yield annotation("notice" if good else "error", "deepstack audit", f"{answer}{old}")


_LONGEST = 1_000
"""Characters of a finding's text; GitHub cuts the annotations of a step at 64 KiB."""


MOST_MARKDOWN_BYTES = 60_000
"""GitHub takes 65,536 characters for a comment; a job's summary may be longer."""


def markdown_of(findings: Sequence[AuditFinding], answer: str, *, good: bool) -> str:
    """Return a heading, and a table of the findings: those that fail first, those of the base last.

    Never longer than a comment may be; what found no room is counted.
    """
    lines = [f"## {'✅' if good else '❌'} deepstack audit", "", plain(answer), ""]
    ordered = sorted(
        findings,
        key=lambda each: (bool(each.in_base), list(FindingLevel).index(each.level)),
    )
    if not ordered:
        return "\n".join([*lines, "No finding.", ""])
    lines += table_head(["", "rule", "class", "place", "reach", "state", "what was seen"])
    size, shown = sum(len(line.encode()) + 1 for line in lines), 0
    for finding in ordered:
        line = _markdown_row(finding)
        size += len(line.encode()) + 1
        if size > MOST_MARKDOWN_BYTES:
            break
        lines.append(line)
        shown += 1
    if shown < len(ordered):
        lines += ["", f"{plural(len(ordered) - shown, 'finding')} found no room here; --sarif has them all."]
    return "\n".join([*lines, ""])


_SIGNS = {FindingLevel.ERROR: "❌", FindingLevel.WARNING: "⚠️", FindingLevel.NOTE: ""}


def _markdown_row(finding: AuditFinding) -> str:
    link = link_of(finding.known)
    known = f"[known]({link})" if link else "known" if finding.known else "not known"
    base = {True: "in the base", False: "new here", None: ""}[finding.in_base]
    return table_row([
        _SIGNS[finding.level],
        cell_text(finding.judged.title),
        cell_text(", ".join((finding.subject, *finding.others))),
        code(finding.where, in_table=True),
        cell_text(finding.properties.get("reach", "")),
        ", ".join(filter(None, [known, base])),
        cell_text(shortened(one_line(finding.sentence), 500)),
    ])  # fmt: skip
