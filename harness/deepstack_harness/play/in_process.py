"""One case played in this process, on a model that all cases share."""

import functools
from collections.abc import Mapping
from types import MappingProxyType

from deepstack_harness.contract.case import Case, Observation
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.mutants.by_name import buffer_named
from deepstack_harness.play import Model, play
from deepstack_harness.play.user_buffer import load_buffer

NOTHING_BOUND: Mapping[str, BufferFactory] = MappingProxyType({})


def play_here(case: Case, bound: Mapping[str, BufferFactory] = NOTHING_BOUND) -> Observation:
    """Play a case; `bound` maps labels of upstream sources to their classes.

    Raises `UsageError` for an unknown name, `MachineError` for a device that is not here.
    """
    model = _shared_model(case.family, case.dtype, case.device, case.seed)
    return play(case, model, _factory(case.revision, bound))


def _factory(revision: str, bound: Mapping[str, BufferFactory]) -> BufferFactory:
    if revision in bound:
        return bound[revision]
    if ":" in revision:  # MODULE:CLASS of the user's own
        return load_buffer(revision)
    return buffer_named(revision)


@functools.cache
def _shared_model(family: str, dtype: str, device: str, seed: int) -> Model:
    """Drawn once: no run changes it."""
    return Model.build(family, dtype, device, seed)
