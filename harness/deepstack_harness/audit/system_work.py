"""Observe the range class and the dual-stream helpers of a source, in the worker that runs them."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import torch

from deepstack_harness.audit.ranges import bind_range
from deepstack_harness.audit.streams.projections import DualStream, helpers_of
from deepstack_harness.audit.streams.recording import rehearse
from deepstack_harness.audit.streams.subgraphs import LAYERS, count_subgraphs, observe_results
from deepstack_harness.audit.system_files import RANGES_CLASS
from deepstack_harness.contract.facts import (
    OnDevice,
    OrderingObservation,
    RangeObservation,
    System,
    SystemSubject,
)
from deepstack_harness.engines.known import open_source
from deepstack_harness.workers.child import Channel


def observe_ordering(
    subject: SystemSubject,
    way: DualStream,
    *,
    backends: Sequence[str] = ("aot_eager",),
    growth: str = "aot_eager",
    layers: Sequence[int] = LAYERS,
    on_device: OnDevice | None = None,
) -> OrderingObservation:
    """Return the facts of `way` on the CPU, and what was seen `on_device`.

    A `way` with `subgraphs` is compiled: its op once by `backends`, stacks of as many `layers` by `growth`
    (`aot_eager`, `inductor`). All ways with the same op are the same to a compiler. Raises `NotMeasured`.
    """
    subgraphs = []
    if way.subgraphs:
        count_subgraphs(1, named=way.named, backend=growth)  # pays what only a first compile costs
        subgraphs = [count_subgraphs(count, named=way.named, backend=growth) for count in layers]
    return OrderingObservation(
        subject,
        tuple(rehearse(setting) for setting in way.settings),
        observe_results(way, backends if way.subgraphs else ()),
        tuple(subgraphs),
        on_device,
        str(torch.__version__),
    )


def observe_range(channel: Channel, text: str) -> RangeObservation:
    """Call the range class of a source.

    Raises `UsageError` where the source has no such class.
    """
    source = open_source(text)
    channel.phase(f"the calls of {RANGES_CLASS}")
    bound = bind_range(source)
    subject = SystemSubject(System.PLACEHOLDER_RANGES, source.label, RANGES_CLASS, source.package)
    return replace(bound.observe(subject), where=f"{bound.filename}:{bound.line}")


def observe_helpers(channel: Channel, text: str) -> None:
    """Record every dual-stream helper of a source; send the observation of each as a fact.

    Raises `UsageError` where the source has none.
    """
    source = open_source(text)
    channel.phase("the definition of the helpers")
    for helper, way in helpers_of(source):
        channel.phase(helper.name)
        subject = SystemSubject(System.DUAL_STREAM, source.label, helper.name, source.package)
        channel.fact(msgspec.to_builtins(replace(observe_ordering(subject, way), where=helper.where)))
