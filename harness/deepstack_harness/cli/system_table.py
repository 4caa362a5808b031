"""The lines of systems that play no trace, in `audit` and `repro`: a line for each subject and rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from deepstack_harness.contract.rules import names_of
from deepstack_harness.document.blocks import (
    BLANK,
    Column,
    Document,
    Heading,
    Line,
    outcome,
    table_line,
)
from deepstack_harness.document.shown import shown
from deepstack_harness.sources.source import inside_package
from deepstack_harness.text import plural

if TYPE_CHECKING:
    from deepstack_harness.audit.audited_source import AuditedSource
    from deepstack_harness.audit.systems import JudgedSubject
    from deepstack_harness.catalogue.incidents import Incident


def system_columns(subjects: Iterable[str]) -> list[Column]:
    """Return the columns of a table, the first as wide as the longest of the subjects."""
    width = max(map(len, ["subject", *subjects]))
    return [Column("subject", width), Column("rule", 4), Column("verdict", 10), Column("figure")]


def show_subject(subject: JudgedSubject, columns: Sequence[Column], indent: int = 0) -> Document:
    """Print for each rule its verdict, its figure and what was seen, and under them further measurements."""
    for row in subject.rows:
        cells = [" " * indent + subject.model_class, row.rule, row.verdict.word, shown(row).figure]
        yield table_line(columns, cells, row.verdict.style)
        for words in filter(None, [row.detail, subject.figures]):
            yield Line(words, lead="    ")
    yield from subject.records


def show_as_expected(incident: Incident, variants: Sequence[JudgedSubject]) -> Document:
    """Print whether our variants are as the catalogue has them, and which are not."""
    wrong = [variant for variant in variants if not variant.as_expected]
    yield BLANK
    for variant in wrong:
        wanted = names_of(variant.must_break or ())
        yield Line(
            f"not as expected: {variant.model_class} broke {_broken_rules(variant)}, expected {wanted}"
        )
    if wrong:
        yield outcome(f"not as the catalogue expects: {plural(len(wrong), 'subject')}", good=False)
        return
    by = f"broken by {', '.join(incident.faulty)}, kept by {', '.join(incident.fixed)}"
    yield outcome(f"shown: rule {names_of(incident.rules)} {by}", good=True)


def show_source_verdict(
    incident: Incident, label: str, module: str, subjects: Sequence[JudgedSubject]
) -> Document:
    """Print whether a source has the fault, and where (file inside its top-level `module`, and line)."""
    wrong = [subject for subject in subjects if subject.broken or subject.unjudged]
    yield BLANK
    for subject in wrong:
        yield Line(f"where: {inside_package(subject.where, module)}")
    for subject in wrong:
        has = "HAS" if subject.broken else "may have"
        text = (
            f"{label}, {subject.model_class}: {has} incident {incident.id}, breaks {_broken_rules(subject)}"
        )
        yield outcome(text, good=False)
    if not wrong:
        names = ", ".join(subject.model_class for subject in subjects)
        yield outcome(f"{label}, {names}: free of incident {incident.id}", good=True)


def _broken_rules(subject: JudgedSubject) -> str:
    unjudged = f", unjudged {names_of(subject.unjudged)}" if subject.unjudged else ""
    return f"{names_of(subject.broken)}{unjudged}"


def show_systems(sources: Sequence[AuditedSource]) -> Document:
    """Print a line for each subject of each source, and a sentence where a source has none.

    Sources of engines that have none of these systems are left out.
    """
    with_systems = [source for source in sources if source.systems or source.no_systems]
    if not with_systems:
        return
    yield Heading("other systems")
    width = max(
        (len(subject.model_class) for source in with_systems for subject in source.systems), default=0
    )
    columns = [Column(width=width + 2), *system_columns([])[1:]]
    for source in with_systems:
        yield Line(source.label)
        for subject in source.systems:
            yield from show_subject(subject, columns, indent=2)
        for sentence in source.no_systems:
            yield Line(f"  not judged: {sentence}")
    yield BLANK
