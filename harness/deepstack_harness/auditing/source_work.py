"""The work of a worker that runs the range class and the dual-stream helpers of a source."""

from collections.abc import Mapping
from typing import Any

import msgspec
import torch

from deepstack_harness.auditing.range_costs import OTHER_KIND, step_costs_of
from deepstack_harness.contract.facts.systems import System, SystemSubject
from deepstack_harness.engines.known import open_source
from deepstack_harness.ranges.by_name import range_named
from deepstack_harness.ranges.from_source import bind_range
from deepstack_harness.ranges.observe import observe_ranges
from deepstack_harness.ranges.range_file import RANGES_CLASS
from deepstack_harness.streams.from_source import helpers_of
from deepstack_harness.streams.observe import observe_ordering
from deepstack_harness.workers.child import Channel


def observe_range(channel: Channel, text: str) -> dict[str, Any]:
    """Question the range class of a source; return what `msgspec` makes of an `ObservedRange`.

    Raises `UsageError` where the source has no such class.
    """
    torch.set_num_threads(1)
    source = open_source(text)
    channel.phase(f"the questions to {RANGES_CLASS}")
    bound = bind_range(source)
    subject = SystemSubject(System.PLACEHOLDER_RANGES, source.label, RANGES_CLASS, source.package)
    seen = observe_ranges(subject, bound.make)
    found: dict[str, object] = {"observation": seen, "where": f"{bound.filename}:{bound.line}"}
    ours = OTHER_KIND.get(seen.kept_as)
    if ours is not None:  # a class whose answers are wrong has findings instead of a cost
        channel.phase(f"the cost of {RANGES_CLASS}")
        try:
            found["costs"] = list(step_costs_of({"theirs": bound.make, ours: range_named(ours)}).values())
        except Exception as error:  # noqa: BLE001  # what a class raises is no bug of ours
            found["not_measured"] = f"{type(error).__name__}: {error}"
    return _as_json(found)


def observe_helpers(channel: Channel, text: str) -> None:
    """Record every dual-stream helper of a source; send an `ObservedHelper` of each as a fact.

    Raises `UsageError` where the source has none.
    """
    torch.set_num_threads(1)
    source = open_source(text)
    channel.phase("the definition of the helpers")
    for code, way in helpers_of(source):
        channel.phase(code.name)
        subject = SystemSubject(System.DUAL_STREAM, source.label, code.name, source.package)
        seen = observe_ordering(subject, way)
        channel.fact(_as_json({"observation": seen, "where": f"{code.filename}:{code.line}"}))


def _as_json(found: Mapping[str, object]) -> dict[str, Any]:
    return msgspec.to_builtins(dict(found))  # type: ignore[no-any-return]
