"""A scheduler with a token budget, and the runner of one step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from vllm.model_executor.models.qwen3_vl import HIDDEN, LEVELS  # type: ignore[import-not-found]

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
AUDIO = "<|audio_bos|><|AUDIO|><|audio_eos|>"
ROWS_OF_AN_IMAGE = 4
_PAD = 262


class Running:
    """A request: its prompt as ids, its features, and the sum of the hidden states that were computed."""

    def __init__(self, name: str, prompt: dict[str, Any], wanted: Any) -> None:  # noqa: ANN401
        self.name, self.wanted = name, wanted
        data = prompt.get("multi_modal_data", {})
        images = data.get("image", []) + [wave for wave, _ in data.get("audio", [])]
        parts = prompt["prompt"].replace(AUDIO, IMAGE).split(IMAGE)
        ids: list[int] = []
        for number, part in enumerate(parts):
            ids += [_PAD] * (ROWS_OF_AN_IMAGE if number else 0) + [ord(letter) for letter in part]
        self.ids, self.prompt = ids, len(ids)
        self.features = [_features(image) for image in images]
        self.computed, self.sum = 0, torch.zeros(HIDDEN)
        self.tokens: list[int] = []
        self.figures: list[dict[int, SimpleNamespace]] = []

    def take(self, count: int) -> tuple[list[int], torch.Tensor]:
        """Return the next ids, and the features (visual rows, width) of those that are visual."""
        ids = self.ids[self.computed : self.computed + count]
        before = sum(token == _PAD for token in self.ids[: self.computed])
        rows = torch.cat(self.features) if self.features else torch.zeros(0, HIDDEN * (1 + LEVELS))
        return ids, rows[before : before + sum(token == _PAD for token in ids)]

    def advance(self, hidden: torch.Tensor, model: Any) -> None:  # noqa: ANN401
        """Add hidden states (n, hidden); generate a token where the last id was computed."""
        for row in hidden:  # one after the other: a sum depends on its order
            self.sum = self.sum + row
        self.computed += len(hidden)
        if self.computed == len(self.ids):
            figures = model.compute_logits(self.sum / self.computed)
            self.figures.append({i: SimpleNamespace(logprob=float(x)) for i, x in enumerate(figures)})
            self.tokens.append(int(figures[:256].argmax()))
            self.ids.append(self.tokens[-1])

    def output(self) -> SimpleNamespace:
        """Return the output as the engine gives it."""
        answer = SimpleNamespace(token_ids=self.tokens, logprobs=self.figures)
        return SimpleNamespace(finished=True, request_id=self.name, outputs=[answer])


class Scheduler:
    """Requests in the order of their arrival, decodes before prefill, as many tokens as the budget allows."""

    def __init__(self, capacity: int) -> None:
        self.max_num_scheduled_tokens = capacity
        self.running: list[Running] = []

    def add(self, name: str, prompt: dict[str, Any], wanted: Any) -> None:  # noqa: ANN401
        """Take a request."""
        self.running.append(Running(name, prompt, wanted))

    @property
    def requests(self) -> dict[str, SimpleNamespace]:
        """All requests by name, as far as their prompts are computed."""
        return {
            entry.name: SimpleNamespace(num_computed_tokens=entry.computed, num_prompt_tokens=entry.prompt)
            for entry in self.running
        }

    def schedule(self) -> list[tuple[Running, int]]:
        """Return the requests of the next step, each with its tokens."""
        left, chosen = self.max_num_scheduled_tokens, []
        for request in self.running:
            count = min(left, len(request.ids) - request.computed)
            if count:
                chosen.append((request, count))
                left -= count
        return chosen


class Runner:
    """A runner with the two members that decide about graphs."""

    uniform_decode_query_len = 1

    def __init__(self, model: Any, capacity: int) -> None:  # noqa: ANN401
        self._model, self._capacity = model, capacity
        self.vllm_config = SimpleNamespace(compilation_config=SimpleNamespace())
        self.input_batch = SimpleNamespace(req_ids=[], num_computed_tokens_cpu=[], num_prompt_tokens=[])

    def get_model(self) -> Any:  # noqa: ANN401
        """Return the model."""
        return self._model

    def profile(self) -> None:
        """Run the largest step, without embedding anything."""
        self._forward(torch.zeros(self._capacity, HIDDEN))

    def execute(self, chosen: list[tuple[Running, int]]) -> None:
        """Run one step."""
        if not chosen:
            return
        counts = torch.tensor([count for _, count in chosen]).numpy()
        batch = self.input_batch
        batch.req_ids = [request.name for request, _ in chosen]
        batch.num_computed_tokens_cpu = [request.computed for request, _ in chosen]
        batch.num_prompt_tokens = [request.prompt for request, _ in chosen]
        self._determine_batch_execution_and_padding(
            num_tokens=int(counts.sum()), num_reqs=len(chosen), num_scheduled_tokens_np=counts,
            max_num_scheduled_tokens=int(counts.max()),
        )  # fmt: skip
        taken = [request.take(count) for request, count in chosen]
        ids = torch.tensor([token for part, _ in taken for token in part])
        rows = [features for _, features in taken if len(features)]
        embeds = self._model.embed_input_ids(ids, rows, is_multimodal=ids == _PAD)
        hidden = self._forward(embeds)
        for (request, _), part in zip(chosen, torch.split(hidden, counts.tolist()), strict=True):
            request.advance(part, self._model)

    def _forward(self, embeds: torch.Tensor) -> torch.Tensor:
        if hasattr(self._model, "language_model"):
            hidden: torch.Tensor = self._model.forward(input_ids=None, inputs_embeds=embeds)
        else:
            hidden = self._model.forward(embeds)
        return hidden

    def _determine_batch_execution_and_padding(self, **_: object) -> None:
        """Decide nothing: there are no graphs here."""

    def _is_uniform_decode(
        self, max_num_scheduled_tokens: int, uniform_decode_query_len: int, num_tokens: int, num_reqs: int
    ) -> bool:
        longest = max_num_scheduled_tokens
        return longest == uniform_decode_query_len and num_tokens == longest * num_reqs


def _features(image: Any) -> torch.Tensor:  # noqa: ANN401
    """Return features (rows, width) of an image, which follow from its pixels."""
    generator = torch.Generator().manual_seed(sum(image.tobytes()[:64]))
    return torch.randn(ROWS_OF_AN_IMAGE, HIDDEN * (1 + LEVELS), generator=generator)
