"""The two neighbours of the buffer, judged: our variants of each, and what a vLLM source has of them."""

from collections.abc import Iterator, Mapping

from deepstack_harness.auditing.systems import Judged, must_break
from deepstack_harness.catalogue.incidents import Incident
from deepstack_harness.contract.case import Judgement
from deepstack_harness.contract.facts.ordering import OrderingObservation
from deepstack_harness.contract.facts.ranges import RangeObservation, StepCost
from deepstack_harness.contract.facts.systems import Subject, System
from deepstack_harness.contract.row import Row
from deepstack_harness.oracles import ordering, ranges
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
"""In what a cumulative sum may be kept, and our variant that keeps it in the other way."""

REPETITIONS = 9


class PlaceholderRanges:
    """R12; measured beside it, what a scheduling step costs."""

    def ours(self, incident: Incident) -> Iterator[Judged]:
        """Every variant; a cost for those that show nothing but how the sum is kept."""
        costs = _step_costs({name: range_named(name) for name in OTHER_KIND})
        for name in incident.revisions:
            subject = Subject(System.PLACEHOLDER_RANGES, name)
            seen = observe_ranges(subject, range_named(name))
            row = _row(incident, subject, ranges.judge(seen), seen.torch)
            cost = _compared(costs[name], costs[OTHER_KIND[name]]) if name in costs else ""
            yield Judged(name, must_break(incident, name), (row,), _joined(_kept(seen), cost))

    def theirs(self, incident: Incident, source: Source) -> Iterator[Judged]:
        """The class of the source, its cost against our variant of the other kind."""
        bound = bind_range(source)
        subject = Subject(System.PLACEHOLDER_RANGES, bound.label, RANGES_CLASS, bound.label)
        seen = observe_ranges(subject, bound.make)
        row = _row(incident, subject, ranges.judge(seen), seen.torch)
        figures = _joined(_kept(seen), _cost_of(bound.make, seen.kept_as))
        yield Judged(RANGES_CLASS, None, (row,), figures, f"{bound.filename}:{bound.line}")


class DualStreams:
    """R13: orders of the streams, results, distinct subgraphs."""

    def ours(self, incident: Incident) -> Iterator[Judged]:
        """Every variant."""
        for name in incident.revisions:
            subject = Subject(System.DUAL_STREAM, name)
            seen = observe_ordering(subject, dual_stream_named(name))
            row = _row(incident, subject, ordering.judge(seen), seen.torch)
            yield Judged(name, must_break(incident, name), (row,), _played(seen))

    def theirs(self, incident: Incident, source: Source) -> Iterator[Judged]:
        """Every helper of the source; none stands for an op, so nothing is compiled."""
        for code, way in helpers_of(source):
            subject = Subject(System.DUAL_STREAM, code.label, code.name, code.label)
            seen = observe_ordering(subject, way)
            row = _row(incident, subject, ordering.judge(seen), seen.torch)
            yield Judged(code.name, None, (row,), _played(seen), f"{code.filename}:{code.line}")


def _row(incident: Incident, subject: Subject, said: Judgement, torch: str) -> Row:
    return Row.beside(
        subject.system,
        subject.variant,
        said,
        torch,
        incident=incident.id,
        model_class=subject.model_class,
        source=subject.source,
    )


def _kept(seen: RangeObservation) -> str:
    return f"kept as {seen.kept_as}"


def _step_costs(makes: Mapping[str, MakeRange]) -> dict[str, StepCost]:
    return {cost.variant: cost for cost in step_costs(makes, geo3k(), REPETITIONS)}


def _cost_of(make: MakeRange, kept: str) -> str:
    """A class that answers otherwise than ours, or raises, has its findings already: only no cost."""
    ours = OTHER_KIND.get(kept)
    if ours is None:
        return ""
    try:
        costs = _step_costs({"theirs": make, ours: range_named(ours)})
    except Exception as error:  # noqa: BLE001  # what a class raises is no bug of ours
        return f"cost not measured: {type(error).__name__}: {error}"
    return _compared(costs["theirs"], costs[ours])


def _compared(own: StepCost, other: StepCost) -> str:
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
