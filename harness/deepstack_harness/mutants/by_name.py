"""Buffers by name: revisions, mutants, and what other installed packages declare."""

from typing_extensions import TypeIs

from deepstack_harness.catalogue.mutants import BUFFERS
from deepstack_harness.contract.protocols import BufferFactory


def buffer_named(name: str) -> BufferFactory:
    """Return the class of the buffer called `name`, such as `pr43617` or `copies_on_get`.

    Raises `UsageError` for an unknown name, and for a class of another package that cannot be used.
    """
    return BUFFERS.load(name, _makes_buffers, "a class or function that makes buffers")


def _makes_buffers(found: object) -> TypeIs[BufferFactory]:
    return callable(found)
