"""The lines of systems that play no trace, in `audit` and `repro`: a line for each subject and rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepstack_harness.audit.systems import SourceSystems
from deepstack_harness.cli.output import Column, Output
from deepstack_harness.cli.repro_table import show_incident
from deepstack_harness.contract.rules import names_of
from deepstack_harness.document.shown import shown
from deepstack_harness.sources.source import inside_package
from deepstack_harness.text import plural

if TYPE_CHECKING:
    from deepstack_harness.audit.systems import JudgedSubject
    from deepstack_harness.catalogue.incidents import Incident

_HEADINGS = ("subject", "rule", "verdict", "figure", "seen")


def show_subject(output: Output, subject: JudgedSubject, width: int, indent: int = 0) -> None:
    """Print for each rule its verdict, its figure and what was seen, and under them further measurements."""
    columns = _columns(width + indent)
    for row in subject.rows:
        first, *more = list(filter(None, [row.detail, subject.figures])) or [""]
        cells = [" " * indent + subject.subject, row.rule, row.verdict.word, shown(row).figure, first]
        output.row(columns, cells, row.verdict.style)
        for words in more:
            output.row(columns, ["", "", "", "", words])
    for record in subject.records:
        output.record(record)


class SystemTable:
    """Table of subjects, printed as they are judged; `output` decides what is seen."""

    def __init__(self, output: Output, incident: Incident, width: int) -> None:
        """Print what is about to be shown; `width` is that of the longest subject."""
        self._output = output
        self._incident = incident
        self._width = max(width, len(_HEADINGS[0]))
        show_incident(output, incident)
        output.line()
        output.row(_columns(self._width), _HEADINGS, "dim")

    def add(self, subject: JudgedSubject) -> None:
        """Print the next subject."""
        show_subject(self._output, subject, self._width)

    def close(self, variants: Sequence[JudgedSubject]) -> None:
        """Print whether our variants are as the catalogue has them, and which are not."""
        wrong = [variant for variant in variants if not variant.as_expected]
        self._output.line()
        for variant in wrong:
            wanted = names_of(variant.must_break or ())
            broken = _broken_rules(variant)
            self._output.line(f"not as expected: {variant.subject} broke {broken}, expected {wanted}")
        if wrong:
            self._output.verdict(f"not as the catalogue expects: {plural(len(wrong), 'subject')}", good=False)
            return
        rules, faulty, fixed = self._incident.rules, self._incident.faulty, self._incident.fixed
        shown = f"shown: rule {names_of(rules)} broken by {', '.join(faulty)}, kept by {', '.join(fixed)}"
        self._output.verdict(shown, good=True)

    def close_source(self, label: str, module: str, subjects: Sequence[JudgedSubject]) -> None:
        """Print whether a source has the fault, and where (file inside its top-level `module`, and line)."""
        wrong = [subject for subject in subjects if subject.broken or subject.unjudged]
        self._output.line()
        for subject in wrong:
            self._output.line(f"where: {inside_package(subject.where, module)}")
        number = self._incident.id
        for subject in wrong:
            has = "HAS" if subject.broken else "may have"
            text = f"{label}, {subject.subject}: {has} incident {number}, breaks {_broken_rules(subject)}"
            self._output.verdict(text, good=False)
        if not wrong:
            names = ", ".join(subject.subject for subject in subjects)
            self._output.verdict(f"{label}, {names}: free of incident {number}", good=True)


def _broken_rules(subject: JudgedSubject) -> str:
    unjudged = f", unjudged {names_of(subject.unjudged)}" if subject.unjudged else ""
    return f"{names_of(subject.broken)}{unjudged}"


def _columns(width: int) -> list[Column]:
    return [Column(width), Column(4), Column(10), Column(17), Column(0)]


def show_systems(output: Output, sources: Sequence[SourceSystems]) -> None:
    """Print a line for each subject of each source, and a sentence where a source lacks one.

    Sources of engines that have none of these systems are left out.
    """
    with_systems = [source for source in sources if source.judged or source.refusals]
    if not with_systems:
        return
    output.line("beside the buffer", "bold")
    width = max((len(subject.subject) for source in with_systems for subject in source.judged), default=0)
    for source in with_systems:
        output.line(source.label)
        for subject in source.judged:
            show_subject(output, subject, width, indent=2)
        for sentence in source.refusals:
            output.line(f"  not judged: {sentence}")
    output.line()
