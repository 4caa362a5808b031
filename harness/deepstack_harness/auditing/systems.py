"""Incidents of systems that play no trace: each system has an auditor of its own, which answers in rows.

Systems are named in `catalogue.registry.SYSTEMS`; `repro` and `audit` ask them through `SystemAuditor`.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from typing_extensions import TypeIs, override

from deepstack_harness.auditing.source_worker import SourceWorker
from deepstack_harness.catalogue.incidents import Incident
from deepstack_harness.catalogue.registry import SYSTEMS
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import RuleVerdicts, Verdict


@dataclass(frozen=True)
class JudgedSubject(RuleVerdicts):
    """One subject of an incident, judged: a row for each rule, and the rules that it must break.

    `must_break` is None where no catalogue says so (a user's source).  `figures` are further
    measurements, in words: ratios, counts.  `where` is the file and line that was judged, of a source.
    """

    subject: str
    must_break: frozenset[Rule] | None
    rows: tuple[Row, ...]
    figures: str = ""
    where: str = ""

    @property
    @override
    def verdicts(self) -> Collection[tuple[Rule, Verdict]]:
        return [(row.rule, row.verdict) for row in self.rows]

    @property
    def records(self) -> tuple[Row, ...]:
        """The rows as programs read them, the figures among their details."""
        return tuple(
            replace(row, detail="; ".join(filter(None, [row.detail, self.figures]))) for row in self.rows
        )

    @property
    def as_expected(self) -> bool:
        """Say whether exactly the expected rules are broken, and every rule could be judged."""
        return self.breaks_exactly(self.must_break)


class SystemAuditor(Protocol):
    """Auditor of the incidents of one system: it judges their subjects."""

    def ours(self, incident: Incident) -> Iterator[JudgedSubject]:
        """Judge every faulty and every fixed variant."""
        ...

    def theirs(self, incident: Incident, worker: SourceWorker) -> Iterator[JudgedSubject]:
        """Judge the classes and helpers that a source has of the system.

        Raises `UsageError` where the source, or any source, has nothing of the kind.
        """
        ...


def system_of(incident: Incident) -> SystemAuditor:
    """Return the auditor of an incident's system; raises `UsageError` for an unknown system."""
    return SYSTEMS.load(incident.system, _makes_auditors, "a class of the protocol SystemAuditor")()


def _makes_auditors(found: object) -> TypeIs[Callable[[], SystemAuditor]]:
    return isinstance(found, type)


def must_break(incident: Incident, variant: str) -> frozenset[Rule]:
    """Return the rules that a variant must break: all of the incident's for a faulty one, none for others."""
    return frozenset(incident.rules) if variant in incident.faulty else frozenset()
