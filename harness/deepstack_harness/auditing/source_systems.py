"""The systems beside a source's deepstack classes: placeholder ranges and dual-stream helpers, judged."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from deepstack_harness.auditing.controls import unjudged
from deepstack_harness.auditing.source_worker import SourceWorker
from deepstack_harness.auditing.standing import Standing, beside_known
from deepstack_harness.auditing.systems import JudgedSubject, system_of
from deepstack_harness.catalogue.incidents import Incident, catalogue
from deepstack_harness.catalogue.known_failures import known_of
from deepstack_harness.catalogue.registry import SYSTEMS_OF_SOURCES
from deepstack_harness.engines.known import engine_of
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source


@dataclass(frozen=True)
class SourceSystems:
    """The judged subjects of one source, and a sentence for each system that the source lacks."""

    label: str
    judged: tuple[JudgedSubject, ...]
    refusals: tuple[str, ...]

    @property
    def standings(self) -> list[Standing]:
        """The subjects, in the form in which the audit sums up classes."""
        return [Standing(self.label, one.subject, one.rows) for one in self.judged]

    def unjudged(self, why: str) -> "SourceSystems":
        """Return the same subjects with every rule ERROR: their worker measured wrongly."""
        found = zip(self.judged, self.standings, strict=True)
        judged = (replace(one, rows=unjudged(standing, why).rows) for one, standing in found)
        return replace(self, judged=tuple(judged))


def judge_systems(worker: SourceWorker) -> SourceSystems:
    """Judge every system that sources have something of, with known failures told apart.

    Raises `MachineError` where a file cannot be fetched.
    """
    judged: list[JudgedSubject] = []
    refusals: list[str] = []
    if not engine_of(worker.source).systems:
        return SourceSystems(worker.source.label, (), ())
    for incident in catalogue():
        if incident.system in SYSTEMS_OF_SOURCES:
            try:
                judged += _beside_known(worker.source, _judged(incident, worker))
            except UsageError as error:
                refusals.append(str(error))
    return SourceSystems(worker.source.label, tuple(judged), tuple(refusals))


def _judged(incident: Incident, worker: SourceWorker) -> Iterator[JudgedSubject]:
    for subject in system_of(incident).theirs(incident, worker):
        # An audit is about rules, not about an incident.
        yield replace(subject, rows=tuple(replace(row, incident=None) for row in subject.rows))


def _beside_known(source: Source, found: Iterable[JudgedSubject]) -> list[JudgedSubject]:
    known = partial(known_of, source.package, source.version)
    return [replace(each, rows=tuple(beside_known(each.rows, known(each.subject)))) for each in found]
