"""The findings of an audit: each cause of broken rules once, and what was not judged."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from deepstack_harness.audit.audited_source import AuditedSource
from deepstack_harness.audit.gate import GateResult, cause_of, shown_of, subject_of
from deepstack_harness.catalogue.orders import REACHES, reach_kind
from deepstack_harness.contract.rules import Promise
from deepstack_harness.contract.verdicts import BROKEN, Row, Verdict
from deepstack_harness.document.findings import LEVELS, ReportedRow
from deepstack_harness.engines.known import open_source
from deepstack_harness.sources.tree import Tree

if TYPE_CHECKING:
    from deepstack_harness.audit.inputs import InputStanding


def audit_findings(
    audited: Sequence[AuditedSource],
    result: GateResult,
    folders: Mapping[str, str] | None = None,
    changed: Collection[str] = (),
) -> list[ReportedRow]:
    """Return the findings of an audit, one for each cause.

    With a base those that fail come first, then those in `changed` files. Classes that break a rule by the
    same lines have one cause. `result` states which findings fail the audit and which are new, and `folders`
    has the folder of each source (by label) below the root of the repository, with a slash at the end.
    """
    found = [
        replace(finding, folder=(folders or {}).get(source.label, ""))
        for source in audited
        for finding in (*_broken(source, result), *_not_measured(source, result), *_carriers(source, result))
    ]
    levels = list(LEVELS)

    def rank(row: ReportedRow) -> tuple[bool, int, bool]:
        file = row.file_lines[0]
        return not row.fails, levels.index(row.level), file.removeprefix(row.folder) not in changed

    return sorted(found, key=rank) if result.base is not None else found


def _broken(source: AuditedSource, result: GateResult) -> Iterator[ReportedRow]:
    """Yield each cause of broken rules, with the classes that share it."""
    causes: dict[tuple[object, ...], list[tuple[Row, tuple[Row, ...]]]] = {}
    for verdicts in source.subjects:
        for row, also in verdicts.findings:
            shown = shown_of((row, also), result.failing)
            key = *cause_of(shown), shown in result.failing
            effects = tuple(other for other in (row, *also) if other != shown)
            causes.setdefault(key, []).append((shown, effects))
    for members in causes.values():
        row, also = min(members, key=lambda member: REACHES.index(reach_kind(member[0].reach)))
        names = list(dict.fromkeys(subject_of(shown) for shown, _ in members))
        file = (row.where or "").partition(":")[0]
        subject = next((name for name in names if source.members.get(name) == file), subject_of(row))
        known = source.references.get((subject_of(row), row.rule), "")
        yield ReportedRow(
            row if row.model_class is None else replace(row, model_class=subject),
            also,
            tuple(name for name in names if name != subject),
            row in result.failing,
            result.in_base(row),
            result.why(row),
            known if row.verdict is Verdict.XFAIL else "",
        )


def _not_measured(source: AuditedSource, result: GateResult) -> Iterator[ReportedRow]:
    for verdicts in source.subjects:
        for row in verdicts.rows:
            if row in result.failing and row.verdict not in BROKEN:
                yield ReportedRow(row)
    for verdicts in source.subjects:
        rows = [row for row in result.unjudged if subject_of(row) == verdicts.model_class]
        if result.base is None:
            yield from map(ReportedRow, rows)
        elif rows:
            # One change may keep many rules from being judged: the class is one finding.
            row = replace(rows[0], where=source.members.get(verdicts.model_class))
            rules = ", ".join(dict.fromkeys(f"{row.rule} {result.why(row)}" for row in rows))
            yield ReportedRow(row, in_base=False, new=rules)


def _carriers(source: AuditedSource, result: GateResult) -> Iterator[ReportedRow]:
    """Yield each carrier that was not judged: an error, or a note where it is known or in the base too."""
    for carrier in source.account.unjudged:
        row = replace(carrier.row(source.label, source.package), detail=carrier.why)
        fails = carrier in result.carriers
        yield ReportedRow(
            row, fails=fails, in_base=None if result.base is None else not fails, known=carrier.reason
        )


def input_findings(
    driven: Iterable[tuple["InputStanding", Row[Promise]]], folder: str = ""
) -> list[ReportedRow]:
    """Return the inputs at risk of a source that break a promise, or could not be called."""
    found = []
    for standing, row in driven:
        if row.verdict in (Verdict.FAIL, Verdict.ERROR):
            where = row.where or f"{standing.member}:{standing.line}"
            named = replace(row, model_class=standing.model_class, inputs=(standing.input,), where=where)
            judged: Row[Promise] | Row[None] = named
            if row.verdict is Verdict.ERROR:
                judged = Row(
                    revision=row.revision, source=row.source, model_class=standing.model_class, rule=None,
                    inputs=named.inputs, verdict=row.verdict, detail=row.detail, where=where,
                )  # fmt: skip
            found.append(ReportedRow(judged, folder=folder))
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
