"""A language model that computes nothing and keeps what it is given."""

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor

from deepstack_harness.binding.stand_ins import Settings
from deepstack_harness.errors import UsageError

PAYLOAD = "deepstack_input_embeds"
"""The argument by which every deepstack class hands its payload to the language model."""

_EMBEDDING_MULTIPLIER = 2.0  # only Granite asks for it; the payload must not depend on it


class Mirrors:
    """Copies of tensors that the class under test changes right after it has shown them.

    One storage has one copy for as long as this object lives, so that addresses of copies are
    equal, or differ, exactly where those of the originals do.
    """

    def __init__(self) -> None:
        """Start without copies."""
        # Originals are kept: freed storage could be handed out again at the same address.
        self._copies: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}

    def of(self, shown: Tensor) -> Tensor:
        """Return a copy of `shown` as it is now: same shape, strides, offset, dtype and device."""
        if shown.device.type == "meta":
            return shown
        original = shown.untyped_storage()
        key = (original.data_ptr(), shown.dtype)
        if key not in self._copies:
            room = original.nbytes() // shown.element_size()
            self._copies[key] = (shown, torch.empty(room, dtype=shown.dtype, device=shown.device))
        copy = self._copies[key][1].as_strided(shown.size(), shown.stride(), shown.storage_offset())
        return copy.copy_(shown)


class RecordingModel:
    """A stand-in for `self.language_model`, and for the text model inside it.

    It embeds every token to zeros (n, hidden), and keeps a copy of the payload of the last call.
    """

    def __init__(
        self,
        hidden: int,
        dtype: torch.dtype,
        device: torch.device,
        answer: Callable[[object], object] = lambda hidden: hidden,
    ) -> None:
        """Make embeddings with `hidden` columns, of `dtype` on `device`.

        `answer` makes the answer of a call out of hidden states (1, hidden).
        """
        self._answer = answer
        self.config = Settings("language_model.model.config", embedding_multiplier=_EMBEDDING_MULTIPLIER)
        self.hidden = hidden
        self.device = device
        self._embedding = torch.zeros(1, hidden, dtype=dtype, device=device)
        self._mirrors = Mirrors()
        self._given: object = None

    @property
    def model(self) -> "RecordingModel":
        """The text model."""
        return self

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Return zeros (n, hidden) for ids (n,), new ones at every call: a class may write into them."""
        return self._embedding.repeat(input_ids.size(0), 1)

    def __call__(self, *_: object, **named: object) -> object:
        """Keep the payload and return hidden states (1, hidden), all zero, as the engine's models do."""
        if PAYLOAD not in named:
            raise UsageError(f"the language model is called without {PAYLOAD}=")
        self._given = self._copied(named[PAYLOAD])
        return self._answer(self._embedding)

    def take(self) -> tuple[Tensor, ...] | None:
        """Return the payload of the last call in level order, each level (P, hidden), or None."""
        return cast("tuple[Tensor, ...] | None", self._given)

    def _copied(self, payload: object) -> tuple[Tensor, ...] | None:
        if payload is None:
            return None
        return tuple(self._mirrors.of(rows) for rows in in_level_order(payload))


def in_level_order(payload: object) -> tuple[Tensor, ...]:
    """Order levels, each (P, hidden), by the number that ends every name: `.._embeds_0` or layers `ds_3`.

    Raises `UsageError` when the names do not tell the order.
    """
    tensors = getattr(payload, "tensors", payload)
    if not isinstance(tensors, Mapping):
        raise UsageError(f"{PAYLOAD} of the language model is a {type(payload).__name__}, not named tensors")
    numbers = {name: str(name).rpartition("_")[2] for name in tensors}
    if not all(number.isdecimal() for number in numbers.values()):
        raise UsageError(
            f"cannot tell the levels in {PAYLOAD} apart by their names: {', '.join(map(str, tensors))}"
        )
    return tuple(tensors[name] for name in sorted(tensors, key=lambda name: int(numbers[name])))
