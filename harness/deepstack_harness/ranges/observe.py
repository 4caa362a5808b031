"""Put every question of `deepstack_harness.ranges.inputs` to a placeholder range."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from deepstack_harness.contract.facts.ranges import Bounds, RangeAnswer, RangeObservation, RangeQuestions
from deepstack_harness.contract.facts.systems import SystemSubject
from deepstack_harness.ranges.inputs import masks, outside, ranges
from deepstack_harness.ranges.placeholder_range import KEPT, MakeRange, PlaceholderRange

OFFSET = 5  # that a placeholder does not begin the prompt must not matter
_OUTSIDE = (("0110", 4), (None, 4))


def observe_ranges(subject: SystemSubject, make: MakeRange) -> RangeObservation:
    """Return the answers of what `make` makes; an exception is an answer too."""
    return RangeObservation(
        subject,
        kept_as(make),
        tuple(ask(make, mask, length, ranges(length)) for mask, length in masks()),
        tuple(ask(make, mask, length, outside(length)) for mask, length in _OUTSIDE),
        str(torch.__version__),
    )


def ask(make: MakeRange, mask: str | None, length: int, asked: Iterable[Bounds]) -> RangeQuestions:
    """Ask one placeholder; `mask` as in `RangeQuestions`."""
    made: list[PlaceholderRange] = []
    failed = _answer(lambda: made.append(make(OFFSET, length, as_tensor(mask))))
    if not made:
        return RangeQuestions(
            mask, length, str(failed), tuple(RangeAnswer(*each, str(failed)) for each in asked)
        )
    answers = tuple(RangeAnswer(start, end, _bounds(made[0], start, end)) for start, end in asked)
    embeds = _answer(made[0].get_num_embeds)
    return RangeQuestions(mask, length, embeds if type(embeds) is int else str(embeds), answers)


def as_tensor(mask: str | None) -> Tensor | None:
    """Return `0110` as a boolean tensor (4,)."""
    return None if mask is None else torch.tensor([bit == "1" for bit in mask], dtype=torch.bool)


def kept_as(make: MakeRange) -> str:
    """Return the type in which a class keeps its cumulative sum: `tensor`, `list`, or `unknown`."""
    kept = _answer(lambda: getattr(make(0, 2, as_tensor("01")), KEPT, None))
    return {Tensor: "tensor", list: "list"}.get(type(kept), "unknown")


def _bounds(placeholder: PlaceholderRange, start: int, end: int) -> Bounds | str:
    found = _answer(lambda: placeholder.get_embeds_indices_in_range(start, end))
    # A tensor that equals the right number is no index: lists are sliced with it, and it costs as much.
    match found:
        case (int(first), int(last)) if type(found) is tuple:
            return first, last
    return str(found)


def _answer(call: Callable[[], object]) -> object:
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # what a class raises is its answer
        return f"{type(error).__name__}: {error}"
