"""Findings of an audit as a code host reads them: SARIF, annotations and Markdown.

A finding is a row with the broken rules that follow from it; the three forms are made of its words.
SARIF 2.1.0 (OASIS) is shown next to the lines of a pull request. GitHub shows annotations there without an
upload, and Markdown as the summary of a job or a comment.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepstack_harness import __version__
from deepstack_harness.catalogue.known import UNREPORTED, link_of
from deepstack_harness.contract.rules import Promise, Rule
from deepstack_harness.contract.verdicts import BROKEN, Row, Verdict
from deepstack_harness.document.blocks import Block, Code, Column, Heading, Line, Link, TextTable
from deepstack_harness.document.markdown import MOST_ANNOTATIONS, annotation, fitted
from deepstack_harness.document.shown import problem_of, shown
from deepstack_harness.text import one_line, plural, shortened

LEVELS = {"error": ("error", "❌"), "warning": ("warning", "⚠️"), "note": ("notice", "")}
"""The levels of SARIF, the worst first, with GitHub's word and a sign."""
_PLACE = re.compile(r"(?P<file>.+?)(?::(?P<first>\d+)(?:-(?P<last>\d+))?)?")


@dataclass(frozen=True)
class ReportedRow:
    """A row to look at, and what is known of it beyond the row: one cause, or something that was not judged.

    `also` are the broken rules that follow from it, and `others` the classes that have the fault from the
    same lines. The audit ends with 1 where a finding `fails`. `new` is what the base does not have so, and
    `in_base` is None without a base. `known` is the reference or the reason of its entry in the catalogue.
    `folder` is that of the source below the root of the repository.
    """

    row: Row[Rule] | Row[Promise] | Row[None]
    also: tuple[Row, ...] = ()
    others: tuple[str, ...] = ()
    fails: bool = True
    in_base: bool | None = None
    new: str = ""
    known: str = ""
    folder: str = ""

    @property
    def level(self) -> str:
        """An error for what fails, a note for what the base or a catalogue has, else a warning."""
        known = self.row.verdict in (Verdict.XFAIL, Verdict.SKIP) if self.in_base is None else self.in_base
        return "error" if self.fails else "note" if known else "warning"

    @property
    def title(self) -> str:
        """The rule with its word, or `not judged`."""
        return shown(self.row).name

    @property
    def subject(self) -> str:
        """The class, or the helper."""
        return self.row.model_class or self.row.revision

    @property
    def where(self) -> str:
        """`FILE:FIRST-LAST` below the root of the repository; empty without a place."""
        return f"{self.folder}{self.row.where}" if self.row.where else ""

    @property
    def text(self) -> str:
        """What a user of the engine notices, or what was not judged."""
        row = self.row
        if not isinstance(row.rule, Rule):
            return f"{f'its input {row.inputs[0]}' if row.inputs else 'it was not judged'}: {row.detail}"
        if row.verdict in BROKEN:
            return problem_of(row)
        words = {Verdict.IMPROVED: "is known to be broken, and is not", Verdict.MISSING: "was not tested"}
        lost = "was not judged" if self.in_base is None else "is not judged as before"
        return f"{row.rule} {words.get(row.verdict, lost)}"

    @property
    def detail(self) -> str:
        """The trace that shows it, what was seen there, and the rules that broke with it."""
        if not isinstance(self.row.rule, Rule):
            return ""
        seen = self.row.detail.replace(f" [known: {self.known}]", "")
        trace = f"'{self.row.trace}': " if self.row.trace and self.row.verdict in BROKEN else ""
        effects = ", ".join(dict.fromkeys(str(row.rule) for row in self.also))
        return f"{trace}{seen}{f'; with it {effects}' if effects else ''}"

    @property
    def reference(self) -> str:
        """What is known of it, in words; empty for what nobody has reported."""
        return "" if self.known in ("", UNREPORTED) else f"known: {self.known}"

    @property
    def sentence(self) -> str:
        """Everything about it on one line, without rule and place."""
        others = f"also in {', '.join(self.others)}" if self.others else ""
        new = f"new: {self.new}" if self.new else ""
        parts = [f"{self.subject}: {self.text}", new, self.detail, others, self.reference]
        return "; ".join(filter(None, parts))

    @property
    def file_lines(self) -> tuple[str, tuple[int, int] | None]:
        """The file, and its first and last line; "" without a place, None without lines."""
        place = _PLACE.fullmatch(self.where)
        if place is None:
            return "", None
        first = place["first"]
        return place["file"], (int(first), int(place["last"] or first)) if first else None


_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_NOT_JUDGED = "A class, function or input could not be judged, so that nothing is known of it."


