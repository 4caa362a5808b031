"""Judge the systems beside the deepstack classes of a source: placeholder ranges, dual-stream helpers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from deepstack_harness.auditing.standing import Standing
from deepstack_harness.auditing.systems import Judged, system_of
from deepstack_harness.catalogue.incidents import Incident, catalogue
from deepstack_harness.catalogue.known_failures import known_of
from deepstack_harness.catalogue.registry import SYSTEMS_OF_SOURCES
from deepstack_harness.errors import UsageError
from deepstack_harness.oracles.expectation import expect
from deepstack_harness.sources.source import Source


@dataclass(frozen=True)
class Beside:
    """The systems of one source: subjects with their rows, and a sentence for each system it lacks."""

    label: str
    judged: tuple[Judged, ...]
    refusals: tuple[str, ...]

    @property
    def standings(self) -> list[Standing]:
        """The subjects in the form in which the audit sums up classes."""
        return [Standing(self.label, one.subject, one.rows) for one in self.judged]


def judge_beside(source: Source) -> Beside:
    """Judge every system that sources have something of, with known failures told apart.

    Raises `MachineError` where a file cannot be fetched.
    """
    judged: list[Judged] = []
    refusals: list[str] = []
    for incident in catalogue():
        if incident.system in SYSTEMS_OF_SOURCES:
            try:
                judged += _expected(source, _judged(incident, source))
            except UsageError as error:
                refusals.append(str(error))
    return Beside(source.label, tuple(judged), tuple(refusals))


def _judged(incident: Incident, source: Source) -> Iterator[Judged]:
    for one in system_of(incident).theirs(incident, source):
        # An audit is about rules, not about an incident.
        yield replace(one, rows=tuple(replace(row, incident=None) for row in one.rows))


def _expected(source: Source, found: Iterable[Judged]) -> list[Judged]:
    known = partial(known_of, source.package, source.version)
    return [replace(one, rows=tuple(expect(one.rows, known(one.subject)))) for one in found]
