"""Placeholder ranges (R12): variants of ours, the class of a source, and what they return for short masks.

A multimodal item takes `length` positions of a prompt from `offset` on; a boolean mask `is_embed`
(length,) is True for those that receive an embedding, None means all (`PlaceholderRange`,
vllm/multimodal/inputs.py).

The contract: `get_num_embeds()` counts the positions that do, and `get_embeds_indices_in_range(start,
end)` counts those before `start` and before `end`, for 0 <= start <= end <= length.  It is called for every
mask of up to 6 positions with every range (`contract.oracles.neighbours.placeholders`).

The review of vLLM #40143 found two faults, which vLLM 0.19.1 has both, over a tensor: `Empty*` reads
index -1 of an empty mask, and in `Wraps*` `end_idx = 0` becomes index -1, which is the last.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from deepstack_harness.audit.system_files import RANGES_CLASS, RANGES_MEMBER, RANGES_SINCE
from deepstack_harness.catalogue.registry import PLACEHOLDER_RANGES
from deepstack_harness.contract.facts import (
    Bounds,
    PlaceholderAnswers,
    RangeObservation,
    SystemSubject,
)
from deepstack_harness.contract.oracles.neighbours import bounds_within, placeholders
from deepstack_harness.engines.load import LoadedSource, loaded_of
from deepstack_harness.engines.syntax import class_named
from deepstack_harness.errors import UsageError
from deepstack_harness.sources.source import Source, read_since


class PlaceholderRange(Protocol):
    """The part of vLLM's class that a scheduler calls."""

    def get_num_embeds(self) -> int:
        """Count its positions that receive an embedding."""
        ...

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int, /) -> tuple[int, int]:
        """Return the first and the one after the last embedding of positions [start_idx, end_idx)."""
        ...


MakeRange = Callable[[int, int, Tensor | None], PlaceholderRange]
"""How one is made: offset, length, and `is_embed` or None."""


@dataclass(frozen=True)
class TensorRange:
    """Up to vLLM 0.19.1, its two faults mended: the cumulative sum stays a tensor, indexed at every call.

    `is_embed` is boolean, of shape (length,).
    """

    offset: int
    length: int
    is_embed: Tensor | None = None

    @cached_property
    def embeds_cumsum(self) -> Any:  # noqa: ANN401  # a tensor (length,), or the list of its numbers
        """Embeddings up to each position, that one included; None without a mask."""
        return None if self.is_embed is None else self.is_embed.cumsum(dim=0)

    def get_num_embeds(self) -> int:
        """See `PlaceholderRange`."""
        if self.embeds_cumsum is None:
            return self.length
        return int(self.embeds_cumsum[-1]) if self.length else 0

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        """See `PlaceholderRange`."""
        if self.embeds_cumsum is None:
            return start_idx, end_idx
        return self._before(start_idx), self._before(end_idx)

    def _before(self, index: int) -> int:
        return int(self.embeds_cumsum[index - 1]) if index > 0 else 0


class ListRange(TensorRange):
    """From vLLM 0.20.0 on (#40143): the cumulative sum becomes a Python list, once."""

    @cached_property
    def embeds_cumsum(self) -> list[int] | None:
        """Embeddings up to each position, that one included."""
        return None if self.is_embed is None else self.is_embed.cumsum(dim=0).tolist()


class ReferenceRange(ListRange):
    """Range with the whole contract: arguments outside the placeholder raise `IndexError`."""

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        """See `PlaceholderRange`."""
        if not 0 <= start_idx <= end_idx <= self.length:
            raise IndexError(
                f"range [{start_idx}, {end_idx}) lies outside a placeholder of {self.length} positions: "
                "0 <= start <= end <= length"
            )
        return super().get_embeds_indices_in_range(start_idx, end_idx)


class EmptyTensorRange(TensorRange):
    """A fault: the embeddings of an empty mask are its last entry, which raises `IndexError`."""

    def get_num_embeds(self) -> int:
        """See `PlaceholderRange`."""
        return self.length if self.embeds_cumsum is None else int(self.embeds_cumsum[-1])


class EmptyListRange(EmptyTensorRange, ListRange):
    """List range that counts the embeddings of an empty mask by its last entry."""


class WrapsTensorRange(TensorRange):
    """A fault: where `end_idx` is 0, the count before it is read at index -1, the end."""

    def get_embeds_indices_in_range(self, start_idx: int, end_idx: int) -> tuple[int, int]:
        """See `PlaceholderRange`."""
        if self.embeds_cumsum is None:
            return start_idx, end_idx
        return self._before(start_idx), int(self.embeds_cumsum[end_idx - 1])


