"""The buffers of released models, one class for each change of their semantics.

vLLM's Qwen3-VL and Qwen3-Omni: upstream the four methods are `_get_deepstack_input_embeds`, `_set_..`,
`_clear_..` and (since #43617) `_resize_..` of the model class. Here a buffer has storage of its own, per
level a tensor (capacity, hidden). A count is a number of token rows.

vllm-omni's Qwen3-Omni thinker: a copy of vLLM's buffer with other semantics, read in
`vllm_omni/model_executor/models/qwen3_omni/qwen3_omni_moe_thinker.py` of 0.30.0 (lines 1142 to 1226); 0.22.0
is the first release whose get has this form.

vLLM's Granite 4 Vision: whole levels (#40282), sliced ones (#40917), and one of our own. Upstream has no
get, set or clear: `Granite4VisionForConditionalGeneration` does their work inside its `embed_input_ids` (set)
and `forward` (get before the language model, clear after it). Its buffer never grows.
"""

import torch
from torch import Tensor
from typing_extensions import override

from deepstack_harness.errors import StepUnavailable
from deepstack_harness.models.engine import Payload, WrapsDecoder


class OriginalBuffer:
    """vLLM 0.11 .. 0.19.1, the first revision: no counter of set tokens, and get always slices."""

    def __init__(
        self, capacity: int, hidden: int, levels: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate `levels` zeroed tensors (capacity, hidden)."""
        self._hidden = hidden
        self._levels = [torch.zeros(capacity, hidden, dtype=dtype, device=device) for _ in range(levels)]

    @property
    def capacity(self) -> int:
        """Token rows of a level."""
        return self._levels[0].size(0)

    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return a slice (min(tokens, capacity), hidden) of every level."""
        return tuple(level[:tokens] for level in self._levels)

    def set(self, payload: Tensor) -> None:
        """Copy a payload (levels, N, hidden) into rows [0, N).

        Above the capacity the storage is allocated anew; captured graphs still read the old one.
        """
        tokens = payload.size(1)
        if tokens > self.capacity:
            self._reallocate(tokens)
        for index, level in enumerate(self._levels):
            level[:tokens].copy_(payload[index])

    def clear(self, tokens: int) -> None:
        """Zero the first `tokens` rows of every level."""
        if tokens > 0:
            for level in self._levels:
                level[:tokens].zero_()

    def resize(self, tokens: int) -> None:
        """Raise `StepUnavailable`: upstream has no such call before #43617."""
        raise StepUnavailable(f"{type(self).__name__} has no resize")

    def _reallocate(self, rows: int) -> None:
        self._levels = [level.new_zeros(rows, self._hidden) for level in self._levels]


class Pr40145Buffer(OriginalBuffer):
    """vLLM 0.20.0 and 0.20.1 (#40145): a counter of set tokens, None when empty, and checks against it."""

    _tokens_set = 0

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return (tokens, hidden) per level, or None while the counter is 0 (vLLM issue 43602).

        Raises `ValueError` for more tokens than were set.
        """
        if self._tokens_set == 0:
            return None
        self._check(tokens, "get")
        return super().get(tokens)

    @override
    def set(self, payload: Tensor) -> None:
        """Copy a payload (levels, N, hidden) and count N; rows after N stay as they are."""
        super().set(payload)
        self._tokens_set = payload.size(1)

    @override
    def clear(self, tokens: int) -> None:
        """Zero the first `tokens` rows and reset the counter; do nothing while the counter is 0.

        Raises `ValueError` for more tokens than were set.
        """
        if self._tokens_set == 0:
            return
        if tokens > 0:
            self._check(tokens, "clear")
            super().clear(tokens)
            self._tokens_set = 0

    def _check(self, tokens: int, call: str) -> None:
        # The count of the caller is padded, the counter is not: vLLM issue 41485.
        if tokens > self._tokens_set:
            raise ValueError(f"{call} of {tokens} tokens, but only {self._tokens_set} were set")


class Pr40932Buffer(Pr40145Buffer):
    """vLLM 0.20.2 .. 0.22.1 (#40932): the checks are gone, the None of an empty buffer stays."""

    @override
    def _check(self, tokens: int, call: str) -> None:
        """Accept every count; a get above the capacity returns fewer rows."""


class Pr43617Buffer(Pr40932Buffer):
    """vLLM 0.23.0 .. 0.27 (#43617): get never returns None; above the capacity it grows from zeros."""

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return (tokens, hidden) per level, zeros when empty; growth loses the payload."""
        if tokens > self.capacity:
            self.resize(tokens)
        return OriginalBuffer.get(self, tokens)

    @override
    def resize(self, tokens: int) -> None:
        """Allocate zeroed storage of `tokens` rows; nothing is copied, and the counter stays."""
        self._reallocate(tokens)


class Pr49397Buffer(Pr43617Buffer):
    """vLLM 0.28.0 .. 0.33.0 (#49397): no buffer at all where the vision tower is skipped."""

    def __init__(
        self,
        capacity: int,
        hidden: int,
        levels: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        vision: bool = True,
    ) -> None:
        """Allocate `levels` zeroed tensors (capacity, hidden); they are used only with a vision tower."""
        super().__init__(capacity, hidden, levels, dtype=dtype, device=device)
        self.vision = vision

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return (tokens, hidden) per level, or None without a vision tower."""
        return super().get(tokens) if self.vision else None

    @override
    def set(self, payload: Tensor) -> None:
        """Copy a payload (levels, N, hidden); drop it without a vision tower."""
        if self.vision:
            super().set(payload)


class Pr44384Buffer(Pr43617Buffer):
    """vLLM #44384, not merged: levels that are made anew in the dtype and on the device of a tensor."""

    def follow(self, like: Tensor) -> None:
        """Make the levels anew, zeroed, unless they have the dtype and device of `like` (n, hidden).

        Upstream, get itself is given the embeddings of the step.
        """
        if {(level.dtype, level.device) for level in self._levels} != {(like.dtype, like.device)}:
            shape = (self.capacity, self._hidden)
            self._levels = [torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in self._levels]

    @override
    def set(self, payload: Tensor) -> None:
        """Follow a payload (levels, N, hidden) to its dtype and device, then copy it."""
        self.follow(payload)
        super().set(payload)


class OmniBuffer(Pr43617Buffer):
    """vllm-omni 0.22.0 .. 0.30.0: get zeroes the rows after the count before it returns.

    No row of an earlier payload is read that way. A graph that was captured with a count of 0 has the
    zeroing of all rows in it, and erases what set wrote at each replay.
    """

    name = "omni_0_22"

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Zero rows [N, tokens), and return (tokens, hidden) per level; growth loses the payload."""
        if tokens > self.capacity:
            self.resize(tokens)
        if tokens > self._tokens_set:
            for level in self._levels:
                level[self._tokens_set : tokens].zero_()
        return OriginalBuffer.get(self, tokens)


class GraniteSlicedBuffer(OriginalBuffer):
    """Granite of vLLM 0.21.0 .. 0.33.0 (#40917): levels are sliced to the step.

    A counter holds the number of tokens of the last step with images. There is no resize.
    """

    _tokens_set = 0

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return a slice (min(tokens, capacity), hidden) of every level.

        Raises `StepUnavailable` for a negative count.
        """
        _refuse_negative(tokens)
        return super().get(tokens)

    @override
    def set(self, payload: Tensor) -> None:
        """Scatter a payload (levels, N, hidden) into rows [0, N); rows after N stay as they are.

        N = 0 is a step of text: only the counter is reset. Above the capacity `IndexError` is
        raised after level 0 was zeroed. Surplus levels are dropped. The hidden size is not
        checked level by level, because all levels of a token arrive in one row and are split again.
        """
        tokens = payload.size(1)
        if tokens:
            self._levels = [level.to(device=payload.device, dtype=payload.dtype) for level in self._levels]
            packed = payload.permute(1, 0, 2).flatten(1)
            visual = torch.ones(tokens, dtype=torch.bool, device=payload.device)
            features = torch.split(packed, self._hidden, dim=-1)
            for index, level in enumerate(self._levels):
                rows = level[:tokens]
                rows.zero_()
                rows[visual] = features[index]  # through a mask of visual tokens, as upstream
        self._tokens_set = tokens

    @override
    def clear(self, tokens: int) -> None:
        """Zero as many rows as the counter states, whatever `tokens` is, and reset the counter.

        Raises `StepUnavailable` for a negative count.
        """
        _refuse_negative(tokens)
        for level in self._levels:
            level[: self._tokens_set].zero_()
        self._tokens_set = 0


class GraniteFullBuffer(GraniteSlicedBuffer):
    """Granite of vLLM 0.20.0 .. 0.20.2 (#40282): whole levels reach the compiled model."""

    @override
    def get(self, tokens: int) -> tuple[Tensor, ...] | None:
        """Return (capacity, hidden) for every level, whatever `tokens` is (vLLM 40917).

        Raises `StepUnavailable` for a negative count.
        """
        super().get(tokens)
        return tuple(self._levels)


class ClampsLevels(WrapsDecoder):
    """A decoder that first clamps its levels, in place, to the finite values of their dtype.

    Models whose features may overflow in float16 do so (transformers, `T5Block.forward`). Finite
    values, and with them the output, stay as they are.
    """

    @override
    def levels(self, hidden: Tensor, payload: Payload | None) -> Payload | None:
        """Clamp one (rows, h) per level, and return them."""
        for level in payload or ():
            level.clamp_(torch.finfo(level.dtype).min, torch.finfo(level.dtype).max)
        return payload


class GraniteRowsBuffer(GraniteFullBuffer):
    """`granite_full` whose graph writes back all rows, so that no kernel can leave one out: our own.

    Of a whole level that is only read, Inductor fuses the slice away and generates the code of the
    sliced buffer. This revision is ours: it has no release.
    """

    in_graph = ClampsLevels


def _refuse_negative(tokens: int) -> None:
    if tokens < 0:
        raise StepUnavailable(
            "Granite counts the hidden states it is given: there is no step of fewer than 0"
        )
