"""The files of a tiny model folder: configuration, tokenizer, processor.

Sizes are the smallest that keep three payload levels, two attention heads and a vision tower; the vocabulary
is the 256 bytes and the special tokens, so that no tokenizer has to be downloaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

BYTES = 256
"""Tokens for single bytes; the special tokens follow them."""
VOCABULARY = 320


class ExpertLayout(StrEnum):
    """A way in which a checkpoint has the experts of a mixture.

    transformers holds (experts, out, in).  TRANSPOSED has (experts, in, out), APART each expert by itself,
    gate and up projections too.
    """

    TRANSPOSED = "transposed"
    APART = "apart"


@dataclass(frozen=True)
class TinyModel:
    """One family as an engine loads it.

    `files` are JSON files of the folder.  `model_class` is the class of transformers, and of the engine, in
    its `module`.  `image` and `video` are the placeholders in a prompt, None where the family has none.
    Weights are normal random numbers: parameters whose name contains a key of `scales` are multiplied,
    those with a key of `spreads` get that standard deviation.  `payload` names the parameters that make the
    deepstack payload: with them at zero the model runs without.  `renamed` turns names of transformers
    into those of released checkpoints.  With `main_features` a row of visual embeddings starts with what
    replaces the token embedding, and the levels follow.  `limits` is the most items of each kind in a
    request.  `nested` is the attribute of the folder's configuration that `model_class` takes, "" for all.
    `experts` is the way in which released checkpoints of the family have the experts of a mixture.
    """

    family: str
    model_class: str
    module: str
    files: Mapping[str, Any]
    special: tuple[str, ...]
    image: str
    video: str | None
    payload: str
    scales: Mapping[str, float]
    spreads: Mapping[str, float]
    renamed: tuple[str, str] | None
    main_features: bool
    driven: str
    limits: Mapping[str, int]
    nested: str = ""
    experts: ExpertLayout | None = None
    logprobs: int = VOCABULARY

    def job(self) -> dict[str, Any]:
        """Return what the child needs to make the folder."""
        return {
            "files": dict(self.files), "special": self.special, "model_class": self.model_class,
            "payload": self.payload, "scales": dict(self.scales), "spreads": dict(self.spreads),
            "renamed": self.renamed, "nested": self.nested,
            "experts": self.experts,
        }  # fmt: skip


def token_ids(special: tuple[str, ...]) -> dict[str, int]:
    """Return the ids of special tokens, which follow the bytes."""
    return {name: BYTES + number for number, name in enumerate(special)}


TEMPLATE = {"chat_template": "{% for m in messages %}{{m['content']}}{% endfor %}"}
"""A chat template without roles."""
PIXELS = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
"""Settings of every image processor."""
