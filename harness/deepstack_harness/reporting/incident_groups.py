"""Cases of a run by their incident: what each subject was expected to break, and what it broke."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deepstack_harness.catalogue.incidents import Incident, catalogue
from deepstack_harness.catalogue.upstream import link_of
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import BROKEN, UNEXPECTED, WORST_FIRST, Verdict, worst
from deepstack_harness.reporting.run_data import RunData
from deepstack_harness.results.records import CaseRecord

NO_INCIDENT = "Cases of no incident: the traces of the contract, and those of tests"


@dataclass(frozen=True)
class SubjectLine:
    """One subject of an incident: the rules that its cases are known to break, and those that they broke."""

    subject: str
    cases: int
    expected: tuple[Rule, ...]
    seen: tuple[Rule, ...]
    verdict: Verdict

    @property
    def unexpected(self) -> bool:
        """Say whether a judgement of its cases is unexpected."""
        return self.verdict in UNEXPECTED


@dataclass(frozen=True)
class IncidentGroup:
    """All cases of one incident; `incident` is None for cases of none, and for one that is not known here."""

    key: str
    incident: Incident | None
    subjects: tuple[SubjectLine, ...]
    cases: frozenset[str]
    seconds: float

    @property
    def title(self) -> str:
        """The title of the incident with its id."""
        return f"{self.key}: {self.incident.title}" if self.incident else self.key or NO_INCIDENT

    @property
    def anchor(self) -> str:
        """The place in the page, the same in every run."""
        return f"incident-{self.key or 'none'}"

    @property
    def links(self) -> tuple[tuple[str, str | None], ...]:
        """References, each with its address upstream."""
        return tuple((name, link_of(name)) for name in self.incident.references) if self.incident else ()

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of its cases."""
        return worst(line.verdict for line in self.subjects)

    @property
    def unexpected(self) -> bool:
        """Say whether somebody has to look."""
        return self.verdict in UNEXPECTED


def incident_groups(run: RunData) -> list[IncidentGroup]:
    """Return all incidents of which a case was played, those with something unexpected first."""
    known = {incident.id: incident for incident in catalogue()}
    cases: dict[str, list[CaseRecord]] = defaultdict(list)
    for case in run.cases.values():
        cases[case.incident or ""].append(case)
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in run.rows:
        rows[row.case].append(row)
    groups = [
        IncidentGroup(
            key,
            known.get(key),
            tuple(_lines(members, rows)),
            frozenset(case.case for case in members),
            sum(case.seconds for case in members),
        )
        for key, members in cases.items()
    ]
    order = {key: place for place, key in enumerate(known)}
    return sorted(
        groups,
        key=lambda group: (WORST_FIRST.index(group.verdict), order.get(group.key, len(order)), group.key),
    )


def _lines(cases: Iterable[CaseRecord], rows: dict[str, list[Row]]) -> list[SubjectLine]:
    by_subject: dict[str, list[CaseRecord]] = defaultdict(list)
    for case in cases:
        by_subject[case.subject].append(case)
    return [_line(subject, members, rows) for subject, members in by_subject.items()]


def _line(subject: str, cases: Sequence[CaseRecord], rows: dict[str, list[Row]]) -> SubjectLine:
    judged = [row for case in cases for row in rows[case.case]]
    return SubjectLine(
        subject,
        len(cases),
        _in_order(rule for case in cases for rule in case.expected or ()),
        _in_order(row.rule for row in judged if row.verdict in BROKEN),
        worst([row.verdict for row in judged] or [Verdict.SKIP]),
    )


def _in_order(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    found = set(rules)
    return tuple(rule for rule in Rule if rule in found)
