"""Judge the systems that play no trace: placeholder ranges, dual streams and generated kernels.

Each system has an auditor, which returns rows; systems are named in `catalogue.registry.SYSTEMS`, and `repro`
and `audit` call them through `SystemAuditor`. Only variants of ours run in this process, and what imports
torch is only imported for them: those of a source run in its worker.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Protocol, cast

import msgspec

from deepstack_harness.audit.class_verdicts import ClassVerdicts, against_known
from deepstack_harness.audit.source_worker import SourceWorker
from deepstack_harness.audit.system_files import (
    HELPERS_MEMBER,
    HELPERS_SINCE,
    RANGES_CLASS,
    RANGES_MEMBER,
    RANGES_SINCE,
)
from deepstack_harness.catalogue.incidents import Incident, catalogue
from deepstack_harness.catalogue.known import known_rules_of
from deepstack_harness.catalogue.registry import SYSTEMS, SYSTEMS_OF_SOURCES
from deepstack_harness.compile.kernels import Measurement, Subject, measure
from deepstack_harness.contract.arm import ArmSpec
from deepstack_harness.contract.facts import (
    OrderingObservation,
    RangeObservation,
    System,
    SystemSubject,
)
from deepstack_harness.contract.oracles import compiler, neighbours
from deepstack_harness.contract.oracles.judge import effect_of
from deepstack_harness.contract.oracles.trace_audit import error
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement, Row
from deepstack_harness.engines.known import engine_of
from deepstack_harness.errors import NotMeasured, UsageError
from deepstack_harness.sources.source import inside_package, read_since
from deepstack_harness.workers.outcomes import WorkerEnd, value_of
from deepstack_harness.workers.remote import Remote


@dataclass(frozen=True)
class JudgedSubject(ClassVerdicts):
    """A subject of an incident with its verdicts: a row for each rule, and the rules that it must break.

    `must_break` is None where no catalogue has them (a user's source). `figures` are further measurements, in
    words: ratios, counts. `where` is the file and line that was judged, of a source. `source` is empty for a
    variant of ours.
    """

    must_break: frozenset[Rule] | None = None
    figures: str = ""
    where: str = ""

    @property
    def records(self) -> tuple[Row, ...]:
        """The rows as programs read them, the figures among their details."""
        return tuple(
            replace(row, detail="; ".join(filter(None, [row.detail, self.figures]))) for row in self.rows
        )

    @property
    def as_expected(self) -> bool:
        """True if exactly the expected rules are broken, and every rule could be judged."""
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
    auditor = SYSTEMS.load(incident.system, callable, "a class of the protocol SystemAuditor")
    return cast(SystemAuditor, auditor())


def must_break(incident: Incident, variant: str) -> frozenset[Rule]:
    """Return the rules that a variant must break on this torch: all of the incident's, or none."""
    return frozenset(incident.rules) if incident.is_faulty(variant, version("torch")) else frozenset()


def judge_systems(worker: SourceWorker) -> tuple[list[JudgedSubject], list[str]]:
    """Judge every system that sources have something of; rows have their place, and whether they are known.

    Returns the subjects, and a sentence for each system that is not in the source. Raises `MachineError`
    where a file cannot be fetched.
    """
    source, engine = worker.source, engine_of(worker.source)
    judged: list[JudgedSubject] = []
    refusals: list[str] = []
    for incident in catalogue() if engine.systems else ():
        if incident.system not in SYSTEMS_OF_SOURCES:
            continue
        try:
            for subject in list(system_of(incident).theirs(incident, worker)):
                # An audit is about rules, not about an incident.
                where = inside_package(subject.where, engine.package.module) or None
                rows = (replace(row, incident=None, where=where) for row in subject.rows)
                known = known_rules_of(source.package, source.version, subject.model_class)
                judged.append(replace(subject, rows=tuple(against_known(rows, known))))
        except UsageError as error:
            refusals.append(str(error))
    return judged, refusals


class PlaceholderRanges:
    """The auditor of R12."""

    def ours(self, incident: Incident) -> Iterator[JudgedSubject]:
        """Judge every variant."""
        from deepstack_harness.audit.ranges import observe_ranges, range_named

        for name in incident.revisions:
            seen = observe_ranges(SystemSubject(System.PLACEHOLDER_RANGES, name), range_named(name))
            yield _judged_ranges(incident, seen)

    def theirs(self, incident: Incident, worker: SourceWorker) -> Iterator[JudgedSubject]:
        """Judge the class of the source."""
        read_since(worker.source, RANGES_MEMBER, RANGES_SINCE)  # the worker has no network
        result = worker.call(_OBSERVE_RANGE, {"text": worker.text})
        if isinstance(result, WorkerEnd):
            yield _ended(incident, System.PLACEHOLDER_RANGES, RANGES_CLASS, Rule.RANGES, worker, result)
        else:
            yield _judged_ranges(incident, value_of(result, f"calls of {RANGES_CLASS}"))


class DualStreams:
    """The auditor of R13: operations that nothing orders, results, distinct subgraphs."""

    def ours(self, incident: Incident) -> Iterator[JudgedSubject]:
        """Judge every variant."""
        from deepstack_harness.audit.streams.projections import dual_stream_named
        from deepstack_harness.audit.system_work import observe_ordering

        for name in incident.revisions:
            seen = observe_ordering(SystemSubject(System.DUAL_STREAM, name), dual_stream_named(name))
            yield _judged_ordering(incident, seen)

    def theirs(self, incident: Incident, worker: SourceWorker) -> Iterator[JudgedSubject]:
        """Judge every helper of the source; none is called by an op, so nothing is compiled."""
        read_since(worker.source, HELPERS_MEMBER, HELPERS_SINCE)  # the worker has no network
        result = worker.call(_OBSERVE_HELPERS, {"text": worker.text})
        for fact in result.facts:
            yield _judged_ordering(incident, msgspec.convert(fact, OrderingObservation))
        if isinstance(result, WorkerEnd):
            yield _ended(incident, System.DUAL_STREAM, result.phase, Rule.ORDERING, worker, result)
        else:
            value_of(result, "dual-stream helpers")


_WORK = "deepstack_harness.audit.system_work"
_OBSERVE_RANGE = Remote(f"{_WORK}:observe_range", RangeObservation)
_OBSERVE_HELPERS = Remote(f"{_WORK}:observe_helpers", type(None))


def _judged_ranges(incident: Incident, seen: RangeObservation) -> JudgedSubject:
    judgement = neighbours.judge_ranges(seen)
    return _judged(incident, seen.subject, judgement, seen.torch, f"kept as {seen.kept_as}", seen.where)


def _judged_ordering(incident: Incident, seen: OrderingObservation) -> JudgedSubject:
    counts = ", ".join(f"{count.layers} -> {count.distinct}" for count in seen.subgraphs)
    times = ", ".join(f"{count.seconds:.2f}" for count in seen.subgraphs)
    figures = f"layers -> distinct subgraphs {counts} (cold compile {times} s)" if counts else ""
    return _judged(incident, seen.subject, neighbours.judge_ordering(seen), seen.torch, figures, seen.where)


def _ended(
    incident: Incident, system: System, name: str, rule: Rule, worker: SourceWorker, end: WorkerEnd
) -> JudgedSubject:
    """Return ERROR for a class or function that ended the process which ran it."""
    subject = SystemSubject(system, worker.source.label, name, worker.source.package)
    return _judged(incident, subject, error(rule, end.sentence))


def _judged(
    incident: Incident, subject: SystemSubject, judgement: Judgement, torch: str = "", figures: str = "",
    where: str = "",
) -> JudgedSubject:  # fmt: skip
    row = Row(
        incident=incident.id, system=subject.system, engine=subject.engine, model_class=subject.model_class,
        revision=subject.variant, source=subject.source, torch=torch,
        **replace(judgement, effect=effect_of(judgement)).columns,
    )  # fmt: skip
    due = None if subject.engine else must_break(incident, subject.variant)
    name = subject.model_class or subject.variant
    return JudgedSubject(subject.source or "", name, (row,), must_break=due, figures=figures, where=where)


_SLICED = Subject("granite4_vision", "granite_sliced", tokens=77, capacity=8192, profile_tokens=8192)
VARIANTS: Mapping[str, Subject] = {
    # Traced with as many rows as the buffer has, both sizes would be one symbol: only the code shows them.
    "granite_rows": replace(_SLICED, revision="granite_rows", profile_tokens=512),
    "granite_full": replace(_SLICED, revision="granite_full"),
    "granite_full_cut_in_graph": replace(_SLICED, revision="granite_full", profile_tokens=512),
    "granite_sliced": _SLICED,
}
"""Revisions in the run that shows them; traced below the capacity, `granite_full` is cut in the graph."""


class Kernels:
    """R10, of code generated for the CPU; nothing of it is run."""

    def ours(self, incident: Incident) -> Iterator[JudgedSubject]:
        """Judge every variant; one child measures all."""
        if unknown := [name for name in incident.revisions if name not in VARIANTS]:
            known = ", ".join(VARIANTS)
            raise UsageError(f"unknown variant '{unknown[0]}' of system kernels; known are {known}")
        subjects = [VARIANTS[name] for name in incident.revisions]
        judged: list[tuple[Judgement, Measurement | None]]
        try:
            measured = measure(subjects)
            judged = [(compiler.judge_kernels(seen.calls, seen.subject.tokens), seen) for seen in measured]
        except NotMeasured as why:
            judged = [(error(Rule.WORK, str(why)), None) for _ in subjects]
        for name, subject, (judgement, seen) in zip(incident.revisions, subjects, judged, strict=True):
            row = Row(
                incident=incident.id, system=incident.system, family=seen.family if seen else subject.family,
                revision=name, dtype=subject.dtype, torch=seen.torch if seen else "",
                **ArmSpec.parse(subject.arm).columns,
                **replace(judgement, effect=effect_of(judgement)).columns,
            )  # fmt: skip
            figures = ""
            if seen:
                call, largest = seen.calls[-1], seen.calls[-1].largest
                size = f"({largest.symbolic_points}, n = {call.symbols.get('n', '-')})"
                kernels = f"{len(call.generated)} generated kernels"
                figures = f"{kernels}, the largest has {largest.points:,} points {size}"
            due = must_break(incident, name)
            yield JudgedSubject("", name, (row,), must_break=due, figures=figures)

    def theirs(self, incident: Incident, worker: SourceWorker) -> Iterator[JudgedSubject]:
        """Raise `UsageError`: no class of a source is compiled here."""
        raise UsageError(
            f"incident {incident.id} is about code generated for decoders of ours, "
            f"and no class of {worker.source.label} is compiled for it: leave --source out"
        )