class WrapsListRange(WrapsTensorRange, ListRange):
    """List range that reads the count before position 0 at the end."""


class FaultyTensorRange(EmptyTensorRange, WrapsTensorRange):
    """Both faults, as vLLM 0.16.0 .. 0.19.1 have them."""


class FaultyListRange(FaultyTensorRange, ListRange):
    """Both faults: the first form of #40143."""


def range_named(name: str) -> MakeRange:
    """Return what makes the placeholder ranges of a variant; raises `UsageError` for an unknown name."""
    return cast(MakeRange, PLACEHOLDER_RANGES.load(name, callable, "a class or function that makes ranges"))


_METHODS = ("get_num_embeds", "get_embeds_indices_in_range")


@dataclass(frozen=True)
class BoundRange:
    """The class `PlaceholderRange` of an imported source; `line` is where it begins in `filename`."""

    loaded: LoadedSource
    filename: str
    line: int
    make: MakeRange

    def observe(self, subject: SystemSubject) -> RangeObservation:
        """Return what its ranges return; raise `CannotSupply` where one met what is not there."""
        with self.loaded.without_stubs():
            return observe_ranges(subject, self.make)


def bind_range(source: Source) -> BoundRange:
    """Import the file of `PlaceholderRange`.

    Raises `UsageError` when this vLLM has no such class, or one that cannot be made or has not both methods;
    `MachineError` when it cannot be fetched.
    """
    file = read_since(source, RANGES_MEMBER, RANGES_SINCE)
    root = class_named(file, RANGES_CLASS)
    methods = {
        node.name
        for node in root.body
        if isinstance(node, ast.FunctionDef)
        # Up to 0.15 get_num_embeds is a cached property, which a scheduler cannot call.
        and not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
    }
    if missing := [name for name in _METHODS if name not in methods]:
        raise UsageError(
            f"{file.filename}:{root.lineno}: {RANGES_CLASS} has no method {', '.join(missing)}, "
            f"as vLLM has since {RANGES_SINCE}"
        )
    loaded = loaded_of(source)
    # vLLM has torch from a lazy loader of its own.
    made = loaded.supplied(RANGES_MEMBER, RANGES_CLASS, {"torch": torch})
    return BoundRange(loaded, file.filename, root.lineno, made)


OFFSET = 5  # that a placeholder does not begin the prompt must not matter


def observe_ranges(subject: SystemSubject, make: MakeRange) -> RangeObservation:
    """Return what ranges of `make` return for every short mask; an exception is recorded as its text."""
    return RangeObservation(
        subject, stored_type(make), tuple(_observed(make, *placeholder) for placeholder in placeholders()),
        str(torch.__version__),
    )  # fmt: skip


def _observed(make: MakeRange, mask: str | None, length: int) -> PlaceholderAnswers:
    placeholder = _result(lambda: make(OFFSET, length, as_tensor(mask)))
    if isinstance(placeholder, str):
        return PlaceholderAnswers(mask, length, placeholder, (placeholder,) * len(bounds_within(length)))
    embeds = _result(placeholder.get_num_embeds)
    ranges = tuple(_bounds(placeholder, *bounds) for bounds in bounds_within(length))
    return PlaceholderAnswers(mask, length, embeds if type(embeds) is int else str(embeds), ranges)


def as_tensor(mask: str | None) -> Tensor | None:
    """Return `0110` as a boolean tensor (4,)."""
    return None if mask is None else torch.tensor([bit == "1" for bit in mask], dtype=torch.bool)


def stored_type(make: MakeRange) -> str:
    """Return the type in which a class stores its cumulative sum: `tensor`, `list`, or `unknown`."""
    stored = _result(lambda: getattr(make(0, 2, as_tensor("01")), "embeds_cumsum", None))
    return {Tensor: "tensor", list: "list"}.get(type(stored), "unknown")


def _bounds(placeholder: PlaceholderRange, start: int, end: int) -> Bounds | str:
    result = _result(lambda: placeholder.get_embeds_indices_in_range(start, end))
    # A tensor that equals the right number is no index: lists are sliced with it.
    match result:
        case (int(first), int(last)) if type(result) is tuple:
            return first, last
    return str(result)


def _result(call: Callable[[], Any]) -> Any:  # noqa: ANN401  # what code of a source returns
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # what a class raises is a fact
        return f"{type(error).__name__}: {error}"
