"""Origins of rows, and storage of graphs: facts about what the `get` of a buffer returns.

`RowOwners` finds the payload that a returned row came from. A row is known by its content: its bytes, where
all NaNs are equal and -0.0 equals 0. A content that was set is named after the first row that had it, as
(payload, level, row), so that equal rows have one name; a tensor that its caller reused after `set` is known
as such; zeros are zeros; anything else was never set.

`StorageWatch` measures whether the storage that captured graphs read is still the buffer's, and still
allocated. It watches the buffer of the reference lane, which goes through the same steps: nothing there
references what get returned, so that storage which the buffer releases is really freed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from deepstack_harness.contract.observation import Answer, GraphUse, RowRange
from deepstack_harness.models.adapted import AdaptedAnswer, levels_in

_ZERO = RowRange(0, 0, 0, 1)
_UNKNOWN = RowRange(None, 0, 0, 1)


class RowOwners:
    """Index of the rows of all payloads of a trace; it names the origin of any row.

    Rows are looked up by the hash of their bytes (64 bits), once per dtype.
    """

    def __init__(self) -> None:
        """Start without a payload."""
        self._payloads: dict[int, Tensor] = {}
        self._known: dict[torch.dtype, dict[int, RowRange]] = {}
        self._products: set[int] = set()

    def remember(self, number: int, payload: Tensor) -> None:
        """Register a payload (levels, N, hidden) under its number; negative: after reuse."""
        self._payloads[number] = payload.detach().clone()
        for dtype, known in self._known.items():
            _learn(known, self._products, number, payload.to(dtype))

    def runs_of(self, levels: Sequence[Tensor]) -> tuple[tuple[RowRange, ...], ...]:
        """Return the rows of several levels, each (P, hidden), as `runs` does."""
        first = levels[0] if levels else None
        kinds = {(level.shape, level.dtype, level.device) for level in levels}
        if first is None or first.device.type == "meta" or len(kinds) > 1:
            return tuple(map(self.runs, levels))
        # Together: one level of few rows costs as many operations of torch as all.
        known, rows = self._lookup(first.dtype), _row_bytes(torch.cat(tuple(levels)))
        count = first.size(0)
        return tuple(_named(rows[start * count : (start + 1) * count], known) for start in range(len(levels)))

    def runs(self, level: Tensor) -> tuple[RowRange, ...]:
        """Return the rows of one level (P, hidden) as runs of neighbours of one origin."""
        if level.device.type == "meta":
            return (_UNKNOWN._replace(rows=level.size(0)),)
        return _named(_row_bytes(level), self._lookup(level.dtype))

    def _lookup(self, dtype: torch.dtype) -> dict[int, RowRange]:
        if dtype not in self._known:
            self._known[dtype] = {}
            for number, payload in self._payloads.items():
                _learn(self._known[dtype], self._products, number, payload.to(dtype))
        return self._known[dtype]


def _named(rows: Sequence[bytes], known: Mapping[int, RowRange]) -> tuple[RowRange, ...]:
    zeros = bytes(len(rows[0])) if rows else b""
    return merge(_ZERO if row == zeros else known.get(hash(row), _UNKNOWN) for row in rows)


def _learn(known: dict[int, RowRange], products: set[int], number: int, payload: Tensor) -> None:
    """Name the rows of a payload, and what a product with zero leaves of those with NaN or infinity.

    `products` are the keys of the latter: the last payload with this content names it.
    """
    tokens = payload.size(1)
    for position, row in enumerate(_row_bytes(payload.flatten(0, 1))):
        key = hash(row)
        if key not in known or key in products:
            known[key] = _first_row(number, position, tokens)  # the first row with this content names it
            products.discard(key)
    if payload.is_floating_point() and not payload.isfinite().all():
        finite = payload.flatten(0, 1).isfinite().all(1).tolist()
        for position, row in enumerate(_row_bytes((payload * 0).flatten(0, 1))):
            key = hash(row)
            if not finite[position] and (key not in known or key in products):
                known[key] = _first_row(number, position, tokens)
                products.add(key)


def _first_row(number: int, position: int, tokens: int) -> RowRange:
    """Return the name of a row at this position of a payload's levels, one after the other."""
    level, index = divmod(position, tokens)
    return RowRange(number, level, index, 1) if number > 0 else RowRange(number, 0, 0, 1)


def merge(runs: Iterable[RowRange]) -> tuple[RowRange, ...]:
    """Join neighbouring runs of one origin: row indices of a payload must count up."""
    merged: list[tuple[RowRange, int]] = []
    following: tuple[int | None, int, int] | None = None
    for run in runs:
        payload, level, row, rows = run
        if (payload, level, row) == following:
            merged[-1] = (merged[-1][0], merged[-1][1] + rows)
        else:
            merged.append((run, rows))
        following = (payload, level, row + rows if payload is not None and payload > 0 else row)
    return tuple(first._replace(rows=count) for first, count in merged)


def _row_bytes(rows: Tensor) -> list[bytes]:
    plain = rows.detach().cpu().contiguous()
    if plain.is_floating_point():
        # -0.0 has a set bit and is a zero all the same: adding 0.0 makes it +0.0.
        plain = plain + 0.0
        # A cast may keep or drop the payload bits of a NaN; fill_ writes one pattern.
        plain = plain.masked_fill(plain.isnan(), torch.nan)
    if not plain.numel():
        return [b""] * len(plain)
    together = bytes_of(plain).numpy().tobytes()
    size = len(together) // len(plain)
    return [together[start : start + size] for start in range(0, len(together), size)]