def sarif_text(findings: Sequence[ReportedRow]) -> str:
    """Return one run: a result for each finding, and a notification for each rule that was not judged."""
    results: list[ReportedRow] = []
    unmeasured: list[ReportedRow] = []
    for finding in findings:
        of_rule = isinstance(finding.row.rule, Rule) and finding.row.verdict not in BROKEN
        (unmeasured if of_rule else results).append(finding)
    used = {finding.row.rule for finding in results}
    order = [rule for rule in (*Rule, *Promise, None) if rule in used]
    rules = [
        {
            "id": _rule_id(rule),
            "name": rule.word if rule else "not judged",
            "shortDescription": {"text": f"{rule} {rule.word}" if rule else "not judged"},
            "fullDescription": {"text": rule.promise if rule else _NOT_JUDGED},
        }
        for rule in order
    ]
    run = {
        "tool": {"driver": {"name": "deepstack-harness", "version": __version__, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(finding, order.index(finding.row.rule)) for finding in results],
        "invocations": [{
            "executionSuccessful": all(finding.level != "error" for finding in unmeasured),
            "toolExecutionNotifications": [
                {"level": finding.level, "message": {"text": finding.sentence}} for finding in unmeasured
            ],
        }],
    }  # fmt: skip
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule_id(rule: Rule | Promise | None) -> str:
    return str(rule) if rule else "not-judged"


def _sarif_result(finding: ReportedRow, index: int) -> dict[str, Any]:
    row = finding.row
    names = (finding.subject, *finding.others)
    location: dict[str, Any] = {"logicalLocations": [{"name": name, "kind": "type"} for name in names]}
    file, lines = finding.file_lines
    if file:
        physical: dict[str, Any] = {"artifactLocation": {"uri": file, "uriBaseId": "%SRCROOT%"}}
        if lines:
            physical["region"] = {"startLine": lines[0], "endLine": lines[1]}
        location["physicalLocation"] = physical
    # The key stays the same when lines move and versions change.
    of_rule = (finding.subject, str(row.rule), row.regime, row.shape or "")
    of_class = (finding.subject, (row.where or "").partition(":")[0], *row.inputs, _rule_id(row.rule))
    key = "|".join(of_rule if isinstance(row.rule, Rule) else of_class)
    result: dict[str, Any] = {
        "ruleId": _rule_id(row.rule),
        "ruleIndex": index,
        "level": finding.level,
        "message": {"text": finding.sentence},
        "locations": [location],
        "partialFingerprints": {"deepstackHarness/v1": hashlib.sha256(key.encode()).hexdigest()[:16]},
        "properties": _properties(finding),
    }
    if finding.in_base is not None:
        result["baselineState"] = "unchanged" if finding.in_base else "new"
    if link := link_of(finding.known):
        result["workItemUris"] = [link]
    return result


def _properties(finding: ReportedRow) -> Mapping[str, str]:
    """Return what SARIF has no place for, by the names of the columns of a row."""
    row = finding.row
    of_rule = ("promise", "source", "regime", "reach", "evidence", "effect")
    names = of_rule if isinstance(row.rule, Rule) else ("source", "arm")
    columns = {name: str(getattr(row, name) or "") for name in names}
    return {name: text for name, text in {**columns, "known": finding.known}.items() if text}


_LONGEST = 1_000
"""Characters of a finding's text; GitHub cuts the annotations of a step at 64 KiB."""


def annotations_of(findings: Sequence[ReportedRow], answer: str, *, good: bool) -> Iterator[str]:
    """Yield a workflow command for each finding that is not in the base, and a last one with the result.

    GitHub shows ten of a kind for each step: the last one of a kind counts the others.
    """
    new = [finding for finding in findings if not finding.in_base]
    for level, (kind, _) in LEVELS.items():
        chosen = [finding for finding in new if finding.level == level]
        for finding in chosen[:MOST_ANNOTATIONS]:
            title = f"{finding.title}: {finding.subject}"
            yield annotation(kind, title, shortened(finding.sentence, _LONGEST), *finding.file_lines)
        if (left := len(chosen) - MOST_ANNOTATIONS) > 0:
            yield annotation(kind, "and more", f"{plural(left, 'finding')} more; --sarif has them all")
    left_out = len(findings) - len(new)
    old = f"; {plural(left_out, 'finding')} of the base left out" if left_out else ""
    yield annotation("notice" if good else "error", "deepstack audit", f"{answer}{old}")


MOST_MARKDOWN_BYTES = 60_000
"""GitHub takes 65,536 characters for a comment; a job's summary may be longer."""
_COLUMNS = [Column(head) for head in ("", "rule", "class", "place", "reach", "state", "what was seen")]


def markdown_of(findings: Sequence[ReportedRow], answer: str, *, good: bool) -> str:
    """Return a heading, and a table of the findings: those that fail first, those of the base last.

    Never longer than a comment may be; what found no room is counted.
    """
    levels = list(LEVELS)
    ordered = sorted(findings, key=lambda each: (bool(each.in_base), levels.index(each.level)))
    table = TextTable(_COLUMNS, [(_cells(finding), "") for finding in ordered])
    blocks: list[Block] = [Heading(f"{'✅' if good else '❌'} deepstack audit"), Line(answer)]
    blocks.append(table if ordered else Line("No finding."))
    return fitted(blocks, MOST_MARKDOWN_BYTES, "finding", "--sarif has them all.")


def _cells(finding: ReportedRow) -> list[str]:
    address = link_of(finding.known)
    base = {True: "in the base", False: "new here", None: ""}[finding.in_base]
    state = ", ".join(filter(None, ["known" if finding.known else "not known", base]))
    return [
        LEVELS[finding.level][1],
        finding.title,
        ", ".join((finding.subject, *finding.others)),
        Code(finding.where),
        _properties(finding).get("reach", ""),
        Link(state, address) if address else state,
        shortened(one_line(finding.sentence), 500),
    ]
