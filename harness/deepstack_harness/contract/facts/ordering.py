"""What was measured of a dual-stream projection: operations and their order, results, subgraphs; no torch."""

from dataclasses import dataclass

import msgspec

from deepstack_harness.contract.facts.systems import Subject


@dataclass(frozen=True)
class Operation:
    """One operation as it was put into a stream, numbered in the order of the host's calls.

    `reads` and `writes` name memory, which other tensors may have had before.  `clock`
    has one count a stream: how many of its operations are certainly done before this
    one begins, this one included in that of its own stream.
    """

    number: int
    name: str
    stream: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    clock: tuple[int, ...]


@dataclass(frozen=True)
class Recording:
    """Several layers one after the other, over recording streams and events, in one setting.

    `early_waits` counts waits for an event that nobody had recorded, which do
    nothing.  `orders` is the number of orders in which the streams may run the operations,
    all of which were played; `different` of them gave a result that is not that of the
    projections one after the other, bit for bit; `first_different` lists the operations of
    the first.  `equal` says whether the order of the host's own calls gave the right
    result; `raised` is what was raised instead of a result, and then nothing was played.
    """

    setting: str
    streams: tuple[str, ...]
    operations: tuple[Operation, ...]
    early_waits: int
    orders: int
    different: int
    equal: bool
    first_different: tuple[str, ...] = ()
    raised: str = ""


@dataclass(frozen=True)
class Result:
    """Layers with the projection behind its custom op, against projections one after the other.

    `how` is `eager`, or the backend they were compiled with, in `graphs` graphs;
    `different` of `elements` are not the same bits.
    """

    how: str
    elements: int
    different: int
    graphs: int


@dataclass(frozen=True)
class Subgraphs:
    """K identical layers, cut at the op that engines cut at, compiled from cold caches.

    `pieces` were cut out, `distinct` of them differ in more than the names of their
    values and are compiled; `compiled` were, as Dynamo counts.  `seconds` from the call to
    the first result.
    """

    layers: int
    pieces: int
    distinct: int
    compiled: int
    seconds: float
    backend: str


@dataclass(frozen=True)
class OnDevice:
    """Real streams with delays between: `different` of `repetitions` did not give the sequential bits.

    `first` says which delays the first of these had.  `ended` is empty, or how the process
    ended that gave no answer (it hung, or crashed), and then nothing else is known.
    `microseconds` are those of one call at the sizes of `deepstack_harness.streams.on_gpu`,
    without delays, of the variant and of the projections one after the other.
    """

    device: str
    repetitions: int
    different: int
    first: str = ""
    ended: str = ""
    microseconds: float = 0.0
    sequential_microseconds: float = 0.0


@dataclass(frozen=True)
class OrderingObservation:
    """The facts of one variant; what was not measured is empty."""

    subject: Subject
    recordings: tuple[Recording, ...]
    results: tuple[Result, ...]
    subgraphs: tuple[Subgraphs, ...]
    on_device: OnDevice | None
    torch: str

    def to_json(self) -> bytes:
        """One line of JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes | str) -> "OrderingObservation":
        """Read back what `to_json` wrote."""
        return msgspec.json.decode(text, type=cls)