def bytes_of(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor (.., n) as uint8 (.., n * bytes of an element)."""
    plain = tensor.detach().contiguous()
    if (
        plain.stride(-1) != 1
    ):  # a single column: torch calls any stride contiguous, and cannot view it as bytes
        plain = plain.clone(memory_format=torch.contiguous_format)
    return plain.view(torch.uint8)


def join_answers(answers: Sequence[Answer]) -> Answer | None:
    """Join what get returned to the micro-batches of one step: their rows follow each other, level by level.

    None where get was not called; one return value of None makes the whole None.
    """
    if len(answers) < 2 or any(answer.structure == "none" for answer in answers):
        return min(answers, key=lambda answer: answer.structure == "tensors", default=None)
    levels = zip(*(answer.rows for answer in answers), strict=True)
    return replace(answers[0], rows=tuple(merge(chain.from_iterable(parts)) for parts in levels))


class TypeNames:
    """Names of types; two types with the same `__name__` get different names."""

    def __init__(self) -> None:
        """Begin with the types of a correct return value of get: `tuple` and `Tensor`."""
        self._names: dict[type, str] = {tuple: "tuple", Tensor: "Tensor"}

    def name(self, of: type) -> str:
        """Return the name of a type, with a number where another type has it already."""
        if of not in self._names:
            taken = sum(known.__name__ == of.__name__ for known in self._names)
            self._names[of] = f"{of.__name__} (type {taken + 1} of that name)" if taken else of.__name__
        return self._names[of]


def levels_of(answer: object) -> tuple[Tensor, ...]:
    """Return the tensors (P, hidden) of what get returned; none for None or one tensor for all levels."""
    given = () if isinstance(answer, Tensor) else levels_in(answer) or ()
    # A level that is no tensor of two dimensions is left out, and is then missing.
    return tuple(level for level in given if isinstance(level, Tensor) and level.dim() == 2)


def answer_facts(
    answer: tuple[Tensor, ...] | None, owners: RowOwners, types: TypeNames | None = None
) -> Answer:
    """Return the facts of one get: structure, rows and their owners, placement, addresses, what guards see.

    `answer` has a (P, hidden) tensor per level. `types` has the names of the types that were returned before.
    """
    if answer is None:
        return Answer("none")
    types = types or TypeNames()
    levels = levels_of(answer)
    original = answer.original if isinstance(answer, AdaptedAnswer) else answer
    # What guards look at: the tensors of the code under test, and no views.
    guarded: Sequence[Tensor] = levels
    if isinstance(original, Tensor):
        guarded = [original] * len(levels)
    elif isinstance(answer, AdaptedAnswer):
        guarded = [level for level in levels_in(original) or () if isinstance(level, Tensor)]
    return Answer(
        structure="tensors",
        rows=owners.runs_of(levels),
        hidden=tuple(level.size(1) for level in levels),
        dtypes=tuple(str(level.dtype).removeprefix("torch.") for level in levels),
        devices=tuple(str(level.device) for level in levels),
        addresses=tuple(level.data_ptr() if level.device.type != "meta" else 0 for level in levels),
        container=types.name(type(original)),
        strides=tuple(tuple(level.stride()) for level in levels),
        gradients=tuple(tensor.requires_grad for tensor in guarded),
        types=tuple(types.name(type(tensor)) for tensor in guarded),
    )


Payload = tuple[Tensor, ...] | None


@dataclass(frozen=True)
class _Graphed:
    """Return value of get when a graph was captured: addresses in bytes, storages, and generation."""

    addresses: tuple[int, ...]
    storages: tuple[StorageWeakRef, ...]
    generation: int | None


class StorageWatch:
    """Record of the storage that the graph of each captured size was captured on."""

    def __init__(self) -> None:
        """Start without a captured graph."""
        self._graphs: dict[int, _Graphed] = {}

    def note_capture(self, tokens: int, payload: Payload, generation: int | None) -> None:
        """Note that a graph for `tokens` was captured while get returned `payload`; it replaces any other."""
        storages = (
            StorageWeakRef(level.untyped_storage())  # type: ignore[no-untyped-call]
            for level in levels_of(payload)
        )
        self._graphs[tokens] = _Graphed(_addresses(payload), tuple(storages), generation)

    def use(self, generation: int | None, allocated: int = 0) -> GraphUse | None:
        """Return the facts that hold between replays; None while nothing is captured."""
        return GraphUse(freed=self._freed(generation), allocated=allocated) if self._graphs else None

    def replayed(self, tokens: int, payload: Payload, generation: int | None) -> GraphUse:
        """Return the use of the graph for `tokens`, replayed at a moment when get returns `payload`.

        A graph that was captured with None reads no storage, so it is not detached from any; nor is one whose
        buffer announced its move in this very get, by another generation. Equal addresses do not suffice: an
        allocator may allocate freed memory again.
        """
        graph, now = self._graphs[tokens], _addresses(payload)
        left = graph.addresses != now or any(ref.expired() for ref in graph.storages)  # type: ignore[no-untyped-call]
        moved = bool(graph.addresses and now and left)
        return GraphUse(detached=moved and graph.generation == generation, freed=self._freed(generation))

    def _freed(self, generation: int | None) -> int:
        """Count storages that graphs of this generation read and that are freed.

        Graphs of another generation are captured again before they are replayed: their storage may be freed.
        """
        graphs = (graph for graph in self._graphs.values() if graph.generation == generation)
        storages = {ref.cdata: ref for graph in graphs for ref in graph.storages}
        return sum(ref.expired() for ref in storages.values())  # type: ignore[no-untyped-call]


def _addresses(payload: Payload) -> tuple[int, ...]:
    return tuple(level.data_ptr() for level in levels_of(payload))
