"""A buffer that passes every rule of the contract; the mutants are subclasses of it."""

import torch
from torch import Tensor


class ReferenceBuffer:
    """The buffer that passes every rule: levels of (capacity, hidden), always tensors, grown without loss.

    `generation` counts moves of the storage. It changes before the first get from new storage;
    old storage stays allocated until `release`, so that graphs captured on it stay valid (R6).

    >>> buffer = ReferenceBuffer(4, 2, 1, dtype=torch.float32, device=torch.device("cpu"))
    >>> len(buffer.get(9)), buffer.capacity
    (1, 9)
    """

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate `levels` zeroed tensors (capacity, hidden)."""
        self._levels = [torch.zeros(capacity, hidden, dtype=dtype, device=device) for _ in range(levels)]
        self._retired: list[list[Tensor]] = []
        self._tokens_set = 0
        self.generation = 0

    @property
    def capacity(self) -> int:
        """Token rows of a level."""
        return self._levels[0].size(0)

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return (tokens, hidden) per level, growing above the capacity.

        Raises `ValueError` for a negative count.
        """
        self._make_room(_counted(tokens, "get"))
        return tuple(level[:tokens] for level in self._levels)

    def set(self, payload: Tensor) -> None:
        """Copy a payload (levels, N, hidden), and zero the rows of a longer payload after N.

        Raises `ValueError` for another number of levels or hidden size, before anything changes.
        """
        tokens = self._check(payload)
        self._make_room(tokens)
        for level, rows in zip(self._levels, payload, strict=True):
            level[:tokens].copy_(rows)
            level[tokens : self._tokens_set].zero_()
        self._tokens_set = tokens

    def clear(self, tokens: int) -> None:
        """Zero all rows that hold data, and the first `tokens` rows in any case.

        Raises `ValueError` for a negative count.
        """
        # A captured clear replays with the counter of the capture, so the counter does not suffice.
        rows = max(_counted(tokens, "clear"), self._tokens_set)
        for level in self._levels:
            level[:rows].zero_()
        self._tokens_set = 0

    def resize(self, tokens: int) -> None:
        """Move to new storage of `tokens` rows, with the payload.

        Raises `ValueError` for a negative count, and for fewer rows than the payload has.
        """
        if _counted(tokens, "resize") < self._tokens_set:
            raise ValueError(f"resize to {tokens} rows would cut a payload of {self._tokens_set} tokens")
        self.generation += 1
        self._retired.append(self._levels)
        self._levels = [_moved(level, tokens, self._tokens_set) for level in self._levels]

    def release(self) -> None:
        """Free the storage of earlier generations, after graphs were captured again."""
        self._retired.clear()

    def _make_room(self, tokens: int) -> None:
        if tokens > self.capacity:
            self.resize(tokens)

    def _check(self, payload: Tensor) -> int:
        """Return N of a payload (levels, N, hidden)."""
        levels, tokens, hidden = payload.shape
        wanted = (len(self._levels), self._levels[0].size(1))
        if (levels, hidden) != wanted:
            raise ValueError(
                f"payload of {levels} levels and hidden {hidden}, this buffer has {wanted[0]} and {wanted[1]}"
            )
        return tokens


def _counted(tokens: int, call: str) -> int:
    if tokens < 0:
        raise ValueError(f"{call} of {tokens} tokens: a count is 0 or more")
    return tokens


def _moved(level: Tensor, rows: int, keep: int) -> Tensor:
    """Return zeros (rows, hidden) with the first `keep` rows of `level` (capacity, hidden)."""
    moved = level.new_zeros(rows, level.size(1))
    moved[:keep].copy_(level[:keep])
    return moved
