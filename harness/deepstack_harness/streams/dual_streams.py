"""Ways to run independent projections, as they are judged: the settings each is rehearsed in, and its op."""

from collections.abc import Callable
from dataclasses import dataclass

from deepstack_harness.streams import faults, projection
from deepstack_harness.streams.model_check import Setting
from deepstack_harness.streams.recorded_device import Device
from deepstack_harness.streams.stream_api import Project

ONE, TWO, THREE = "one stream", "two streams", "three streams"


@dataclass(frozen=True)
class DualStream:
    """A way to project.

    `settings` are rehearsed on recording streams, `project` runs with torch's own; `named`
    says that its op takes the layer's name.  `subgraphs`: whether it stands for its op,
    whose distinct subgraphs are to be counted.
    """

    settings: tuple[Setting, ...]
    project: Project
    named: bool = False
    subgraphs: bool = False


def _ours(project: Project, *others: int, named: bool = False, subgraphs: bool = False) -> DualStream:
    names = (ONE, TWO, THREE)
    settings = tuple(Setting(names[count], count, _always(project)) for count in others)
    return DualStream(settings, project, named, subgraphs)


def _always(project: Project) -> Callable[[Device], Project]:
    return lambda _: project


SEQUENTIAL = _ours(projection.sequential, 0, 1)
DUAL = _ours(projection.dual, 0, 1, 2)
DUAL_OF_COPY = _ours(projection.dual_of_copy, 0, 1)
START_FORGOTTEN = _ours(faults.start_forgotten, 0, 1)
DONE_FORGOTTEN = _ours(faults.done_forgotten, 0, 1)
DONE_RECORDED_OUTSIDE = _ours(faults.done_recorded_outside, 0, 1)
START_WAITED_TOO_EARLY = _ours(faults.start_waited_too_early, 0, 1)
DONE_WAITED_TOO_EARLY = _ours(faults.done_waited_too_early, 0, 1)
MEMORY_REUSED_TOO_EARLY = _ours(faults.memory_reused_too_early, 0, 1)
FIXED_OP = _ours(projection.dual, 1, subgraphs=True)
NAMED_OP = _ours(projection.dual, 1, named=True, subgraphs=True)
