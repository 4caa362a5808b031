"""Auditors of placeholder ranges and dual streams: our variants of each, and those of a source.

Only variants of ours run in this process: what imports torch is imported for them alone.
"""

from collections.abc import Iterator

import msgspec

from deepstack_harness.auditing.source_worker import SourceWorker
from deepstack_harness.auditing.systems import JudgedSubject, must_break
from deepstack_harness.catalogue.incidents import Incident
from deepstack_harness.contract.facts.ordering import OrderingObservation
from deepstack_harness.contract.facts.ranges import RangeObservation, SchedulingCost
from deepstack_harness.contract.facts.systems import System, SystemSubject
from deepstack_harness.contract.plural import plural
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.rules import Rule
from deepstack_harness.contract.verdicts import Judgement
from deepstack_harness.oracles import ordering, ranges
from deepstack_harness.oracles.base import error
from deepstack_harness.oracles.effect import effect_of
from deepstack_harness.ranges.range_file import RANGES_CLASS, range_file
from deepstack_harness.streams.helper_code import helper_file
from deepstack_harness.workers.outcomes import WorkerEnd, value_of

_WORK = "deepstack_harness.auditing.source_work"


class PlaceholderRanges:
    """The auditor of R12, which also measures the cost of a scheduling step."""

    def ours(self, incident: Incident) -> Iterator[JudgedSubject]:
        """Judge every variant; those that differ only in how the sum is kept have a cost."""
        from deepstack_harness.auditing.range_costs import OTHER_KIND, step_costs_of
        from deepstack_harness.ranges.by_name import range_named
        from deepstack_harness.ranges.observe import observe_ranges

        costs = step_costs_of({name: range_named(name) for name in OTHER_KIND})
        for name in incident.revisions:
            subject = SystemSubject(System.PLACEHOLDER_RANGES, name)
            seen = observe_ranges(subject, range_named(name))
            row = _row(incident, subject, ranges.judge(seen), seen.torch)
            cost = _compared(costs[name], costs[OTHER_KIND[name]]) if name in costs else ""
            yield JudgedSubject(name, must_break(incident, name), (row,), _joined(_kept(seen), cost))

    def theirs(self, incident: Incident, worker: SourceWorker) -> Iterator[JudgedSubject]:
        """Judge the class of the source, with its cost against our variant of the other kind."""
        range_file(worker.source)
        result = worker.call(f"{_WORK}:observe_range", text=worker.text)
        if isinstance(result, WorkerEnd):
            yield _ended(incident, System.PLACEHOLDER_RANGES, RANGES_CLASS, Rule.R12, worker, result)
            return
        found = msgspec.convert(value_of(result, f"questions to {RANGES_CLASS}"), ObservedRange)
        seen = found.observation
        row = _row(incident, seen.subject, ranges.judge(seen), seen.torch)
        cost = _compared(*found.costs) if found.costs else ""
        refused = f"cost not measured: {found.not_measured}" if found.not_measured else ""
        yield JudgedSubject(RANGES_CLASS, None, (row,), _joined(_kept(seen), cost, refused), found.where)


class DualStreams:
    """The auditor of R13: orders of the streams, results, distinct subgraphs."""

    def ours(self, incident: Incident) -> Iterator[JudgedSubject]:
        """Judge every variant."""
        from deepstack_harness.streams.by_name import dual_stream_named
        from deepstack_harness.streams.observe import observe_ordering

        for name in incident.revisions:
            subject = SystemSubject(System.DUAL_STREAM, name)
            seen = observe_ordering(subject, dual_stream_named(name))
            row = _row(incident, subject, ordering.judge(seen), seen.torch)
            yield JudgedSubject(name, must_break(incident, name), (row,), _played(seen))

    def theirs(self, incident: Incident, worker: SourceWorker) -> Iterator[JudgedSubject]:
        """Judge every helper of the source; none stands for an op, so nothing is compiled."""
        helper_file(worker.source)
        result = worker.call(f"{_WORK}:observe_helpers", text=worker.text)
        for fact in result.facts:
            found = msgspec.convert(fact, ObservedHelper)
            seen = found.observation
            row = _row(incident, seen.subject, ordering.judge(seen), seen.torch)
            yield JudgedSubject(seen.subject.model_class or "", None, (row,), _played(seen), found.where)
        if isinstance(result, WorkerEnd):
            yield _ended(incident, System.DUAL_STREAM, result.phase, Rule.R13, worker, result)
        else:
            value_of(result, "dual-stream helpers")


class ObservedRange(msgspec.Struct):
    """The range class of a source: its answers, costs of a step (its own, ours), and FILE:LINE."""

    observation: RangeObservation
    where: str
    costs: tuple[SchedulingCost, ...] = ()
    not_measured: str = ""


class ObservedHelper(msgspec.Struct):
    """One dual-stream helper of a source, and FILE:LINE where it begins."""

    observation: OrderingObservation
    where: str


def _ended(
    incident: Incident, system: System, name: str, rule: Rule, worker: SourceWorker, end: WorkerEnd
) -> JudgedSubject:
    """Return ERROR for a class or function that ended the process which ran it."""
    subject = SystemSubject(system, worker.source.label, name, worker.source.package)
    return JudgedSubject(name, None, (_row(incident, subject, error(rule, end.sentence), ""),))


def _row(incident: Incident, subject: SystemSubject, said: Judgement, torch: str) -> Row:
    return Row(
        incident=incident.id, system=subject.system, engine=subject.engine, model_class=subject.model_class,
        revision=subject.variant, source=subject.source, rule=said.rule, verdict=said.verdict,
        value=said.value, limit=said.limit, unit=said.unit, effect=effect_of(said), detail=said.detail,
        torch=torch,
    )  # fmt: skip


def _kept(seen: RangeObservation) -> str:
    return f"kept as {seen.kept_as}"


def _compared(own: SchedulingCost, other: SchedulingCost) -> str:
    cheap, dear = sorted([own.microseconds, other.microseconds])
    return (
        f"a scheduling step of {own.workload} takes {own.microseconds:.1f} us, "
        f"with our '{other.variant}' {other.microseconds:.1f} us ({dear / cheap:.1f} times)"
    )


def _played(seen: OrderingObservation) -> str:
    counts = ", ".join(f"{one.layers} -> {one.distinct}" for one in seen.subgraphs)
    times = ", ".join(f"{one.seconds:.2f}" for one in seen.subgraphs)
    orders = sum(recording.orders for recording in seen.recordings)
    return _joined(
        f"{plural(orders, 'order')} played",
        f"layers -> distinct subgraphs {counts} (cold compile {times} s)" if counts else "",
    )


def _joined(*words: str) -> str:
    return "; ".join(filter(None, words))
