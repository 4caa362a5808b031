"""Interface that a projection on several streams is given, recording or real: streams, events, switching."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


class StreamEvent(Protocol):
    """Interface of `torch.cuda.Event`, on the current stream."""

    def record(self) -> None:
        """Mark this place in the current stream."""
        ...

    def wait(self) -> None:
        """Hold the current stream until the place marked last; nothing where none is."""
        ...


@dataclass(frozen=True)
class Lanes:
    """The streams beside the current one, each with the event that says it is done; `start` lets them begin.

    `aux` is empty where there is one stream only.  `on` makes one of them current, as
    `torch.cuda.stream` does, and `keep` says that one uses a tensor, as `Tensor.record_stream` does
    (which takes no stream but a real one).
    """

    start: StreamEvent
    done: tuple[StreamEvent, ...]
    aux: tuple[Any, ...]
    on: Callable[[Any], AbstractContextManager[object]]
    keep: Callable[[Tensor, Any], None]


Project = Callable[[Tensor, tuple[Tensor, ...], Lanes], tuple[Tensor, ...]]
"""Projections of one input (n, h), a result (n, out) for each weight (out, h), in their order."""
