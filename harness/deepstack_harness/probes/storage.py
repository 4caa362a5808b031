"""Storage of a buffer that captured graphs lean on: is it still the right one, and does it live?

Watched on the reference lane's buffer, which goes through the same steps: nothing
keeps its answers, so that storage the buffer lets go of is really freed.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from deepstack_harness.contract.observation import GraphUse

Payload = tuple[Tensor, ...] | None


@dataclass(frozen=True)
class _Graphed:
    """Answer of get when a graph was captured: addresses in bytes, storages, generation of the buffer."""

    addresses: tuple[int, ...]
    storages: tuple[StorageWeakRef, ...]
    generation: int | None


class StorageWatch:
    """Record of the storage that the graph of each captured size was captured on."""

    def __init__(self) -> None:
        """Start without a captured graph."""
        self._graphs: dict[int, _Graphed] = {}

    def note_capture(self, tokens: int, payload: Payload, generation: int | None) -> None:
        """Note that a graph for `tokens` was captured while get answered `payload`; it replaces any other."""
        storages = (
            StorageWeakRef(level.untyped_storage())  # type: ignore[no-untyped-call]
            for level in payload or ()
        )
        self._graphs[tokens] = _Graphed(_addresses(payload), tuple(storages), generation)

    def use(self, generation: int | None, allocated: int = 0) -> GraphUse | None:
        """Return what holds between replays; None while nothing is captured."""
        return GraphUse(freed=self._freed(generation), allocated=allocated) if self._graphs else None

    def replayed(self, tokens: int, payload: Payload, generation: int | None) -> GraphUse:
        """Return the use of the graph for `tokens`, replayed at a moment when get answers `payload`.

        A graph that was captured with None reads no storage, so it is not detached
        from any; nor is one whose buffer said, with this very get, that it moves.
        An address alone says too little: an allocator may hand out freed memory again.
        """
        graph, now = self._graphs[tokens], _addresses(payload)
        left = graph.addresses != now or any(ref.expired() for ref in graph.storages)  # type: ignore[no-untyped-call]
        moved = bool(graph.addresses and now and left)
        return GraphUse(detached=moved and graph.generation == generation, freed=self._freed(generation))

    def _freed(self, generation: int | None) -> int:
        """Count storages that graphs of this generation read and that are gone.

        Graphs of another one are captured again before they are replayed: their storage may go.
        """
        graphs = (graph for graph in self._graphs.values() if graph.generation == generation)
        storages = {ref.cdata: ref for graph in graphs for ref in graph.storages}
        return sum(ref.expired() for ref in storages.values())  # type: ignore[no-untyped-call]


def _addresses(payload: Payload) -> tuple[int, ...]:
    return tuple(level.data_ptr() for level in payload or ())
