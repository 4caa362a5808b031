"""A class that stores its payload in an attribute, None until the first audio, and passes it on."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from vllm.model_executor.models.qwen3_vl import LEVELS, Qwen3VLForConditionalGeneration  # type: ignore[import-not-found]
from vllm.sequence import IntermediateTensors  # type: ignore[import-not-found]


class MossAudioModel(Qwen3VLForConditionalGeneration):  # type: ignore[misc]
    """The decoder of the other class, compiled with an optional payload.

    `compiled` drops the guard on the payload's presence: what the first run found stays; `guards` retains it.
    """

    def __init__(self, config: SimpleNamespace, capacity: int, *, compiled: bool, guards: bool) -> None:
        super().__init__(config, capacity, compiled=compiled)
        self.deepstack_input_embeds: IntermediateTensors | None = None
        self.language_model = SimpleNamespace(
            model=SimpleNamespace(deepstack_inject_layer_indices=range(LEVELS))
        )
        self._guards = guards
        self._found: bool | None = None if compiled else True

    def embed_input_ids(
        self, input_ids: torch.Tensor, multimodal_embeddings: list[torch.Tensor] | None = None, *,
        is_multimodal: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Embed ids (n,) -> (n, hidden), and store the payload of a step with audio."""
        self.deepstack_input_embeds = None
        embeds: torch.Tensor = super().embed_input_ids(
            input_ids, multimodal_embeddings, is_multimodal=is_multimodal
        )
        return embeds

    def forward(
        self, input_ids: torch.Tensor | None, positions: object = None, intermediate_tensors: object = None,
        *, inputs_embeds: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """Return hidden states (n, hidden)."""
        payload, self.deepstack_input_embeds = self.deepstack_input_embeds, None
        if self._found is None and not self._guards:
            self._found = payload is not None
        if payload is not None and (self._found or self._guards):
            inputs_embeds = inputs_embeds + sum(payload.tensors.values())
        return inputs_embeds

    def _set_deepstack_input_embeds(self, payload: torch.Tensor) -> None:
        names = (f"deepstack_input_embeds_{level}" for level in range(LEVELS))
        self.deepstack_input_embeds = IntermediateTensors(dict(zip(names, payload, strict=True)))
