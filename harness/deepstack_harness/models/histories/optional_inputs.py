"""Optional inputs that the warm-up leaves out: embeddings, segments, encoder states, an output buffer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from deepstack_harness.models.histories import H, Program, drawn


class EmbeddingDecoder(nn.Module):
    """Decoder that embeds its token ids, unless it is given embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(32, H), nn.Linear(H, H)

    def forward(self, input_ids: Tensor, inputs_embeds: Tensor | None = None) -> Tensor:
        """Decode ids (n,) int64, or embeddings (n, H) -> (n, H)."""
        hidden = self.words(input_ids) if inputs_embeds is None else inputs_embeds
        return torch.tanh(self.layer(hidden))

    def embed(self, input_ids: Tensor, image: Tensor) -> Tensor:
        """Embed ids (n,) and put the rows of an image (i, H) over rows 1 to i -> (n, H)."""
        embeddings: Tensor = self.words(input_ids).detach()
        embeddings[1 : 1 + len(image)] = image
        return embeddings


def ids_in_the_first_run() -> Program:
    """Pass only token ids in the first run, and embeddings with images in later steps.

    Fault: `inputs_embeds` is None in the warm-up.
    """
    model, ids = EmbeddingDecoder(), torch.arange(6)
    first = {"input_ids": ids}  # THE FAULT; the fix: first = {"input_ids": ids, "inputs_embeds": drawn(6, H)}
    return model, [first, {"input_ids": ids, "inputs_embeds": model.embed(ids, drawn(3, H))}]


def embeddings_in_every_run() -> Program:
    """Pass embeddings in every run, the first one included."""
    model, ids = EmbeddingDecoder(), torch.arange(6)
    return model, [
        {"input_ids": ids, "inputs_embeds": model.embed(ids, ids.new_empty(0, H))},
        {"input_ids": ids, "inputs_embeds": model.embed(ids, drawn(3, H))},
    ]


class PairScorer(nn.Module):
    """Scorer of two texts in one sequence; `token_type_ids` has the number of the text of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.types, self.layer = nn.Embedding(32, H), nn.Embedding(2, H), nn.Linear(H, 1)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Score ids (n,) int64, with types (n,) int64 of 0 and 1 -> (1,)."""
        hidden = self.words(input_ids)
        if token_type_ids is not None:
            hidden = hidden + self.types(token_type_ids)
        score: Tensor = self.layer(torch.tanh(hidden)).mean(0)
        return score


def token_types_or_none() -> Program:
    """Pass segment ids only where a request has two texts.

    Fault: `token_type_ids` is None in the warm-up.
    """
    ids, types = torch.arange(6), torch.tensor([0, 0, 0, 1, 1, 1])
    first = {"input_ids": ids}  # THE FAULT; the fix: first = {"input_ids": ids, "token_type_ids": 0 * types}
    return PairScorer(), [first, {"input_ids": ids, "token_type_ids": types}]


def token_types_always() -> Program:
    """Pass segment ids in every run: zeros where a request has one text."""
    ids, types = torch.arange(6), torch.tensor([0, 0, 0, 1, 1, 1])
    return PairScorer(), [(ids, torch.zeros_like(types)), (ids, types), (ids, torch.zeros_like(types))]


TYPE_BIT = 30
"""A token id has fewer bits: this one is free to carry the segment."""


def scored_from_ids(scorer: PairScorer) -> Callable[[Tensor], Tensor]:
    """Return a region that reads the segment of each token out of its id."""

    def score(input_ids: Tensor) -> Tensor:
        types = (input_ids >> TYPE_BIT) & 1
        score: Tensor = scorer(input_ids & ~(1 << TYPE_BIT), types)
        return score

    return score


def token_types_in_bit_30() -> Program:
    """Carry the segment in bit 30 of each token id, so that no optional input is left."""
    ids, types = torch.arange(6), torch.tensor([0, 0, 0, 1, 1, 1])
    return scored_from_ids(PairScorer()), [(ids,), (ids | types << TYPE_BIT,), (ids,)]


class SpeechDecoder:
    """Decoder that stores the keys of the audio in the step that brings them."""

    def __init__(self) -> None:
        self.weight, self.keys = drawn(H, H), torch.zeros(5, H)

    def __call__(self, hidden: Tensor, encoder_hidden_states: Tensor | None = None) -> Tensor:
        """Decode (n, H), with the audio (5, H) in the first step of a request -> (n, H)."""
        if encoder_hidden_states is not None:
            self.keys.copy_(encoder_hidden_states @ self.weight)
        return hidden + torch.softmax(hidden @ self.keys.t(), dim=-1) @ self.keys


def encoder_states_seen_late() -> Program:
    """Compile the decoder in a decode, and call it with the audio later.

    Fault: `encoder_hidden_states` is None in the warm-up.
    """
    hidden, audio = drawn(2, H, seed=1), drawn(5, H, seed=2)
    prefill = {"hidden": hidden, "encoder_hidden_states": audio}
    late = prefill  # THE FAULT; the fix: late = lambda decoder: decoder(**prefill)
    return SpeechDecoder(), [(hidden,), late, (hidden,)]


def prefill_runs_uncompiled() -> Program:
    """Run the one step that brings the audio uncompiled, as vLLM's `skip_compiled` does."""
    hidden, audio = drawn(2, H, seed=1), drawn(5, H, seed=2)

    def prefill(decoder: SpeechDecoder) -> None:
        decoder(hidden, audio)

    return SpeechDecoder(), [(hidden,), prefill, (hidden,)]


class LogitsDrafter:
    """Drafter of tokens that writes its logits where the caller wants them."""

    def __init__(self) -> None:
        self.weight = drawn(H, 16)

    def __call__(self, hidden: Tensor, logits_out: Tensor | None = None) -> Tensor:
        """Draft from (n, H), with the logits (n, 16) written into `logits_out` -> ids (n,) int64."""
        logits = hidden @ self.weight
        if logits_out is not None:
            logits_out.copy_(logits)
        return logits.argmax(-1)


def logits_wanted_late() -> Program:
    """Compile the drafter without the buffer for its logits.

    Fault: `logits_out` is None in the warm-up.
    """
    hidden, out = drawn(3, H, seed=1), torch.zeros(3, 16)
    first = {"hidden": hidden}  # THE FAULT; the fix: first = {"hidden": hidden, "logits_out": out}
    return LogitsDrafter(), [first, {"hidden": hidden, "logits_out": out}]


def logits_always_written() -> Program:
    """Give the drafter the buffer for its logits from the first run on."""
    hidden, out = drawn(3, H, seed=1), torch.zeros(3, 16)

    def forget(_drafter: LogitsDrafter) -> None:
        out.zero_()

    return LogitsDrafter(), [(hidden, out), forget, (hidden, out)]
