"""Observe one way to project on several streams: rehearsals, results of its op, distinct subgraphs."""

from collections.abc import Sequence

import torch

from deepstack_harness.contract.facts.ordering import OnDevice, OrderingObservation
from deepstack_harness.contract.facts.systems import SystemSubject
from deepstack_harness.streams.dual_streams import DualStream
from deepstack_harness.streams.model_check import rehearse
from deepstack_harness.streams.op_results import observe_results
from deepstack_harness.streams.subgraphs import LAYERS, count_growth


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

    A way that stands for its op is compiled: the op once by `backends`, stacks of as many
    `layers` by `growth` (`aot_eager`, `inductor`).  Behind one op all ways are the same
    to a compiler.  Raises `NotMeasured`.
    """
    subgraphs = count_growth(layers, named=way.named, backend=growth) if way.subgraphs else ()
    return OrderingObservation(
        subject,
        tuple(rehearse(setting) for setting in way.settings),
        observe_results(way, backends if way.subgraphs else ()),
        subgraphs,
        on_device,
        str(torch.__version__),
    )
