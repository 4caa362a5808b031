"""Incidents of systems that play no trace: each has a judge of its own, who answers in rows.

Systems are named in `catalogue.registry.SYSTEMS`; `repro` and `audit` ask them through `System`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from typing_extensions import TypeIs

from deepstack_harness.catalogue.incidents import Incident
from deepstack_harness.catalogue.registry import SYSTEMS
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import BROKEN, Rule, Verdict
from deepstack_harness.sources.source import Source


@dataclass(frozen=True)
class Judged:
    """One subject of an incident, judged: a row for each rule, and which rules it must break.

    `must_break` is None where no catalogue says so (a user's source).  `figures` are
    what was measured beside, in words: ratios, counts.  `where` is the file and line
    that was judged, of a source.
    """

    subject: str
    must_break: frozenset[Rule] | None
    rows: tuple[Row, ...]
    figures: str = ""
    where: str = ""

    @property
    def records(self) -> tuple[Row, ...]:
        """The rows as programs read them, the figures among their details."""
        return tuple(
            replace(row, detail="; ".join(filter(None, [row.detail, self.figures]))) for row in self.rows
        )

    @property
    def broken(self) -> frozenset[Rule]:
        """Rules that FAIL."""
        return frozenset(Rule(row.rule) for row in self.rows if Verdict(row.verdict) in BROKEN)

    @property
    def unjudged(self) -> frozenset[Rule]:
        """Rules that ended as ERROR."""
        return frozenset(Rule(row.rule) for row in self.rows if row.verdict == Verdict.ERROR)

    @property
    def as_expected(self) -> bool:
        """Whether exactly the expected rules are broken, and every rule could be judged."""
        return not self.unjudged and self.must_break in (None, self.broken)


class System(Protocol):
    """Judges the subjects of one system's incidents."""

    def ours(self, incident: Incident) -> Iterator[Judged]:
        """Every faulty and every fixed variant, as they are judged."""
        ...

    def theirs(self, incident: Incident, source: Source) -> Iterator[Judged]:
        """What a vLLM source has of it.

        Raises `UsageError` where the source, or any source, has nothing of the kind.
        """
        ...


def system_of(incident: Incident) -> System:
    """Make the judge of the incident's system; raises `UsageError` for an unknown system."""
    return SYSTEMS.load(incident.system, _makes_systems, "a class of the protocol System")()


def _makes_systems(found: object) -> TypeIs[Callable[[], System]]:
    return isinstance(found, type)


def must_break(incident: Incident, variant: str) -> frozenset[Rule]:
    """What the catalogue says of a variant: a faulty one breaks all the incident's rules, another none."""
    return frozenset(incident.rules) if variant in incident.faulty else frozenset()
