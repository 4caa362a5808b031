"""The models that the cases of this process share, and the makers of their buffers."""

import functools
from collections.abc import Mapping
from types import MappingProxyType

from deepstack_harness.contract.buffer_ref import BufferKind, BufferRef
from deepstack_harness.contract.protocols import BufferFactory
from deepstack_harness.errors import HarnessError
from deepstack_harness.mutants.by_name import buffer_named
from deepstack_harness.play.model import Model
from deepstack_harness.play.user_buffer import load_buffer

Bound = Mapping[BufferRef, BufferFactory]
"""Factories of the buffers that no name leads to: classes of sources, live objects."""

NOTHING_BOUND: Bound = MappingProxyType({})


def factory_of(buffer: BufferRef, bound: Bound = NOTHING_BOUND) -> BufferFactory:
    """Return what makes a buffer; raises `UsageError` for an unknown name or class."""
    if buffer in bound:
        return bound[buffer]
    if buffer.kind is BufferKind.USER:
        return load_buffer(buffer.name)
    if buffer.kind is BufferKind.REGISTERED:
        return buffer_named(buffer.name)
    raise HarnessError(f"{buffer.kind} buffer '{buffer.name}' was not bound before its case was played")


@functools.cache
def shared_model(family: str, dtype: str, device: str, seed: int) -> Model:
    """Draw the weights once: no run changes them."""
    return Model.build(family, dtype, device, seed)
