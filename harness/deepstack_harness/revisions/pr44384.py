"""vLLM #44384 (not merged): levels are made anew where they do not lie beside the hidden states."""

import torch
from torch import Tensor
from typing_extensions import override

from deepstack_harness.revisions.pr43617 import Pr43617Buffer


class Pr44384Buffer(Pr43617Buffer):
    """As #43617, but set and `follow` move the levels to the dtype and device of the tensor at hand."""

    def follow(self, like: Tensor) -> None:
        """Make the levels anew, zeroed, unless they have the dtype and device of `like`.

        There, get itself is given the embeddings of the step; a get that nobody told
        anything still answers as it was made.
        """
        if {(level.dtype, level.device) for level in self._levels} != {(like.dtype, like.device)}:
            shape = (self.capacity, self._hidden)
            self._levels = [torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in self._levels]

    @override
    def set(self, payload: Tensor) -> None:
        """Beside the payload, wherever the levels were before."""
        self.follow(payload)
        super().set(payload)
