"""Dual-stream projections by name."""

from typing_extensions import TypeIs

from deepstack_harness.catalogue.variants import DUAL_STREAM
from deepstack_harness.streams.dual_streams import DualStream


def dual_stream_named(name: str) -> DualStream:
    """Return a variant of the dual-stream projection; raises `UsageError` for an unknown name."""
    return DUAL_STREAM.load(name, _is_dual_stream, "a DualStream")


def _is_dual_stream(found: object) -> TypeIs[DualStream]:
    return isinstance(found, DualStream)
