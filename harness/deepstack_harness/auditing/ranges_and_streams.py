"""Auditors of placeholder ranges and dual streams: our variants of each, and those of a source."""

from collections.abc import Iterator, Mapping

from deepstack_harness.auditing.systems import JudgedSubject, must_break
from deepstack_harness.catalogue.incidents import Incident
from deepstack_harness.contract.facts.ordering import OrderingObservation
from deepstack_harness.contract.facts.ranges import RangeObservation, SchedulingCost
from deepstack_harness.contract.facts.systems import System, SystemSubject
from deepstack_harness.contract.row import Row
from deepstack_harness.contract.verdicts import Judgement
from deepstack_harness.oracles import ordering, ranges
from deepstack_harness.oracles.effect import effect_of
from deepstack_harness.ranges.by_name import range_named
from deepstack_harness.ranges.from_source import RANGES_CLASS, bind_range
from deepstack_harness.ranges.observe import observe_ranges
from deepstack_harness.ranges.placeholder_range import MakeRange
from deepstack_harness.ranges.scheduling_cost import step_costs
from deepstack_harness.ranges.workloads import geo3k
from deepstack_harness.sources.source import Source
from deepstack_harness.streams.by_name import dual_stream_named
from deepstack_harness.streams.from_source import helpers_of
from deepstack_harness.streams.observe import observe_ordering

OTHER_KIND: Mapping[str, str] = {"tensor": "list", "list": "tensor"}
"""Type that a cumulative sum is kept in -> our variant that keeps it in the other type."""

REPETITIONS = 9


class PlaceholderRanges:
    """The auditor of R12, which also measures the cost of a scheduling step."""

    def ours(self, incident: Incident) -> Iterator[JudgedSubject]:
        """Judge every variant; those that differ only in how the sum is kept have a cost."""
        costs = _step_costs({name: range_named(name) for name in OTHER_KIND})
        for name in incident.revisions:
            subject = SystemSubject(System.PLACEHOLDER_RANGES, name)
            seen = observe_ranges(subject, range_named(name))
            row = _row(incident, subject, ranges.judge(seen), seen.torch)
            cost = _compared(costs[name], costs[OTHER_KIND[name]]) if name in costs else ""
            yield JudgedSubject(name, must_break(incident, name), (row,), _joined(_kept(seen), cost))

    def theirs(self, incident: Incident, source: Source) -> Iterator[JudgedSubject]:
        """Judge the class of the source, with its cost against our variant of the other kind."""
        bound = bind_range(source)
        subject = SystemSubject(System.PLACEHOLDER_RANGES, source.label, RANGES_CLASS, source.package)
        seen = observe_ranges(subject, bound.make)
        row = _row(incident, subject, ranges.judge(seen), seen.torch)
        figures = _joined(_kept(seen), _cost_of(bound.make, seen.kept_as))
        yield JudgedSubject(RANGES_CLASS, None, (row,), figures, f"{bound.filename}:{bound.line}")


class DualStreams:
    """The auditor of R13: orders of the streams, results, distinct subgraphs."""

    def ours(self, incident: Incident) -> Iterator[JudgedSubject]:
        """Judge every variant."""
        for name in incident.revisions:
            subject = SystemSubject(System.DUAL_STREAM, name)
            seen = observe_ordering(subject, dual_stream_named(name))
            row = _row(incident, subject, ordering.judge(seen), seen.torch)
            yield JudgedSubject(name, must_break(incident, name), (row,), _played(seen))

    def theirs(self, incident: Incident, source: Source) -> Iterator[JudgedSubject]:
        """Judge every helper of the source; none stands for an op, so nothing is compiled."""
        for code, way in helpers_of(source):
            subject = SystemSubject(System.DUAL_STREAM, source.label, code.name, source.package)
            seen = observe_ordering(subject, way)
            row = _row(incident, subject, ordering.judge(seen), seen.torch)
            yield JudgedSubject(code.name, None, (row,), _played(seen), f"{code.filename}:{code.line}")


def _row(incident: Incident, subject: SystemSubject, said: Judgement, torch: str) -> Row:
    return Row(
        incident=incident.id, system=subject.system, engine=subject.engine, model_class=subject.model_class,
        revision=subject.variant, source=subject.source, rule=said.rule, verdict=said.verdict,
        value=said.value, limit=said.limit, unit=said.unit, effect=effect_of(said), detail=said.detail,
        torch=torch,
    )  # fmt: skip


def _kept(seen: RangeObservation) -> str:
    return f"kept as {seen.kept_as}"


def _step_costs(makes: Mapping[str, MakeRange]) -> dict[str, SchedulingCost]:
    return {cost.variant: cost for cost in step_costs(makes, geo3k(), REPETITIONS)}


def _cost_of(make: MakeRange, kept: str) -> str:
    """Return the cost in words; empty for a class whose answers are wrong, which has its findings."""
    ours = OTHER_KIND.get(kept)
    if ours is None:
        return ""
    try:
        costs = _step_costs({"theirs": make, ours: range_named(ours)})
    except Exception as error:  # noqa: BLE001  # what a class raises is no bug of ours
        return f"cost not measured: {type(error).__name__}: {error}"
    return _compared(costs["theirs"], costs[ours])


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
        f"{orders} orders played",
        f"layers -> distinct subgraphs {counts} (cold compile {times} s)" if counts else "",
    )


def _joined(*words: str) -> str:
    return "; ".join(filter(None, words))
