"""The table of `repro`, row by row as cases finish, and the sentences under it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepstack_harness.catalogue.incidents import Incident
from deepstack_harness.catalogue.matrix import Planned
from deepstack_harness.contract.arm_spec import Backend
from deepstack_harness.contract.case import NOT_FINITE, Distances
from deepstack_harness.contract.rules import Rule
from deepstack_harness.reporting.terminal.output import Column, Output

if TYPE_CHECKING:
    from deepstack_harness.play.cells import Cell

_HEADINGS = ("revision", "arm", "to eager", "to no-deepstack", "graphs", "recompiles", "rules broken")
_BACKENDS = {
    Backend.NONE: "not compiled",
    Backend.EAGER: "torch.compile, backend eager",
    Backend.AOT_EAGER: "torch.compile, backend aot_eager",
    Backend.INDUCTOR: "torch.compile, backend inductor",
}


def show_incident(output: Output, incident: Incident) -> None:
    """What is about to be shown, and where it was reported."""
    output.line(f"incident {incident.id} ({incident.name}): {incident.title}", "bold")
    references = ", ".join(incident.references)
    output.line(f"references: {references}" if incident.reported else f"not reported; shown by {references}")
    output.line(f"seen as: {incident.symptom}")


class ReproTable:
    """Prints cells as they come; `output` decides what is seen."""

    def __init__(self, output: Output, incident: Incident, plan: Sequence[Planned]) -> None:
        """Print what is about to be shown; `plan` is what the columns have to hold."""
        self.output = output
        self._incident = incident
        self._backend: Backend | None = None
        self._trace = ""
        self._columns = _columns(plan)
        show_incident(output, incident)

    def add(self, cell: Cell) -> None:
        """One row, with a heading where backend or trace change."""
        case = cell.case
        if (case.arm.backend, str(case.trace)) != (self._backend, self._trace):
            self._heading(cell)
        distances = _worst(cell)
        graphs = cell.observation.graphs
        cells = [
            case.revision,
            case.arm.name,
            _number(distances.eager if distances else None),
            _number(distances.no_deepstack if distances else None),
            "-" if graphs is None else str(graphs.graphs),
            "-" if graphs is None else str(graphs.recompiles),
            _rules(cell),
        ]
        self.output.row(self._columns, cells, _style(cell))
        for row in cell.rows(self._incident.id):
            self.output.record(row)

    def diagnose(self, cells: Sequence[Cell]) -> None:
        """The cause, once per sentence, with the revisions it holds for."""
        from deepstack_harness.oracles.diagnosis import diagnose

        causes: dict[str, set[str]] = {}
        for cell in cells:
            if cell.broken & set(self._incident.rules) and (
                sentence := diagnose(cell.case, cell.observation)
            ):
                causes.setdefault(sentence, set()).add(cell.case.revision)
        self.output.line()
        for sentence, revisions in list(causes.items())[:1]:
            self.output.line(f"diagnosis ({', '.join(sorted(revisions))}): {sentence}.")

    def shown(self, cells: Sequence[Cell]) -> None:
        """The closing line when everything is as the catalogue says."""
        arms = list(dict.fromkeys(cell.case.arm.name for cell in cells if Rule.R0 in cell.broken))
        if arms:
            self.output.line(f"wrong without an error under: {', '.join(arms)}")
        faulty, fixed = ", ".join(self._incident.faulty), ", ".join(self._incident.fixed)
        rules = " and ".join(self._incident.rules)
        self.output.verdict(f"shown: rules {rules} broken by {faulty}, kept by {fixed}", good=True)

    def unexpected(self, cells: Sequence[Cell]) -> None:
        """The closing lines when a cell is not as expected: what was expected, and what was seen."""
        for cell in cells:
            wanted = _names(cell.planned.must_break)
            seen = _names(cell.broken) + (f", unjudged {_names(cell.unjudged)}" if cell.unjudged else "")
            where = f"{cell.case.revision} under {cell.case.arm.name} on '{cell.case.trace}'"
            self.output.line(f"not as expected: {where} broke {seen}, expected {wanted}")
            for said in cell.judgements:
                if said.rule in cell.broken | cell.unjudged:
                    self.output.line(f"  {said.rule} {said.verdict}: {said.detail}")
        self.output.verdict(f"not shown as the catalogue has it: {len(cells)} cases differ", good=False)

    def source_verdict(self, what: str, where: str, faulty: Sequence[Cell], unjudged: Sequence[Cell]) -> None:
        """Whether a vLLM source (`what`: label and class) has the fault, and where (file:line)."""
        if unjudged:
            self.unexpected(unjudged)
        elif not faulty:
            self.output.verdict(f"{what}: free of incident {self._incident.id}", good=True)
        else:
            rules = frozenset[Rule]().union(*(cell.broken for cell in faulty)) & set(self._incident.rules)
            self.output.line(f"where: {where}")
            self.output.verdict(
                f"{what}: HAS incident {self._incident.id}, breaks {_names(rules)}", good=False
            )

    def _heading(self, cell: Cell) -> None:
        case = cell.case
        self._backend, self._trace = case.arm.backend, str(case.trace)
        self.output.line()
        self.output.line(f"{_BACKENDS[case.arm.backend]}, trace '{case.trace}'", "bold")
        if cell.planned.note:
            self.output.line(cell.planned.note)
        self.output.row(self._columns, _HEADINGS, "dim")


def _columns(plan: Sequence[Planned]) -> list[Column]:
    """Names to the left, figures to the right; the last column takes what is left."""
    names = [
        max(map(len, words)) for words in ([p.case.revision for p in plan], [p.case.arm.name for p in plan])
    ]
    left = [Column(max(width, len(title))) for width, title in zip(names, _HEADINGS, strict=False)]
    return [*left, *(Column(len(title), right=True) for title in _HEADINGS[2:-1]), Column(0)]


def _worst(cell: Cell) -> Distances | None:
    """The run that is furthest from eager, of those that a payload takes part in."""
    distances = (facts.distances for facts in cell.observation.steps)
    measured = [found for found in distances if found is not None and found.effect > 0]
    return max(measured, key=lambda found: found.eager, default=None)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return "not finite" if value == NOT_FINITE else f"{value:.2g}"


def _rules(cell: Cell) -> str:
    unjudged = f", not judged: {_names(cell.unjudged)}" if cell.unjudged else ""
    raised = next((facts.raised for facts in cell.observation.steps if facts.raised), None)
    why = f" ({raised.call} raised {raised.type})" if raised else ""
    return _names(cell.broken) + why + unjudged


def _names(rules: frozenset[Rule] | None) -> str:
    return " ".join(rule for rule in Rule if rule in (rules or ())) or "none"


def _style(cell: Cell) -> str:
    if cell.unjudged:
        return "yellow"
    return "red" if cell.broken else ""
