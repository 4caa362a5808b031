"""The table of `repro`, row by row as cases finish, and the sentences under it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from deepstack_harness.catalogue.incidents import Incident
from deepstack_harness.contract.arm_spec import Backend
from deepstack_harness.contract.case import PlannedCase
from deepstack_harness.contract.observation import NOT_FINITE
from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.rules import Rule, names_of
from deepstack_harness.contract.verdicts import Verdict
from deepstack_harness.oracles.diagnosis import diagnose
from deepstack_harness.oracles.distances import case_distances
from deepstack_harness.reporting.terminal.access_lines import access_lines
from deepstack_harness.reporting.terminal.output import Column, Output

if TYPE_CHECKING:
    from deepstack_harness.oracles.judged_case import JudgedCase

_HEADINGS = ("revision", "arm", "to eager", "to no-deepstack", "graphs", "recompiles", "rules broken")
_BACKENDS = {
    Backend.NONE: "not compiled",
    Backend.EAGER: "torch.compile, backend eager",
    Backend.AOT_EAGER: "torch.compile, backend aot_eager",
    Backend.INDUCTOR: "torch.compile, backend inductor",
    Backend.H200: "Triton source for an H200, interpreted: no races, PTX, layouts or graphs, torch's matrix "
    "products and attention",
}


def show_incident(output: Output, incident: Incident) -> None:
    """Print what is about to be shown, and where it was reported."""
    output.line(f"incident {incident.id} ({incident.name}): {incident.title}", "bold")
    references = ", ".join(incident.references)
    output.line(f"references: {references}" if incident.reported else f"not reported; shown by {references}")
    output.line(f"symptom: {incident.symptom}")


class IncidentTitle:
    """Title above the tables of an incident: itself once, then each of several families."""

    def __init__(self, output: Output, incident: Incident) -> None:
        """Print nothing before there is a table."""
        self.output = output
        self.incident = incident
        self._shown = False

    def show(self, family: str) -> None:
        """Print what stands above the table of a family."""
        if not self._shown:
            show_incident(self.output, self.incident)
        self._shown = True
        if len(self.incident.families) > 1:
            self.output.line()
            self.output.line(f"family {family}", "bold")


class ReproTable:
    """A table that grows with every judged case; `output` decides what is seen."""

    def __init__(self, title: IncidentTitle, plan: Sequence[PlannedCase], family: str) -> None:
        """Print what is about to be shown; `plan` is what the columns have to hold."""
        self.output = title.output
        self._incident = title.incident
        self._block: tuple[Backend, str] | None = None
        self._undiagnosed: list[JudgedCase] = []
        self._diagnosed = False
        self._columns = _columns(plan)
        title.show(family)

    @staticmethod
    def block_of(planned: PlannedCase) -> tuple[Backend, str]:
        """Return what a heading says: cases of one backend and one trace stand under one."""
        return planned.case.arm.backend, str(planned.case.trace)

    def add(self, judged: JudgedCase) -> None:
        """Print one row, with a heading where backend or trace change."""
        case, seen = judged.case, judged.observation
        if self.block_of(judged.planned) != self._block:
            self._heading(judged)
        distances = case_distances(case, seen)
        graphs = seen.graphs
        cells = [
            case.buffer.name,
            case.arm.name,
            _number(distances.eager if distances else None),
            _number(distances.no_deepstack if distances else None),
            "-" if graphs is None else str(graphs.graphs),
            "-" if graphs is None else str(graphs.recompiles),
            _rules(judged),
        ]
        self.output.row(self._columns, cells, _style(judged))
        self._undiagnosed.append(judged)
        for row in judged.rows():
            self.output.record(row)

    def end_block(self) -> None:
        """Print the cause of the first fault, once, under the rows that it explains."""
        causes: dict[str, set[str]] = {}
        for judged in self._undiagnosed:
            if judged.broken & set(self._incident.rules) and (
                sentence := diagnose(judged.case, judged.observation)
            ):
                causes.setdefault(sentence, set()).add(judged.case.buffer.name)
        for judged in self._undiagnosed:
            for line in access_lines(judged):
                self.output.line(line)
        self._undiagnosed.clear()
        for sentence, revisions in list(causes.items())[: 0 if self._diagnosed else 1]:
            self._diagnosed = True
            self.output.line(f"diagnosis ({', '.join(sorted(revisions))}): {sentence}.", "bold")

    def so_far(self, cases: Sequence[JudgedCase], seconds: float) -> None:
        """Print what is known before Inductor starts, which takes longer than all before it."""
        rules = _broken_by(cases) & set(self._incident.rules)
        if rules:
            faulty = _subjects(judged for judged in cases if judged.broken & rules)
            self._first_verdict(f"{faulty} broke {names_of(rules)}", seconds)

    def source_so_far(self, what: str, cases: Sequence[JudgedCase], seconds: float) -> None:
        """Print what is known of a source before Inductor starts."""
        rules = _broken_by(cases) & set(self._incident.rules)
        told = f"HAS incident {self._incident.id}, breaks {names_of(rules)}" if rules else "no fault seen"
        self._first_verdict(f"{what}: {told}", seconds)

    def _first_verdict(self, told: str, seconds: float) -> None:
        self.output.line()
        self.output.line(f"without Inductor: {told}; Inductor follows, about {seconds:.0f} s", "bold")

    def shown(self, cases: Sequence[JudgedCase]) -> None:
        """Print the closing line when everything is as the catalogue says."""
        arms = list(dict.fromkeys(judged.case.arm.name for judged in cases if Rule.R0 in judged.broken))
        self.output.line()
        if arms:
            self.output.line(f"wrong without an error under: {', '.join(arms)}")
        played = {judged.case.subject for judged in cases if not judged.planned.is_control}
        faulty = ", ".join(one for one in self._incident.faulty if one in played)
        fixed = ", ".join(one for one in self._incident.fixed if one in played)
        rules = " and ".join(self._incident.rules)
        noun = "rule" if len(self._incident.rules) == 1 else "rules"
        self.output.verdict(f"shown: {noun} {rules} broken by {faulty}, kept by {fixed}", good=True)

    def unexpected(self, cases: Sequence[JudgedCase]) -> None:
        """Print the closing lines when a case is not as expected: what was expected, and what was seen."""
        self.output.line()
        for judged in cases:
            case, unjudged = judged.case, judged.unjudged
            seen = names_of(judged.broken) + (f", unjudged {names_of(unjudged)}" if unjudged else "")
            where = f"{case.buffer.name} under {case.arm.name} on '{case.trace}'"
            wanted = names_of(judged.planned.must_break or ())
            self.output.line(f"not as expected: {where} broke {seen}, expected {wanted}")
            for said in judged.judgements:
                if said.rule in judged.broken | unjudged:
                    self.output.line(f"  {said.rule} {said.verdict}: {said.detail}")
        self.output.verdict(f"not as the catalogue expects: {plural(len(cases), 'case')}", good=False)

    def source_verdict(
        self, what: str, where: str, faulty: Sequence[JudgedCase], unjudged: Sequence[JudgedCase]
    ) -> None:
        """Print whether a source (`what`: label and class) has the fault, and where (file:line)."""
        if unjudged:
            self.unexpected(unjudged)
        elif not faulty:
            self.output.verdict(f"{what}: free of incident {self._incident.id}", good=True)
        else:
            rules = _broken_by(faulty) & set(self._incident.rules)
            self.output.line()
            self.output.line(f"where: {where}")
            self.output.verdict(
                f"{what}: HAS incident {self._incident.id}, breaks {names_of(rules)}", good=False
            )

    def _heading(self, judged: JudgedCase) -> None:
        case = judged.case
        self._block = self.block_of(judged.planned)
        self.output.line()
        self.output.line(f"{_BACKENDS[case.arm.backend]}, trace '{case.trace}'", "bold")
        if judged.planned.note:
            self.output.line(judged.planned.note)
        self.output.row(self._columns, _HEADINGS, "dim")


def _broken_by(cases: Iterable[JudgedCase]) -> frozenset[Rule]:
    return frozenset[Rule]().union(*(judged.broken for judged in cases))


def _subjects(cases: Iterable[JudgedCase]) -> str:
    return ", ".join(dict.fromkeys(judged.case.subject for judged in cases))


def _columns(plan: Sequence[PlannedCase]) -> list[Column]:
    """Return columns: names to the left, figures to the right; the last column takes what is left."""
    cases = [planned.case for planned in plan]
    shown = [case.buffer.name for case in cases], [case.arm.name for case in cases]
    names = [max(map(len, words)) for words in shown]
    left = [Column(max(width, len(title))) for width, title in zip(names, _HEADINGS, strict=False)]
    return [*left, *(Column(len(title), right=True) for title in _HEADINGS[2:-1]), Column(0)]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return "not finite" if value == NOT_FINITE else f"{value:.2g}"


def _rules(judged: JudgedCase) -> str:
    unjudged = f", not judged: {names_of(judged.unjudged)}" if judged.unjudged else ""
    raised = next((facts.raised for facts in judged.observation.steps if facts.raised), None)
    why = f" ({raised.call} raised {raised.type})" if raised else ""
    return names_of(judged.broken) + why + unjudged


def _style(judged: JudgedCase) -> str:
    if judged.unjudged:
        return Verdict.ERROR.style
    return Verdict.FAIL.style if judged.broken else ""
