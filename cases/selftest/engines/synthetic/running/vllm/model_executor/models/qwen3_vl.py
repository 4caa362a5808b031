"""A class with the buffer of vLLM 0.32: clear looks at a counter, and zeroes nothing while that is 0."""

from __future__ import annotations

import os
from types import SimpleNamespace

import torch

from vllm.sequence import IntermediateTensors  # type: ignore[import-not-found]

HIDDEN, LEVELS, VOCABULARY = 8, 2, 320


class Qwen3VLForConditionalGeneration(torch.nn.Module):
    """A decoder that sums hidden states, and its payload buffer."""

    def __init__(self, config: SimpleNamespace, capacity: int, *, compiled: bool) -> None:
        super().__init__()
        self.config = config
        self.deepstack_input_embeds = [torch.zeros(capacity, HIDDEN) for _ in range(LEVELS)]
        if os.environ.get("STAND_IN_FAULT") != "counts_later":
            self.deepstack_input_embeds_num_tokens = 0
        generator = torch.Generator().manual_seed(1)
        self._table = torch.randn(VOCABULARY, HIDDEN, generator=generator)
        self._head = torch.randn(HIDDEN, VOCABULARY, generator=generator)
        self._compiled, self._adds = compiled, None if compiled else True

    def embed_input_ids(
        self, input_ids: torch.Tensor, multimodal_embeddings: list[torch.Tensor] | None = None, *,
        is_multimodal: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Embed ids (n,) -> (n, hidden), and set the payload of visual rows."""
        embeds = self._table[input_ids]
        if multimodal_embeddings and is_multimodal is not None and is_multimodal.any():
            packed = torch.cat(list(multimodal_embeddings))
            embeds[is_multimodal] = packed[:, :HIDDEN]
            payload = torch.zeros(LEVELS, len(input_ids), HIDDEN)
            for level, part in zip(payload, torch.split(packed[:, HIDDEN:], HIDDEN, -1), strict=True):
                level[is_multimodal] = part
            self._set_deepstack_input_embeds(payload)
        return embeds

    def forward(self, embeds: torch.Tensor) -> torch.Tensor:
        """Return hidden states (n, hidden)."""
        rows = embeds.shape[0]
        payload = self._get_deepstack_input_embeds(rows)
        if self._adds is None:  # the first run is compiled: what is None stays away
            self._adds = payload is not None
        if payload is not None and self._adds:
            embeds = embeds + sum(payload.tensors.values())
        self._clear_deepstack_input_embeds(rows)
        return embeds

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities (vocabulary,) of a sum of hidden states (hidden,)."""
        return (torch.tanh(hidden) @ self._head).log_softmax(-1)

    def _set_deepstack_input_embeds(self, payload: torch.Tensor) -> None:
        rows = payload.shape[1]
        for level, part in zip(self.deepstack_input_embeds, payload, strict=True):
            level[:rows].copy_(part)
        self.deepstack_input_embeds_num_tokens = rows

    def _get_deepstack_input_embeds(self, rows: int) -> IntermediateTensors | None:
        if os.environ.get("STAND_IN_FAULT") == "none_first" and not self._count():
            return None
        return IntermediateTensors({
            f"deepstack_input_embeds_{number}": level[:rows]
            for number, level in enumerate(self.deepstack_input_embeds)
        })  # fmt: skip

    def _count(self) -> int:
        return getattr(self, "deepstack_input_embeds_num_tokens", 0)

    def _clear_deepstack_input_embeds(self, rows: int) -> None:
        fault = os.environ.get("STAND_IN_FAULT")
        skipped = not self._count() and fault != "clears_always"
        if fault == "keeps_rows" or skipped:
            return
        for level in self.deepstack_input_embeds:
            level[:rows].zero_()
        self.deepstack_input_embeds_num_tokens = 0
