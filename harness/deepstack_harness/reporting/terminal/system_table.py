"""The tables of systems that play no trace, in `repro` and `audit`: a line per subject and rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepstack_harness.auditing.places import inside_package
from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.rules import names_of
from deepstack_harness.reporting.terminal.audit_table import figure_of
from deepstack_harness.reporting.terminal.output import Column, Output
from deepstack_harness.reporting.terminal.repro_table import show_incident

if TYPE_CHECKING:
    from deepstack_harness.auditing.systems import JudgedSubject
    from deepstack_harness.catalogue.incidents import Incident

_HEADINGS = ("subject", "rule", "verdict", "figure", "seen")


def show_judged(output: Output, judged: JudgedSubject, width: int, indent: int = 0) -> None:
    """Print for each rule its verdict, its figure and what was seen, and under them further measurements."""
    columns = _columns(width + indent)
    for row in judged.rows:
        first, *more = list(filter(None, [row.detail, judged.figures])) or [""]
        cells = [" " * indent + judged.subject, row.rule, row.verdict.word, figure_of(row), first]
        output.row(columns, cells, row.verdict.style)
        for words in more:
            output.row(columns, ["", "", "", "", words])
    for record in judged.records:
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

    def add(self, judged: JudgedSubject) -> None:
        """Print the next subject."""
        show_judged(self._output, judged, self._width)

    def close(self, found: Sequence[JudgedSubject]) -> None:
        """Print whether our variants are as the catalogue has them, and which are not."""
        wrong = [one for one in found if not one.as_expected]
        self._output.line()
        for one in wrong:
            wanted = names_of(one.must_break or ())
            self._output.line(f"not as expected: {one.subject} broke {_seen(one)}, expected {wanted}")
        if wrong:
            self._output.verdict(f"not as the catalogue expects: {plural(len(wrong), 'subject')}", good=False)
            return
        rules, faulty, fixed = self._incident.rules, self._incident.faulty, self._incident.fixed
        said = f"shown: rule {names_of(rules)} broken by {', '.join(faulty)}, kept by {', '.join(fixed)}"
        self._output.verdict(said, good=True)

    def close_source(self, label: str, module: str, found: Sequence[JudgedSubject]) -> None:
        """Print whether a source has the fault, and where (file inside its top-level `module`, and line)."""
        wrong = [one for one in found if one.broken or one.unjudged]
        self._output.line()
        for one in wrong:
            self._output.line(f"where: {inside_package(one.where, module)}")
        for one in wrong:
            has = "HAS" if one.broken else "may have"
            said = f"{label}, {one.subject}: {has} incident {self._incident.id}, breaks {_seen(one)}"
            self._output.verdict(said, good=False)
        if not wrong:
            subjects = ", ".join(one.subject for one in found)
            self._output.verdict(f"{label}, {subjects}: free of incident {self._incident.id}", good=True)


def _seen(one: JudgedSubject) -> str:
    return names_of(one.broken) + (f", unjudged {names_of(one.unjudged)}" if one.unjudged else "")


def _columns(width: int) -> list[Column]:
    return [Column(width), Column(4), Column(10), Column(17), Column(0)]
